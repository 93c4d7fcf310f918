"""The measures by the names that plans and ``mae-lm`` call them by. Imports no torch."""

import importlib
from typing import TYPE_CHECKING

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.registries import register_name

if TYPE_CHECKING:
    from mae_lm_fairseq.measures.measure import Measure

OURS = {
    "loss": "measures.evaluation:Loss",
    "evaluate": "measures.evaluation:Evaluate",
    "rank": "measures.rank:Rank",
    "exclusivity": "measures.exclusivity:Exclusivity",
    "probe": "measures.probe:ProbeOrControl",
    "minimal-pairs": "measures.minimal_pairs:MinimalPairsOrControl",
    "retrieval": "measures.retrieval:Retrieval",
    "finetune": "study.finetuning_measures:FineTuningOnGlue",
    "classification": "study.finetuning_measures:FineTuningOnTexts",
    "tagging": "study.finetuning_measures:FineTuningOnWords",
    "seconds": "measures.seconds:Seconds",
    "cost": "measures.seconds:Cost",
}
"""Module and class of the measures of this package by their names, which are known before torch is imported."""
MEASURES: dict[str, "type[Measure]"] = {}
"""Measures by their names; see :func:`register_ours` for those of this package."""


def register_ours() -> None:
    """Register the measures of this package, whose modules import torch."""
    for path in OURS.values():
        module_name, _, class_name = path.partition(":")
        module = importlib.import_module(f"mae_lm_fairseq.{module_name}")
        register_measure(getattr(module, class_name))


def register_measure(measure: "type[Measure]") -> None:
    """Make a measure a ``kind`` of plans and, if the package has no verb of that name, a verb of ``mae-lm``.

    A study measures in processes of its own, which import the module of the class by its name, or the directory of
    ``--user-dir``.

    Raises:
        UserError: if another measure has the name.
    """
    if measure.kind in OURS and _is_own(measure):
        raise UserError(f"{measure.__name__}: the package has a measure {measure.kind}; choose another kind")
    register_name(MEASURES, measure.kind, measure)


def own_measures() -> dict[str, "type[Measure]"]:
    """Return the measures that modules outside of this package have registered, by the verbs that they are."""
    return {name: measure for name, measure in MEASURES.items() if _is_own(measure)}


def _is_own(measure: "type[Measure]") -> bool:
    return not measure.__module__.startswith("mae_lm_fairseq.")

"""The measures by the names that plans and ``mae-lm`` call them by. Imports no torch."""

from typing import TYPE_CHECKING

from mae_lm_fairseq.utils.registries import register_name

if TYPE_CHECKING:
    from mae_lm_fairseq.measures.measure import Measure

MEASURES: dict[str, "type[Measure]"] = {}
"""Measures by their names; :mod:`mae_lm_fairseq.study.finetuning_measures` registers those of this package."""
OURS = (
    *("loss", "evaluate", "rank", "exclusivity", "probe", "minimal-pairs", "retrieval"),
    *("finetune", "classification", "tagging", "seconds", "cost"),
)
"""Names of the measures of this package, by which a mistake in a plan is reported before these are imported."""


def register_measure(measure: "type[Measure]") -> None:
    """Make a measure a ``kind`` of plans and, if the package has no verb of that name, a verb of ``mae-lm``.

    A study measures in processes of its own, which import the module of the class by its name, or the directory of
    ``--user-dir``.

    Raises:
        UserError: if another measure has the name.
    """
    register_name(MEASURES, measure.kind, measure)

"""The measures by the names that plans and ``mae-lm`` call them by. Imports no torch."""

from typing import TYPE_CHECKING

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.registries import register_name

if TYPE_CHECKING:
    from mae_lm_fairseq.measures.measure import Measure

MEASURES: dict[str, "type[Measure]"] = {}
"""Measures by their names; :mod:`mae_lm_fairseq.study.measures` registers those of this package."""
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
    if measure.kind in OURS and _is_own(measure):
        raise UserError(f"{measure.__name__}: the package has a measure {measure.kind}; choose another kind")
    register_name(MEASURES, measure.kind, measure)


def own_measures() -> dict[str, "type[Measure]"]:
    """Return the measures that modules outside of this package have registered, by the verbs that they are."""
    return {name: measure for name, measure in MEASURES.items() if _is_own(measure)}


def _is_own(measure: "type[Measure]") -> bool:
    return not measure.__module__.startswith("mae_lm_fairseq.")

"""The measures by the names that plans and ``mae-lm`` call them by. Imports no torch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mae_lm_fairseq.measures.measure import Measure

MEASURES: dict[str, "type[Measure]"] = {}
"""Measures by their names; :mod:`mae_lm_fairseq.study.measures` registers those of this package."""


def register_measure(measure: "type[Measure]") -> None:
    """Make a measure a ``kind`` of plans and, if the package has no verb of that name, a verb of ``mae-lm``.

    A study measures in processes of its own, which import the module of the class by its name.

    Raises:
        ValueError: if another measure has the name, which plans and results of the two would share.
    """
    known = MEASURES.get(measure.kind)
    if known is not None and _path_of(known) != _path_of(measure):
        raise ValueError(f"{measure.kind} is the name of {_path_of(known)}")
    MEASURES[measure.kind] = measure  # again, if its module is reloaded


def _path_of(measure: "type[Measure]") -> str:
    return f"{measure.__module__}.{measure.__qualname__}"

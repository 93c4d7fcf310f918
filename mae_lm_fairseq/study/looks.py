"""Looks at results: who adds seeds after one may stop when the result pleases, which makes p-values too small.

A look is a report in which a primary contrast has all seeds that its plan has. ``plan.json`` keeps every look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mae_lm_fairseq.study.contrasts import Outcome
from mae_lm_fairseq.study.plan import Contrast, Plan


@dataclass(frozen=True)
class Look:
    """A look as ``plan.json`` keeps it.

    Attributes:
        contrast: name of the contrast.
        question: what is compared: value, endpoint, and models.
        prediction: what is predicted, with its margin.
        seeds: the seeds that were looked at.
        stated: numbers of seeds at which the plan stated looks.
        p, corrected: p-value, and the one after correction.
    """

    date: str
    contrast: str
    question: tuple[str | None, ...]
    prediction: tuple[str | float | None, ...]
    seeds: tuple[int, ...]
    stated: tuple[int, ...]
    p: float
    corrected: float
    verdict: str


def marked(tested: Sequence[Outcome], plan: Plan, looks: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """Return the outcomes, marked as exploratory after an earlier look with other seeds or another prediction.

    Exempt are looks of a plan that stated the same ones as ``plan``: its p-values are corrected for them.
    """

    def is_repeated(one: Outcome, look: Mapping[str, Any]) -> bool:
        now = sorted(one.values), _prediction(one.contrast)
        is_stated = plan.looks and [*plan.looks] == look["stated"] and look["prediction"] == now[1]
        return (
            look["question"] == _question(one.contrast) and (look["seeds"], look["prediction"]) != now and not is_stated
        )

    return [replace(one, is_exploratory=any(is_repeated(one, look) for look in looks)) for one in tested]


def new_looks(
    tested: Sequence[Outcome], plan: Plan, looks: Sequence[Mapping[str, Any]], date: str
) -> list[dict[str, Any]]:
    """Return the looks of a report that are not among those so far, as they are kept in ``plan.json``."""
    found = [
        {
            "contrast": one.contrast.name,
            "question": _question(one.contrast),
            "prediction": _prediction(one.contrast),
            "seeds": sorted(one.values),
            "stated": [*plan.looks],
            "p": one.p,
            "corrected": one.corrected,
            "verdict": one.verdict,
        }
        for one in tested
        if one.corrected is not None
    ]
    before = [{name: value for name, value in look.items() if name != "date"} for look in looks]
    return [{"date": date} | look for look in found if look not in before]


def _question(contrast: Contrast) -> list[str | None]:
    return [contrast.of, contrast.endpoint, contrast.model, contrast.less]


def _prediction(contrast: Contrast) -> list[str | float | None]:
    return [contrast.predicted, contrast.margin]

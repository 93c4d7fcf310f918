"""Looks at results: who adds seeds after one may stop when the result pleases, which makes p-values too small.

A look is a report in which a primary contrast has all seeds that its plan has. ``plan.json`` keeps every look.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def marked(tested: Sequence[Outcome], plan: Plan, looks: Sequence[Look]) -> list[Outcome]:
    """Return the outcomes, marked as exploratory after an earlier look with other seeds or another prediction.

    Exempt are looks of a plan that stated the same ones as ``plan``: its p-values are corrected for them.
    """

    def is_repeated(outcome: Outcome, look: Look) -> bool:
        if look.question != _question(outcome.contrast):
            return False
        has_same_prediction = look.prediction == _prediction(outcome.contrast)
        has_same_seeds = look.seeds == _seeds(outcome)
        is_stated = bool(plan.looks) and look.stated == plan.looks
        return not (has_same_prediction and (has_same_seeds or is_stated))

    marked_outcomes = []
    for outcome in tested:
        is_exploratory = any(is_repeated(outcome, look) for look in looks)
        marked_outcomes.append(replace(outcome, is_exploratory=is_exploratory))
    return marked_outcomes


def new_looks(tested: Sequence[Outcome], plan: Plan, looks: Sequence[Look], date: str) -> list[Look]:
    """Return the looks of a report that are not among those so far, apart from their date."""
    new = []
    for outcome in tested:
        if outcome.corrected is None:
            continue
        look = Look(
            date=date,
            contrast=outcome.contrast.name,
            question=_question(outcome.contrast),
            prediction=_prediction(outcome.contrast),
            seeds=_seeds(outcome),
            stated=plan.looks,
            p=outcome.p,
            corrected=outcome.corrected,
            verdict=outcome.verdict,
        )
        if not any(replace(earlier, date=date) == look for earlier in looks):
            new.append(look)
    return new


def _question(contrast: Contrast) -> tuple[str | None, ...]:
    return contrast.of, contrast.endpoint, contrast.model, contrast.less


def _prediction(contrast: Contrast) -> tuple[str | float | None, ...]:
    return contrast.predicted, contrast.margin


def _seeds(outcome: Outcome) -> tuple[int, ...]:
    return tuple(sorted(outcome.values))

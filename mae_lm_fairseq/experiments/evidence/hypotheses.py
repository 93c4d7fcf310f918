"""Hypotheses H1 to H9 of docs/results/plan.md and their tests, from the results of the stages alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np

from mae_lm_fairseq.experiments.evidence.arms import (
    ALL_MASKS,
    DEEP_MLM,
    DEEP_MLM_LAYER,
    MAE_LM,
    MLM,
    MLM_801010,
)
from mae_lm_fairseq.experiments.evidence.settings import PRIMARY_RANK
from mae_lm_fairseq.utils.errors import UserError

MARGIN = 0.5
"""Equivalence margin, in points."""
LEVEL = 0.05
COUNT = 9
"""Number of hypotheses that Holm's correction is over, whether or not all of them have results yet."""


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis and the outcome of its test.

    Args:
        name: H1 to H9.
        claim: the hypothesis in words.
        endpoint: the quantity that is tested.
        predicted: direction that is predicted: -1, 1, or 0 for equivalence to zero.
        values: the quantity for every pretraining seed.
        p: p-value, of the two-sided t-test or of the test of equivalence.
        corrected: the same after Holm's correction.
    """

    name: str
    claim: str
    endpoint: str
    predicted: int
    values: tuple[float, ...]
    p: float = float("nan")
    corrected: float = float("nan")

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, Student's."""
        from scipy.stats import t  # optional (extra "analysis")

        count = len(self.values)
        margin = t.ppf(0.975, count - 1) * stdev(self.values) / count**0.5
        return self.mean - margin, self.mean + margin

    @property
    def verdict(self) -> str:
        """ "shown", "contradicted" or "not shown", as the plan defines them."""
        if self.predicted:
            if self.corrected >= LEVEL:
                return "not shown"
            return "shown" if self.mean * self.predicted > 0 else "contradicted"
        low, high = self.interval
        if self.corrected < LEVEL:
            return "shown"
        return "contradicted" if low > MARGIN or high < -MARGIN else "not shown"


def outcomes(causal: dict | None, main: dict | None) -> list[Hypothesis]:
    """Return all hypotheses whose stage has results, tested and corrected for :data:`COUNT`."""
    found = [*(_of_main(main) if main else ()), *(_of_causal(causal) if causal else ())]
    return corrected([replace(one, p=p_value(one.values, one.predicted)) for one in found])


def p_value(values: Sequence[float], predicted: int) -> float:
    """Return the p-value of a two-sided t-test against 0, or of two one-sided tests against the margin.

    It is 1 for a t-test of zeros, which has no variance to compare with.
    """
    from scipy.stats import ttest_1samp

    if predicted and not any(values):
        return 1.0
    if predicted:
        return float(ttest_1samp(values, 0).pvalue)
    sides = ((-MARGIN, "greater"), (MARGIN, "less"))
    return max(float(ttest_1samp(values, bound, alternative=side).pvalue) for bound, side in sides)


def corrected(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses with p-values after Holm's correction (1979) over :data:`COUNT` hypotheses."""
    order, largest, by_name = sorted(hypotheses, key=lambda one: one.p), 0.0, {}
    for rank, one in enumerate(order):
        largest = max(largest, min(1.0, (COUNT - rank) * one.p))
        by_name[one.name] = largest
    return [replace(one, corrected=by_name[one.name]) for one in hypotheses]


def runs_of(stage: dict, model: str) -> list[dict]:
    """Return the runs of a model in the order of their seeds.

    Raises:
        UserError: if their seeds are not those of the stage's other models, so that they cannot be paired.
    """
    seeds = sorted({run["seed"] for run in stage["runs"]})
    runs = sorted((run for run in stage["runs"] if run["model"] == model), key=lambda run: run["seed"])
    if [run["seed"] for run in runs] != seeds:
        raise UserError(
            f"stage {stage['stage']}: the runs of {model} have other seeds than {seeds}; run the stage again"
        )
    return runs


def final(stage: dict) -> str:
    """Return the label of the models at the end of training."""
    return str(stage["extent"]["long" if stage["stage"] == "main" else "short"])


def last_layer(model: str) -> int:
    """Return the index of the layer that counts as the last one: -1, or the encoder depth of the others."""
    return DEEP_MLM_LAYER if model == DEEP_MLM else -1


def last_probes(stage: dict, model: str) -> np.ndarray:
    """Return the probe's accuracy at the last layer in per cent, float[seeds]."""
    return np.array([run["probe"][final(stage)]["layers"][last_layer(model)] for run in runs_of(stage, model)])


def deficits(stage: dict, model: str) -> np.ndarray:
    """Return the probe's accuracy at the last layer less that of the best layer, float[seeds].

    The best layer is chosen on the development file, by the mean over the seeds.
    """
    return _last_less(stage, model, below=False)


def ranks(stage: dict, model: str, label: str = "", measure: str = "threshold", settings: str = "") -> np.ndarray:
    """Return the rank of real tokens in clean text at the last layer, float[seeds].

    Args:
        stage: results of the stage.
        model: the model.
        label: label of the checkpoint (default: the last one).
        measure: ``threshold`` or ``entropy``.
        settings: name of the measurement (default: the primary endpoint's).
    """
    name, label = settings or PRIMARY_RANK, label or final(stage)
    return np.array([rank_in(run[name][label], measure, layer=last_layer(model)) for run in runs_of(stage, model)])


def rank_in(rows: Sequence[dict], measure: str, kind: str = "clean", tokens: str = "real", layer: int = -1) -> float:
    """Return a rank from the rows of a model, by input, tokens and index of the layer."""
    chosen = [row for row in rows if row["input"] == kind and row["tokens"] == tokens]
    return sorted(chosen, key=lambda row: row["layer"])[layer][measure]


def rises(stage: dict, model: str) -> np.ndarray:
    """Return the probe's accuracy at the last layer less that of the best layer below it, float[seeds].

    Unlike :func:`deficits`, this is not 0 for a model whose last layer is the best one.
    """
    return _last_less(stage, model, below=True)


def _last_less(stage: dict, model: str, below: bool) -> np.ndarray:
    label, last = final(stage), last_layer(model)
    runs = runs_of(stage, model)
    depth = len(runs[0]["probe"][label]["layers"]) - 1 if last < 0 else last
    candidates = depth if below else depth + 1
    best = int(np.mean([run["probe-dev"][label]["layers"][:candidates] for run in runs], axis=0).argmax())
    return np.array([run["probe"][label]["layers"][depth] - run["probe"][label]["layers"][best] for run in runs])


def _of_main(stage: dict) -> list[Hypothesis]:
    def difference(of: Callable[[dict, str], np.ndarray], other: str) -> np.ndarray:
        return of(stage, MAE_LM) - of(stage, other)

    end, last, rank = "last less best", "probe at the last layer", "rank of real tokens"
    return [
        _hypothesis("H1", "the MLM's last layer is worse for real tokens", f"{end}, MLM", -1, deficits(stage, MLM)),
        _hypothesis("H2", "so is that of 80/10/10", f"{end}, 80/10/10", -1, deficits(stage, MLM_801010)),
        _hypothesis("H3", "MAE-LM has no such deficit", f"{end}, MAE-LM", 0, deficits(stage, MAE_LM)),
        _hypothesis("H4", "MAE-LM's last layer is better than the MLM's", last, 1, difference(last_probes, MLM)),
        _hypothesis("H5", "and than that of 80/10/10", last, 1, difference(last_probes, MLM_801010)),
        _hypothesis("H6", "real tokens use more directions in MAE-LM", rank, 1, difference(ranks, MLM)),
    ]


def _of_causal(stage: dict) -> list[Hypothesis]:
    without, with_all = deficits(stage, MAE_LM), deficits(stage, ALL_MASKS)
    rank = ranks(stage, MAE_LM) - ranks(stage, ALL_MASKS)
    end = "last less best"
    return [
        _hypothesis("H7", "`[MASK]` in the encoder causes the deficit", f"{end}, none less all", 1, without - with_all),
        _hypothesis("H8", "the decoder does not remove it", f"{end}, all less MLM", 0, with_all - deficits(stage, MLM)),
        _hypothesis("H9", "`[MASK]` in the encoder costs directions", "rank, none less all", 1, rank),
    ]


def _hypothesis(name: str, claim: str, endpoint: str, predicted: int, values: np.ndarray) -> Hypothesis:
    return Hypothesis(name, claim, endpoint, predicted, tuple(map(float, values)))

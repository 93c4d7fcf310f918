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
LESS, GREATER, EQUIVALENT, NOT_WORSE = "< 0", "> 0", f"within ± {MARGIN}", f"> -{MARGIN}"
"""Predictions about a quantity."""
COUNT = 9
"""Number of hypotheses that Holm's correction is over, whether or not all of them have results yet."""


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis and the outcome of its test.

    Args:
        name: H1 to H9.
        claim: the hypothesis in words.
        endpoint: the quantity that is tested.
        predicted: :data:`LESS`, :data:`GREATER`, :data:`EQUIVALENT` or :data:`NOT_WORSE`.
        values: the quantity for every pretraining seed.
        p: p-value of :func:`p_value`.
        corrected: the same after Holm's correction.
    """

    name: str
    claim: str
    endpoint: str
    predicted: str
    values: tuple[float, ...]
    p: float = float("nan")
    corrected: float = float("nan")

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, Student's."""
        return interval(self.values)

    @property
    def verdict(self) -> str:
        """ "shown", "contradicted" or "not shown", as the plan defines them."""
        is_significant = self.corrected < LEVEL
        if self.predicted in (LESS, GREATER):
            is_as_predicted = (self.mean > 0) == (self.predicted == GREATER)
            return ("shown" if is_as_predicted else "contradicted") if is_significant else "not shown"
        low, high = self.interval
        if is_significant:
            return "shown"
        is_above = low > MARGIN and self.predicted == EQUIVALENT
        return "contradicted" if is_above or high < -MARGIN else "not shown"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean, Student's."""
    from scipy.stats import t  # optional (extra "analysis")

    count = len(values)
    margin = t.ppf(0.975, count - 1) * stdev(values) / count**0.5
    return fmean(values) - margin, fmean(values) + margin


def outcomes(causal: dict | None, main: dict | None) -> list[Hypothesis]:
    """Return all hypotheses whose stage has results, tested and corrected for :data:`COUNT`."""
    found = [*(_of_main(main) if main else ()), *(_of_causal(causal) if causal else ())]
    return corrected([replace(one, p=p_value(one.values, one.predicted)) for one in found])


def p_value(values: Sequence[float], predicted: str) -> float:
    """Return a p-value by Student's t-test.

    It is two-sided against 0 for :data:`LESS` and :data:`GREATER`, the larger one of two one-sided tests against the
    margins for :data:`EQUIVALENT`, and one-sided against the lower margin for :data:`NOT_WORSE`. Equal values have no
    variance to compare with: theirs is 1.
    """
    from scipy.stats import ttest_1samp

    if stdev(values) == 0:
        return 1.0
    if predicted in (LESS, GREATER):
        return float(ttest_1samp(values, 0).pvalue)
    above = float(ttest_1samp(values, -MARGIN, alternative="greater").pvalue)
    if predicted == NOT_WORSE:
        return above
    return max(above, float(ttest_1samp(values, MARGIN, alternative="less").pvalue))


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


def models_of(stage: dict) -> list[str]:
    """Return the models of a stage in the order of their runs."""
    return list(dict.fromkeys(run["model"] for run in stage["runs"]))


def split_by_seeds(stage: dict) -> tuple[dict, dict]:
    """Return a stage with the models that have all seeds, and one with the others and the seeds that these share."""
    seeds = {model: {run["seed"] for run in stage["runs"] if run["model"] == model} for model in models_of(stage)}
    every = set().union(*seeds.values())
    common = every.intersection(*(found for found in seeds.values() if found != every))
    complete = [run for run in stage["runs"] if seeds[run["model"]] == every]
    others = [run for run in stage["runs"] if seeds[run["model"]] != every and run["seed"] in common]
    return stage | {"runs": complete}, stage | {"runs": others}


def final(run: dict) -> str:
    """Return the label of a run's model at the end of training."""
    return list(run["loss"])[-1]


def last_layer(model: str) -> int:
    """Return the index of the layer that counts as the last one: -1, or the encoder depth of the others."""
    return DEEP_MLM_LAYER if model == DEEP_MLM else -1


def last_probes(stage: dict, model: str, label: str = "") -> np.ndarray:
    """Return the probe's accuracy at the last layer in per cent, float[seeds].

    Args:
        stage: results of the stage.
        model: the model.
        label: label of the checkpoint (default: the last one).
    """
    return np.array([run["probe"][label or final(run)]["layers"][last_layer(model)] for run in runs_of(stage, model)])


def best_layer_below(stage: dict, model: str, lowest: int = 0) -> int:
    """Return the best layer below the last one by the probe on the development file, by the mean over the seeds.

    Args:
        stage: results of the stage.
        model: the model.
        lowest: lowest layer to choose from; 0 is the embeddings.
    """
    probes = [run["probe"][final(run)]["layers, development file"] for run in runs_of(stage, model)]
    last = last_layer(model) % len(probes[0])
    return lowest + int(np.mean([probe[lowest:last] for probe in probes], axis=0).argmax())


def last_less_below(stage: dict, model: str, lowest: int = 0) -> np.ndarray:
    """Return the probe's accuracy at the last layer less that of :func:`best_layer_below`, float[seeds]."""
    best = best_layer_below(stage, model, lowest)
    probes = [run["probe"][final(run)]["layers"] for run in runs_of(stage, model)]
    return np.array([probe[last_layer(model)] - probe[best] for probe in probes])


def ranks(stage: dict, model: str, label: str = "", measure: str = "threshold", settings: str = "") -> np.ndarray:
    """Return the rank of real tokens in clean text at the last layer, float[seeds].

    Args:
        stage: results of the stage.
        model: the model.
        label: label of the checkpoint (default: the last one).
        measure: ``threshold`` or ``entropy``.
        settings: name of the measurement (default: the primary endpoint's).
    """
    found = [run[settings or PRIMARY_RANK][label or final(run)] for run in runs_of(stage, model)]
    return np.array([rank_in(rows, measure, layer=last_layer(model)) for rows in found])


def rank_in(rows: Sequence[dict], measure: str, kind: str = "clean", tokens: str = "real", layer: int = -1) -> float:
    """Return a rank from the rows of a model, by input, tokens and index of the layer."""
    chosen = [row for row in rows if row["input"] == kind and row["tokens"] == tokens]
    return sorted(chosen, key=lambda row: row["layer"])[layer][measure]


def _of_main(stage: dict) -> list[Hypothesis]:
    def difference(of: Callable[[dict, str], np.ndarray], other: str) -> np.ndarray:
        return of(stage, MAE_LM) - of(stage, other)

    end, last, rank = "last less best below", "probe at the last layer", "rank of real tokens"
    below = {model: last_less_below(stage, model) for model in (MLM, MLM_801010, MAE_LM)}
    return [
        _hypothesis("H1", "the MLM's last layer is worse for real tokens", f"{end}, MLM", LESS, below[MLM]),
        _hypothesis("H2", "so is that of 80/10/10", f"{end}, 80/10/10", LESS, below[MLM_801010]),
        _hypothesis("H3", "MAE-LM has no such deficit", f"{end}, MAE-LM", NOT_WORSE, below[MAE_LM]),
        _hypothesis("H4", "MAE-LM's last layer is better than the MLM's", last, GREATER, difference(last_probes, MLM)),
        _hypothesis("H5", "and than that of 80/10/10", last, GREATER, difference(last_probes, MLM_801010)),
        _hypothesis("H6", "real tokens use more directions in MAE-LM", rank, GREATER, difference(ranks, MLM)),
    ]


def _of_causal(stage: dict) -> list[Hypothesis]:
    without, with_all, mlm = (last_less_below(stage, model) for model in (MAE_LM, ALL_MASKS, MLM))
    rank = ranks(stage, MAE_LM) - ranks(stage, ALL_MASKS)
    end, causes = "last less best below", "`[MASK]` in the encoder causes the deficit"
    return [
        _hypothesis("H7", causes, f"{end}, none less all", GREATER, without - with_all),
        _hypothesis("H8", "the decoder does not remove it", f"{end}, all less MLM", EQUIVALENT, with_all - mlm),
        _hypothesis("H9", "`[MASK]` in the encoder costs directions", "rank, none less all", GREATER, rank),
    ]


def _hypothesis(name: str, claim: str, endpoint: str, predicted: str, values: np.ndarray) -> Hypothesis:
    return Hypothesis(name, claim, endpoint, predicted, tuple(map(float, values)))

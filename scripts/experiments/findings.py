#!/usr/bin/env python3
"""Compute what the pages of results say of the second study and of the larger one.

Each is a phrase as it stands on a page, made from committed JSON alone; tests/test_findings.py looks for it there. Run
as a program, it prints the phrases by page.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from mae_lm_fairseq.study.contrasts import interval

RESULTS = Path(__file__).resolve().parent.parent / "results"
EVIDENCE, TREATMENTS = "docs/results/evidence.md", "docs/results/treatments.md"
REPRODUCTION, FINETUNING = "docs/results/reproduction.md", "docs/results/finetuning.md"
MAIN_SENTENCE = "docs/results/main-sentence.md"
IN_MAIN_SENTENCE = (
    *("SST-2", "CoLA", "STS-B", "RTE", "UPOS", "all three", "probe, last layer", "probe, best layer"),
    *("pretraining loss", "exclusivity, layers above the first"),
    *(f"{task}, {rate:g}" for task in ("SST-2", "UPOS") for rate in (5e-5, 1e-4)),
)
SEEDS, HIGH, LOW, END = range(1, 6), 0.002, 0.001, "7600"
MLM, MAE, ALL = "MLM", "MAE-LM", "MAE-LM, all [MASK]s in its encoder"
BERT, RANDOM = "MLM, 80/10/10", "MLM, random tokens"
WORDS = 20
"""Number of frequent words that [MASK] is compared with."""
RATES, AT = (HIGH, LOW), ("points at 2e-3", "at 1e-3")
EXCLUSIVITY, AMBIGUOUS = "exclusivity.exclusivity_0.9", "probe.ambiguous_accuracy"
FRACTIONS = ("exclusivity.exclusivity", "exclusivity.types")
"""Beginnings of the values that are fractions; they are returned in points."""


@cache
def study(name: str) -> dict[tuple, Mapping[str, Any]]:
    """Return the measures of a study by model, learning rate and seed."""
    rows = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))["runs"]
    return {(row["model"], row["learning_rate"], row["seed"]): row["measures"] for row in rows}


def layers(model: str, value: str, rate: float = HIGH, updates: str = END) -> np.ndarray:
    """Return a value of the second study by seed and layer, [seeds, layers]; at the lower rate there is one seed."""
    measure, _, name = value.partition(".")
    runs = [study("evidence-2").get((model, rate, seed), {}).get(measure) for seed in SEEDS]
    return in_points(value) * np.array([run[updates][name] for run in runs if run], dtype=float)


def in_points(value: str) -> float:
    """Return the factor of a value."""
    return 100.0 if value.startswith(FRACTIONS) else 1.0


def above_words(model: str) -> np.ndarray:
    """Return how far [MASK] lies outside beyond the most extreme frequent word, in points, [seeds, layers]."""
    return layers(model, EXCLUSIVITY) - layers(model, "exclusivity.types_highest")


def tagging(first: str, second: str, measure: str = "UPOS, last two layers trained") -> np.ndarray:
    """Return the differences of accuracy after fine-tuning, over the seeds of pretraining that both models have."""
    found = [[study("evidence-2")[model, HIGH, seed].get(measure) for model in (first, second)] for seed in SEEDS]
    return np.array([a[END]["accuracy"] - b[END]["accuracy"] for a, b in found if a and b])


def glue_scores(model: str, task: str) -> np.ndarray:
    """Return the scores of docs/results/finetuning.md by the seed of fine-tuning.

    Args:
        model: "roberta", "mae_lm", or "scratch" for random weights.
        task: a task of the page; "squad" has F1, and STS-B the mean of its two correlations.
    """
    metrics = json.loads((RESULTS / "finetuning" / model / task / "results.json").read_text())["metrics"]
    names = {"squad": ["f1"], "STS-B": ["pearson", "spearman"]}.get(task, [next(iter(metrics))])
    return np.mean([metrics[name]["values"] for name in names], axis=0)


def glue(task: str) -> np.ndarray:
    """Return MAE-LM's scores less the RoBERTa preset's, by the seed of fine-tuning."""
    return glue_scores("mae_lm", task) - glue_scores("roberta", task)


def mean_interval(values: Sequence[float], digits: int = 1, sign: bool = True, unit: str = "") -> str:
    """Return the mean and Student's 95 % interval."""
    low, high = interval([float(value) for value in values])
    return minus(f"{np.mean(values):{'+' if sign else ''}.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]")


def minus(text: str) -> str:
    """Return a text with minus signs in place of hyphens before digits."""
    return text.replace("-", "−")  # noqa: RUF001


def listed(values: Sequence[float], digits: int = 1, sign: bool = False) -> str:
    """Return numbers as "a, b and c"."""
    *first, last = (minus(f"{value:{'+' if sign else ''}.{digits}f}") for value in values)
    return f"{', '.join(first)} and {last}"


def by_layer(values: np.ndarray) -> np.ndarray:
    """Return the means over the seeds of layers 2 to 4."""
    return values.mean(0)[2:]


def p_values() -> tuple[float, float]:
    """Return the p-value of CoLA, and that after Holm's correction over the five tasks of the page."""
    found = {task: float(ttest_1samp(glue(task), 0).pvalue) for task in ("SST-2", "CoLA", "RTE", "STS-B", "squad")}
    if min(found, key=found.get) != "CoLA":
        raise ValueError("CoLA no longer has the smallest p-value: Holm's correction of it is another one")
    return found["CoLA"], min(1.0, len(found) * found["CoLA"])


def full_input(model: str, rate: float = HIGH) -> np.ndarray:
    """Return Figure 1(a)'s quantity: directions of all tokens in masked text less those of real ones in clean text."""
    return layers(model, "rank.all_as_trained", rate) - layers(model, "rank.real_clean", rate)


def best(model: str, rate: float = HIGH) -> np.ndarray:
    """Return the accuracy on ambiguous words at the best layer of each seed."""
    return layers(model, AMBIGUOUS, rate).max(1)


def best_by_development_words(model: str, rate: float = HIGH) -> np.ndarray:
    """Return the accuracy on ambiguous words at the layer that is best on all words of the development sentences."""
    by_layer = layers(model, AMBIGUOUS, rate)
    chosen = layers(model, "probe.dev_accuracy", rate).argmax(1)
    return by_layer[np.arange(len(by_layer)), chosen]


def last_layer(model: str, value: str, rate: float = HIGH) -> np.ndarray:
    """Return a value at the last layer, by seed."""
    return layers(model, value, rate)[:, -1]


def words_inside(rate: float) -> int:
    """Return how many of the frequent words lie less far outside than the MLM's [MASK]: fewest of layers 2 and 3."""
    return round(WORDS * layers(MLM, "exclusivity.type_quantile", rate)[:, 2:4].min())


def treatment(model: str, value: str) -> np.ndarray:
    """Return a value of the treatments by seed (and layer)."""
    measure, _, name = value.partition(".")
    runs = [study("treatments")[model, None, seed][measure]["3800"] for seed in (1, 2)]
    return in_points(value) * np.array([run[name] for run in runs], dtype=float)


def evidence() -> list[str]:
    """Return the phrases of the page of the second study."""
    checkpoints = "475", "950", "1900", "3800", END
    first, highest, *later = (layers(MLM, EXCLUSIVITY, updates=updates)[:, 2:].mean() for updates in checkpoints)
    old = treatment("all [MASK]", EXCLUSIVITY)[:, -1]
    at_best = best(MAE) - best(MLM)
    losses = [layers(model, "loss.loss").mean() for model in (MAE, ALL)]
    return [
        mean_interval(layers(MLM, EXCLUSIVITY)[:, 2:].mean(1)),
        f"leaves {mean_interval(above_words(MLM)[:, 2:].mean(1))}",
        f"({listed(by_layer(above_words(MLM)), sign=True)} in layers 2 to 4)",
        f"{last_layer(MLM, EXCLUSIVITY, LOW)[0]:.1f} at 1e-3 with seed 1, {listed(old)} in the treatments",
        f"P1 rises to {highest:.1f} points after 950 updates, from {first:.1f} after 475",
        f"falls: {listed(later)} points after 1,900, 3,800 and 7,600",
        f"{mean_interval(tagging(ALL, MLM), 2)} above the MLM (four pairs)",
        f"{mean_interval(tagging(ALL, MAE), 2)} above MAE-LM (five pairs)",
        *map(mean_interval, full_input(MLM)[:, 2:].T),
        f"with 80/10/10 {listed(by_layer(full_input(BERT)), sign=True)}",
        f"at 1e-3 (seed 1) {listed(full_input(MLM, LOW)[0, 2:], 0, sign=True)}",
        f"{mean_interval(at_best, 2)} at the best layer",
        f"{best(MAE, LOW)[0] - best(MLM, LOW)[0]:+.1f} at 1e-3 with seed 1",
        f"{mean_interval(best(ALL) - best(MLM), 2)} with all `[MASK]`s",
        f"{listed(by_layer(layers(MAE, 'exclusivity.types_highest')), 0)} points",
        f"from {losses[0]:.2f} to {losses[1]:.2f} nats",
    ]


def fine_tuned(name: str) -> list[float]:
    """Return the differences between MAE-LM and the MLM after fine-tuning."""
    report = json.loads((RESULTS / "main-sentence" / "report.json").read_text(encoding="utf-8"))
    return [*report["secondary"]["MAE-LM"][name]["by_seed"].values()]


def phrases() -> dict[str, list[str]]:
    """Return the phrases by page."""
    later = treatment("later", "loss.loss") - treatment("all [MASK]", "loss.loss")
    ends = ("random tokens only", min), ("kept tokens only", max)
    least, most = (of(treatment(model, EXCLUSIVITY)[:, 2:].mean(1)) for model, of in ends)
    real = [last_layer(model, "rank.real_clean").mean() for model in (MAE, MLM)]
    p, corrected = p_values()
    return {
        EVIDENCE: evidence(),
        TREATMENTS: [f"{listed(later, 2, sign=True)} nats", f"between {least:.0f} and {most:.0f} points"],
        REPRODUCTION: [f"{real[0]:.0f} against {real[1]:.0f}"],
        MAIN_SENTENCE: [mean_interval(fine_tuned(name), 2) for name in IN_MAIN_SENTENCE],
        FINETUNING: [f"p = {p:.3f}", f"{corrected:.2f} after Holm's correction"],
    }


if __name__ == "__main__":
    for page, found in phrases().items():
        print(f"{page}:", *found, sep="\n  ")

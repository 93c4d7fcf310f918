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
EVIDENCE, TREATMENTS = "scripts/results/evidence-2/README.md", "scripts/results/treatments/README.md"
REPRODUCTION, FINETUNING = "scripts/results/reproduction/README.md", "scripts/results/finetuning/README.md"
MAIN_SENTENCE = "scripts/results/main-sentence/README.md"
SEEDS, HIGH, LOW, END = range(1, 6), 0.002, 0.001, "7600"
MLM, MAE, ALL = "MLM", "MAE-LM", "MAE-LM, all [MASK]s in its encoder"
BERT, RANDOM = "MLM, 80/10/10", "MLM, random tokens"
WORDS = 20
"""Number of frequent words that [MASK] is compared with."""
RATES = HIGH, LOW
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
    """Return the scores of scripts/results/finetuning by the seed of fine-tuning.

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


def treatment(model: str, value: str) -> np.ndarray:
    """Return a value of the treatments by seed (and layer)."""
    measure, _, name = value.partition(".")
    runs = [study("treatments")[model, None, seed][measure]["3800"] for seed in (1, 2)]
    return in_points(value) * np.array([run[name] for run in runs], dtype=float)


def evidence() -> list[str]:
    """Return the phrases of the page of the second study."""
    return [
        *place_of_mask(),
        *thresholds(),
        *rank_of_mask(),
        *rows_of_figure_1a(),
        *rows_of_figure_5a(),
        *best_layers(),
        f"{mean_interval(tagging(ALL, MLM), 2)} above the MLM (four pairs)",
        f"{mean_interval(tagging(ALL, MAE), 2)} above MAE-LM (five pairs)",
        f"from {layers(MAE, 'loss.loss').mean():.2f} to {layers(ALL, 'loss.loss').mean():.2f} nats",
    ]


def place_of_mask() -> list[str]:
    """Return what the page says of the exclusivity of [MASK], and of words that lie far outside."""
    checkpoints = "475", "950", "1900", "3800", END
    first, highest, *later = (layers(MLM, EXCLUSIVITY, updates=updates)[:, 2:].mean() for updates in checkpoints)
    half_as_long = treatment("all [MASK]", EXCLUSIVITY)[:, -1]
    mixed = {rate: last_layer(BERT, EXCLUSIVITY, rate).mean() for rate in RATES}
    return [
        mean_interval(layers(MLM, EXCLUSIVITY)[:, 2:].mean(1)),
        f"leaves {mean_interval(above_words(MLM)[:, 2:].mean(1))}",
        f"({listed(by_layer(above_words(MLM)), sign=True)} in layers 2 to 4)",
        f"exclusivity is {mixed[HIGH]:.1f} points at 2e-3 and {mixed[LOW]:.1f} at 1e-3 (seed 1)",
        f"it is {last_layer(MLM, EXCLUSIVITY).mean():.1f} points at 2e-3, inside the range of the words",
        f"{last_layer(MLM, EXCLUSIVITY, LOW)[0]:.1f} at 1e-3 with seed 1, {listed(half_as_long)} in the treatments",
        f"P1 rises to {highest:.1f} points after 950 updates, from {first:.1f} after 475",
        f"falls: {listed(later)} points after 1,900, 3,800 and 7,600",
        f"{listed(by_layer(layers(MAE, 'exclusivity.types_highest')), 0)} points",
    ]


def thresholds() -> list[str]:
    """Return what the page says of directions with 90 and with 99 % of the energy."""
    outside = {}
    for tokens in ("mask", "held_out"):
        for threshold in ("0.9", "0.99"):
            outside[tokens, threshold] = 100 * layers(MLM, f"exclusivity.{tokens}_{threshold}")[:, 2:].mean()
    ratios = [outside["mask", threshold] / outside["held_out", threshold] for threshold in ("0.9", "0.99")]
    at_99 = {model: layers(model, "exclusivity.exclusivity_0.99")[:, 2:].mean(1) for model in (MLM, MAE)}
    return [
        f"{outside['mask', '0.9']:.1f} % of the energy of `[MASK]`",
        f"and {outside['mask', '0.99']:.1f} % outside those with 99 %",
        f"have {outside['held_out', '0.9']:.1f} and {outside['held_out', '0.99']:.1f} % outside",
        f"{ratios[0]:.1f} and {ratios[1]:.1f} times as much",
        f"the difference at 99 % is {mean_interval(at_99[MLM], sign=False, unit=' points')}",
        f"as much there, {mean_interval(at_99[MAE], sign=False, unit=' points')}",
    ]


def rank_of_mask() -> list[str]:
    """Return the rows of the page's table on Lemma 2.1, and its sentences on 80/10/10."""
    rows = {
        "2e-3": ("rank", HIGH),
        "2e-3, mean subtracted": ("rank, centred", HIGH),
        "1e-3 (seed 1)": ("rank", LOW),
        "1e-3 (seed 1), mean subtracted": ("rank, centred", LOW),
    }
    phrases = []
    for label, (measure, rate) in rows.items():
        directions = layers(MLM, f"{measure}.mask_as_trained", rate).mean(0)
        phrases.append(table_row(label, [f"{value:.0f}" for value in directions]))
    kept = layers(BERT, "rank.mask_as_trained").mean(0)
    centred = layers(BERT, "rank, centred.mask_as_trained").mean(0)
    return [
        *phrases,
        f"{kept[0]:.0f} direction becomes {kept[-1]:.0f}",
        f"{centred[0]:.0f} directions become {centred[-1]:.0f}, after {centred[1]:.0f} in layer 1",
    ]


def rows_of_figure_1a() -> list[str]:
    """Return the rows of the page's table on Figure 1(a): whether the last layer gains more than the second."""
    rows = [table_row("MLM, 2e-3", [*map(mean_interval, full_input(MLM)[:, 2:].T), "no"])]
    for model, label in ((MLM, "MLM"), (BERT, "MLM, 80/10/10"), (ALL, "MAE-LM, all `[MASK]`s in its encoder")):
        for rate, rate_label, digits in ((HIGH, "2e-3", 1), (LOW, "1e-3 (seed 1)", 0)):
            if (model, rate) == (MLM, HIGH):
                continue  # the row with intervals
            gains = by_layer(full_input(model, rate))
            is_deeper_more = "yes" if gains[-1] > gains[0] else "no"
            cells = [f"{gain:+.{digits}f}" for gain in gains]
            rows.append(table_row(f"{label}, {rate_label}", [*cells, is_deeper_more]))
    return rows


def rows_of_figure_5a() -> list[str]:
    """Return the rows of the page's table on Figure 5(a), and its sentence."""
    measures = ("rank at 80 %", "rank", "rank at 95 %", "rank at 99 %", "rank, centred")
    rows = []
    for rate, label in ((HIGH, "2e-3"), (LOW, "1e-3 (seed 1)")):
        differences = []
        for measure in measures:
            value = f"{measure}.real_clean"
            differences.append((last_layer(MAE, value, rate) - last_layer(MLM, value, rate)).mean())
        rows.append(table_row(label, [minus(f"{difference:.0f}") for difference in differences]))
    real = {model: last_layer(model, "rank.real_clean").mean() for model in (MAE, MLM)}
    all_tokens = last_layer(MLM, "rank.all_as_trained").mean()
    return [
        *rows,
        f"in MAE-LM: {real[MAE]:.0f} of 128 in the last layer",
        f"MLM has {real[MLM]:.0f} in clean text and {all_tokens:.0f} for all tokens of masked text",
    ]


def best_layers() -> list[str]:
    """Return what the page says of the best layers, by the two ways of choosing them."""
    chosen = best_by_development_words
    low = {"development": chosen(MAE, LOW) - chosen(MLM, LOW), "test": best(MAE, LOW) - best(MLM, LOW)}
    return [
        f"MAE-LM is {mean_interval(chosen(MAE) - chosen(MLM), 2)} points from the MLM",
        f"{mean_interval(chosen(ALL) - chosen(MLM), 2)} with all `[MASK]`s",
        f"at 1e-3 (seed 1) MAE-LM is {minus(format(low['development'][0], '.1f'))} points from the MLM",
        f"differences are {mean_interval(best(MAE) - best(MLM), 2)}, {mean_interval(best(ALL) - best(MLM), 2)}",
        f"at 1e-3, {low['test'][0]:+.1f}",
    ]


def table_row(label: str, cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {label} | {' | '.join(cells)} |"


def treatments() -> list[str]:
    """Return the phrases of the page of the treatments."""
    loss = {model: treatment(model, "loss.loss") for model in ("all [MASK]", "later", "never, 50 % (3ML)")}
    later = loss["later"] - loss["all [MASK]"]
    saved = loss["all [MASK]"] - loss["never, 50 % (3ML)"]
    least = treatment("random tokens only", EXCLUSIVITY)[:, 2:].mean(1).min()
    most = treatment("kept tokens only", EXCLUSIVITY)[:, 2:].mean(1).max()
    inside = []
    for model in ("all [MASK]", "80/10/10", "drawn rate"):
        inside.append(treatment(model, "exclusivity.type_quantile")[:, 2:4].min())
    falling = treatment("falling rate", "exclusivity.type_quantile")[:, 2:4].min()
    return [
        f"{listed(later, 2, sign=True)} nats",
        f"between {least:.0f} and {most:.0f} points",
        f"by {listed(saved, 2)} nats in the two seeds",
        f"outside at least {WORDS * min(inside):.0f} of {WORDS} with all `[MASK]`",
        f"one seed has {WORDS * falling:.0f} of {WORDS} in layer 2",
    ]


def phrases() -> dict[str, list[str]]:
    """Return the phrases by page."""
    real = [last_layer(model, "rank.real_clean").mean() for model in (MAE, MLM)]
    p, corrected = p_values()
    return {
        EVIDENCE: evidence(),
        TREATMENTS: treatments(),
        REPRODUCTION: [f"{real[0]:.0f} against {real[1]:.0f}"],
        FINETUNING: [f"p = {p:.3f}", f"{corrected:.2f} after Holm's correction"],
    }


if __name__ == "__main__":
    for page, found in phrases().items():
        print(f"{page}:", *found, sep="\n  ")

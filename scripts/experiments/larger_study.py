"""Read the committed results of the larger study, scripts/results/main-sentence, and what pages say of them."""

import json
from functools import cache
from typing import Any

import numpy as np

from experiments.analyse_main_sentence import Rows, read_rows
from experiments.findings import (
    EVIDENCE,
    MAE,
    MAIN_SENTENCE,
    MLM,
    RESULTS,
    glue,
    glue_scores,
    layers,
    mean_interval,
)
from experiments.one_model import PRETRAINING

DIRECTORY = RESULTS / "main-sentence"
LOWER, HIGHER = 5e-4, 1e-3
"""Learning rates of the trials that chose the rates."""
MEASURES = (
    *("SST-2", "CoLA", "STS-B", "RTE", "UPOS", "all three", "probe, last layer", "probe, best layer"),
    *("pretraining loss", "exclusivity, layers above the first"),
    *(f"{task}, {rate:g}" for task in ("SST-2", "UPOS") for rate in (5e-5, 1e-4)),
)


@cache
def report() -> dict[str, Any]:
    """Return the report of the analysis."""
    return json.loads((DIRECTORY / "report.json").read_text(encoding="utf-8"))


@cache
def runs() -> Rows:
    """Return the measures of the twelve pairs of scripts/results/main-sentence by model and seed."""
    return read_rows([DIRECTORY / "slot-1.json", DIRECTORY / "slot-2.json"])


def by_layer(arm: str, value: str) -> np.ndarray:
    """Return a value of the measure ``exclusivity`` of the larger study, [seeds, layers]."""
    by_seed = []
    for (name, _), measures in sorted(runs().items()):
        if name == arm:
            by_seed.append([layer[value] for layer in measures["exclusivity"]["layers"]])
    return np.array(by_seed)


def contrast(name: str) -> dict[str, Any]:
    """Return MAE-LM less the MLM in the larger study."""
    return report()["secondary"]["MAE-LM"][name]


def losses_by_rate() -> dict[tuple[str, float], float]:
    """Return the losses in nats by arm and learning rate, of the models of another size that chose the rates."""
    rows = json.loads((DIRECTORY / "rates.json").read_text(encoding="utf-8"))["rows"]
    return {(row["arm"], row["rate"]): row["loss"] for row in rows if row["name"] == "pretraining"}


def updates_of_the_trials() -> int:
    """Return the number of updates of the models that chose the rates."""
    rows = json.loads((DIRECTORY / "rates.json").read_text(encoding="utf-8"))["rows"]
    (updates,) = {row["updates"] for row in rows if row["name"] == "pretraining"}
    return updates


def official_rows(arm: str) -> float:
    """Return an arm's mean accuracy in % on the 872 official development rows of SST-2."""
    accuracies = []
    for (name, _), measures in runs().items():
        if name == arm:
            accuracies += [row["dev"] for name_of_row, row in measures.items() if name_of_row.startswith("SST-2 ")]
    return float(np.mean(accuracies))


def phrases() -> dict[str, list[str]]:
    """Return what two pages say of this study."""
    outside = {arm: 100 * by_layer(arm, "exclusivity_0.9")[:, 2:].mean() for arm in (MLM, MAE)}
    differences = []
    for name in MEASURES:
        differences.append(mean_interval([*contrast(name)["by_seed"].values()], 2))
    return {
        EVIDENCE: [
            f"lies {outside[MAE]:.1f} points outside in MAE-LM",
            f"whose encoder never saw it, and {outside[MLM]:.1f} points",
        ],
        MAIN_SENTENCE: [*differences, *losses_apart(), *room()],
    }


def losses_apart() -> list[str]:
    """Return what is said about the loss that MAE-LM is behind, and about its rate."""
    trial = losses_by_rate()
    warm_up = round(PRETRAINING.warmup * updates_of_the_trials())
    longer_study = layers(MAE, "loss.loss").mean() - layers(MLM, "loss.loss").mean()
    return [
        f"is {contrast('pretraining loss')['mean']:.2f} nats behind, mostly by its rate",
        f"was {trial[MAE, LOWER] - trial[MLM, LOWER]:.2f} nats behind at 5e-4",
        f"added {trial[MLM, LOWER] - trial[MLM, HIGHER]:.2f}",
        f"{warm_up} updates of warm-up",
        f"end {longer_study:.2f} nats behind the MLM",
    ]


def room() -> list[str]:
    """Return what is said about random weights."""
    means = report()["means"]
    return [
        f"differ on SST-2 by {mean_interval(glue('SST-2'))} points",
        f"they have {np.median(glue_scores('scratch', 'SST-2')):.1f} on SST-2's development set",
        f"has {official_rows(MLM):.1f} and MAE-LM {official_rows(MAE):.1f}",
        f"{np.median(spearman_of_random_weights()):.1f} in Spearman's correlation on STS-B",
        f"where the MLM has {means[MLM]['STS-B']:.1f} and MAE-LM {means[MAE]['STS-B']:.1f}",
        f"random weights have {np.median(glue_scores('scratch', 'CoLA')):.1f}",
        f"the MLM {means[MLM]['CoLA']:.1f} and MAE-LM {means[MAE]['CoLA']:.1f}",
    ]


def spearman_of_random_weights() -> list[float]:
    """Return Spearman's correlation on STS-B of random weights, in %, by the seed of fine-tuning."""
    path = RESULTS / "finetuning" / "scratch" / "STS-B" / "results.json"
    return json.loads(path.read_text(encoding="utf-8"))["metrics"]["spearman"]["values"]

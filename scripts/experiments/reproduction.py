"""Read the committed results of the study ``reproduction``, and compute what two pages say of them."""

import json
from functools import cache
from typing import Any

import numpy as np

from experiments.findings import EVIDENCE, REPRODUCTION, RESULTS, listed, mean_interval, table_row

MLM, MAE, THREE_ML = "RoBERTa preset", "MAE-LM", "3ML-self, 50 % masked"
HALF, ALL = "MAE-LM, half of the [MASK]s in the encoder", "MAE-LM, all [MASK]s in the encoder"
FIVE_SEEDS, THREE_SEEDS = (1, 2, 3, 4, 5), (1, 2, 3)
UNDISTURBED_SEED = 3
"""The seed whose MLM and 3ML were both timed without other work beside them."""


@cache
def results() -> dict[str, Any]:
    """Return the committed results."""
    return json.loads((RESULTS / "reproduction" / "results.json").read_text(encoding="utf-8"))


def last_checkpoint(model: str, seed: int) -> dict[str, float]:
    """Return the updates, seconds and validation loss at the end of a pretraining."""
    (run,) = (run for run in results()["pretraining"] if run["variant"] == model and run["seed"] == seed)
    return run["checkpoints"][-1]


def losses(model: str, seeds: tuple[int, ...] = THREE_SEEDS) -> np.ndarray:
    """Return the validation loss in nats at the end of each pretraining."""
    return np.array([last_checkpoint(model, seed)["valid_loss"] for seed in seeds])


def seconds(model: str, seeds: tuple[int, ...] = THREE_SEEDS) -> np.ndarray:
    """Return the seconds of each pretraining."""
    return np.array([last_checkpoint(model, seed)["seconds"] for seed in seeds])


def scores(model: str, seeds: tuple[int, ...] = THREE_SEEDS, updates: int = 2_000) -> np.ndarray:
    """Return the score on STS-B after fine-tuning a checkpoint of each pretraining, by default the last one."""
    by_seed = {}
    for run in results()["finetuning"]:
        if run["variant"] == model and run["updates"] == updates:
            by_seed[run["seed"]] = run["score"]
    return np.array([by_seed[seed] for seed in seeds])


def directions(model: str, tokens: str, text: str) -> np.ndarray:
    """Return how many directions hold 90 % of the energy of hidden states, [seeds, layers].

    Args:
        model: a model with five seeds.
        tokens: "mask" or "real".
        text: "as_trained" or "clean".
    """
    by_seed = []
    for run in results()["pretraining"]:
        if run["variant"] == model:
            rows = [row for row in run["ranks"]["rows"] if row["tokens"] == tokens and row["input"] == text]
            by_seed.append([row["threshold"] for row in rows])
    return np.array(by_seed)


def fine_tuned_directions(model: str) -> np.ndarray:
    """Return how many directions real tokens have in the last layer after fine-tuning, by seed."""
    by_seed = {}
    for run in results()["finetuning"]:
        if run["variant"] == model and "ranks" in run:
            by_seed[run["seed"]] = run["ranks"]["rows"][-1]["threshold"]
    return np.array([by_seed[seed] for seed in FIVE_SEEDS])


def phrases() -> dict[str, list[str]]:
    """Return what two pages say of this study."""
    mask = directions(MLM, "mask", "as_trained").mean(0)
    figure_4 = mean_interval(scores(MAE) - scores(ALL))
    row = table_row(
        "[reproduction](../reproduction/README.md), a seventh of the text", [f"{rank:.0f}" for rank in mask]
    )
    return {
        EVIDENCE: [row, f"{figure_4} points"],
        REPRODUCTION: [
            f"{mask[0]:.1f} directions at the embeddings, and {listed(mask[1:])} in layers 1 to 4",
            f"it is {figure_4} in the three seeds",
            *ranks_of_real_tokens(),
            *scores_of_mae_lm(),
            *quality_of_3ml(),
            *seconds_per_update(),
        ],
    }


def ranks_of_real_tokens() -> list[str]:
    """Return what is said about the directions of real tokens before and after fine-tuning."""
    mae, mlm = directions(MAE, "real", "clean")[:, -1], directions(MLM, "real", "clean")[:, -1]
    tuned_mae, tuned_mlm = fine_tuned_directions(MAE), fine_tuned_directions(MLM)
    return [
        f"{mae.mean():.1f} of 128, against {mlm.mean():.1f}, {mean_interval(mae - mlm)}",
        f"it is {tuned_mae.mean():.1f} against {tuned_mlm.mean():.1f}",
        f"cannot tell ({mean_interval(tuned_mae - tuned_mlm)})",
    ]


def scores_of_mae_lm() -> list[str]:
    """Return what is said about MAE-LM after fine-tuning (Figure 3)."""
    earlier = []
    for updates in (500, 1_000, 1_500):
        earlier.append((scores(MAE, updates=updates) - scores(MLM, updates=updates)).mean())
    return [
        f"on STS-B, {mean_interval(scores(MAE, FIVE_SEEDS) - scores(MLM, FIVE_SEEDS))}",
        f"is ahead by {listed(earlier, sign=True)} points",
    ]


def quality_of_3ml() -> list[str]:
    """Return what is said about 3ML's loss and score."""
    lower = mean_interval(losses(MLM) - losses(THREE_ML), 2, sign=False, unit=" nats")
    score = scores(THREE_ML) - scores(MLM)
    return [f"by {lower}", f"by {score.mean():.1f} points", f"cannot tell: {mean_interval(score).partition(' ')[2]}"]


def seconds_per_update() -> list[str]:
    """Return what is said about time, of the seeds whose MLM was timed without other work."""
    mae_lm = seconds(MAE, (3, 4, 5)) / seconds(MLM, (3, 4, 5))
    three_ml = seconds(THREE_ML, (UNDISTURBED_SEED,)) / seconds(MLM, (UNDISTURBED_SEED,))
    return [f"{mae_lm.mean():.2f} times as long", f"3ML's {three_ml[0]:.2f} times"]

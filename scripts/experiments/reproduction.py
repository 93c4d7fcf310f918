"""Read the committed results of the study ``reproduction``: losses, scores, ranks of [MASK] and seconds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent.parent / "results"
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


def scores(model: str, seeds: tuple[int, ...] = THREE_SEEDS) -> np.ndarray:
    """Return the score on STS-B after fine-tuning the last checkpoint of each pretraining."""
    by_seed = {}
    for run in results()["finetuning"]:
        if run["variant"] == model and run["updates"] == last_checkpoint(model, run["seed"])["updates"]:
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

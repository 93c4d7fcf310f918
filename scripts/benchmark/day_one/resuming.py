"""Stage 4: a training that is killed and resumed, beside one that is not."""

from functools import partial
from pathlib import Path

import torch

from benchmark.day_one.corpus import write_data_bin
from benchmark.day_one.scale import Scale
from benchmark.day_one.training import Training, flags, has_reached, train
from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data

UPDATES, SAVED, KILLED = 12, 4, 6
"""Updates of the training, updates between checkpoints, and the update after which it is killed."""


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements."""
    trainings = Trainings(scale, work)
    return [("uninterrupted", trainings.whole), ("killed", trainings.kill), ("resumed", trainings.resume)]


class Trainings:
    """The same training twice, in directories of its own; the second is killed."""

    def __init__(self, scale: Scale, work: Path):
        data = write_data_bin(work / "data-bin", scale.vocabulary, scale.tokens // 4)
        shape = {"batch-size": scale.rows, "update-freq": 1, "tokens-per-sample": scale.length}
        shape |= {"max-update": UPDATES, "total-num-update": UPDATES, "warmup-updates": 2}
        shape |= {"save-interval-updates": SAVED, "keep-interval-updates": 1}
        self.directories = work / "whole", work / "killed"
        self.train = partial(train, scale, scale.preset, data, options=flags(shape))
        self.expected: list[float] = []

    def whole(self) -> dict:
        """Train without interruption."""
        self.expected = _losses(self.train(work=self.directories[0]))
        return {"losses": self.expected}

    def kill(self) -> dict:
        """Train until the process is killed."""
        return {"losses": _losses(self.train(work=self.directories[1], until=has_reached(KILLED)))}

    def resume(self) -> dict:
        """Resume the killed training, and compare with the other one.

        Raises:
            RuntimeError: if it did not resume from a checkpoint.
        """
        losses = _losses(self.train(work=self.directories[1]))
        if not 0 < len(losses) < UPDATES:
            raise RuntimeError(f"the second training has {len(losses)} updates: it did not resume from a checkpoint")
        pairs = zip(losses, self.expected[-len(losses) :], strict=True)
        weights = [_weights(directory) for directory in self.directories]
        return {
            "updates": len(losses),
            "losses": losses,
            "largest_loss_difference": max(abs(one - other) for one, other in pairs),
            "largest_weight_difference": max(
                float((weight - weights[1][name]).abs().max()) for name, weight in weights[0].items()
            ),
        }


def _losses(training: Training) -> list[float]:
    return training.values("loss")


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    state = load_as_data(directory / "checkpoints" / "checkpoint_last.pt")
    return {name: weight.float() for name, weight in state["model"].items()}

"""The command of a pretraining run, with the recipe of its architecture."""

import sys
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.recipes.settings import as_arguments, settings


def training_command(
    architecture: str, data: Path, save: Path, updates: int, warmup: int, validate_every: int, *options: str
) -> list[str]:
    """One ``fairseq-train`` on a CPU. Runs with the same numbers have the same data, masks and order.

    Args:
        architecture: with whose recipe to train.
        data: the data-bin.
        save: where checkpoints go.
        updates: how many, and the end of the learning rate's decay.
        warmup: updates until the learning rate is reached.
        validate_every: updates between two validations, and two checkpoints.
        options: of ``fairseq-train``, which win over the recipe's.
    """
    chosen = settings(architecture)
    chosen["lr_scheduler"] |= {"warmup_updates": warmup, "total_num_update": updates}
    chosen["optimization"]["max_update"] = updates
    chosen["dataset"]["validate_interval_updates"] = validate_every
    chosen["checkpoint"] |= {"save_dir": save, "save_interval_updates": validate_every}
    chosen["common"] |= {"user_dir": PACKAGE, "log_format": "json", "seed": 1, "cpu": True}
    return [sys.executable, "-m", "fairseq_cli.train", str(data), *as_arguments(chosen), *options]

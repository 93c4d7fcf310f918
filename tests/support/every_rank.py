"""``fairseq-train`` in which every rank writes its parameters at the end, as ``rank-N.pt`` in the ``--save-dir``."""

from pathlib import Path

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from fairseq_cli import train

from mae_lm_fairseq.fairseq_patches.patching import wrap


def _load_and_remember(load, trainer, *args, **kwargs):
    trainers.append(trainer)
    return load(trainer, *args, **kwargs)


trainers: list[Trainer] = []

if __name__ == "__main__":
    wrap(Trainer, "load_checkpoint", _load_and_remember)
    train.cli_main()
    [trainer] = trainers
    rank = distributed_utils.get_global_rank()
    torch.save(trainer.get_model().state_dict(), Path(trainer.cfg.checkpoint.save_dir, f"rank-{rank}.pt"))

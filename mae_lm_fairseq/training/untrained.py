"""Checkpoints of models before training, as controls that have never seen a text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fairseq import tasks, utils
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.keeping import save_weights
from mae_lm_fairseq.training.pretrain import parse_configuration


def write_untrained(words: Sequence[str], path: Path) -> None:
    """Write a model with the random weights that its training would begin with, as ``--keep-at`` writes one.

    Args:
        words: arguments of fairseq-train, whose ``--seed`` decides on the weights.
    """
    cfg = parse_configuration(list(words))
    # As fairseq_cli.train does, so that the weights are those before its first update.
    np.random.seed(cfg.common.seed)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    save_weights(trainer, path, {"train_iterator": {"epoch": 1}})

"""Patches of the numbers that fairseq logs: losses that are not finite, correlations that are undefined."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq.criterions import sentence_prediction
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, first_line


def stop_at_loss_that_is_not_finite() -> None:
    """Stop at a non-finite loss. fairseq continues as long as the gradient norm is finite.

    It then ends with a traceback and advice that does not fit this package. Its search for the layer at fault and its
    ``crash.pt``, the weights before the update, are kept.
    """
    wrap(Trainer, "train_step", _train_step)


def _train_step(step: Callable, trainer: Trainer, samples: list, *args, **kwargs) -> Any:
    try:
        logged = step(trainer, samples, *args, **kwargs)
    except FloatingPointError as error:
        raise UserError(_explanation(trainer, len(samples), error)) from error
    statistics = logged or {}
    # Without predicted tokens, fairseq's masked_lm logs 0 / 0.
    loss = statistics.get("loss", 0.0) if statistics.get("sample_size", 1) else 0.0
    if not math.isfinite(loss):
        raise UserError(_explanation(trainer, len(samples), FloatingPointError(f"the loss is {loss}")))
    return logged


def _explanation(trainer: Trainer, batches: int, error: FloatingPointError) -> str:
    """Return the error message: what happened and when, the state of the checkpoints, and options to change."""
    reason = first_line(error).rstrip(".")
    if reason.startswith("Minimum loss scale"):
        happened = "float16 overflowed repeatedly"
        remedy = "use --bf16 --reset-optimizer if the GPU supports it, otherwise try"
    elif reason.startswith("Fatal error: gradients are inconsistent") and not re.search(r"= *(nan|inf)", str(error)):
        return f"update {trainer.get_num_updates() + 1}: {reason.removeprefix('Fatal error: ')}"
    else:
        happened, remedy = "the loss or a gradient is not finite", "try"
    dataset, optimization = trainer.cfg.dataset, trainer.cfg.optimization
    a_batch = f"{dataset.batch_size} sequences" if dataset.batch_size else f"{dataset.max_tokens} tokens"
    processes = trainer.data_parallel_world_size
    return (
        f"update {trainer.get_num_updates() + 1}: {happened} ({reason}); the checkpoints in "
        f"{trainer.cfg.checkpoint.save_dir} were saved before that and are valid. The run had lr "
        f"{trainer.get_lr():.3g}, {processes} x {batches} x {a_batch} per update and --clip-norm "
        f"{optimization.clip_norm}; {remedy} a lower learning rate (--lr; in a sweep "
        "--learning-rates) or a longer --warmup-updates, a larger --update-freq, a smaller --clip-norm or another seed"
    )


def define_every_correlation() -> None:
    """Report a correlation of 0 where it is undefined: for fewer than two rows, and for constant scores.

    fairseq computes it for each batch, too. SciPy refuses a batch of one row, which ended in a traceback. Constant
    predictions gave NaN, which is neither above nor below any value, so the best checkpoint was lost.
    """
    wrap(sentence_prediction, "pearson_and_spearman", _correlations)


def _correlations(compute: Callable, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    if len(true) < 2 or np.ptp(predicted) == 0 or np.ptp(true) == 0:
        return {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}
    return compute(predicted, true)

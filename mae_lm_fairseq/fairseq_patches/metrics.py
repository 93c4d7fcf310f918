"""Patches of updates that fail, and of the numbers that fairseq logs: losses, and correlations that are undefined."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq.criterions import sentence_prediction
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, first_line


def stop_at_updates_that_fail() -> None:
    """Stop at a non-finite loss, and when a GPU is out of memory.

    fairseq continues with such a loss as long as the gradient norm is finite, and leaves out an update that does not
    fit into memory: every one, and without end, if none does. Its own errors end with a traceback and advice that does
    not fit this package. Its search for the layer at fault and its ``crash.pt``, the weights before the update, are
    kept.
    """
    wrap(Trainer, "train_step", _train_step)


def _train_step(step: Callable, trainer: Trainer, samples: list) -> Any:
    try:
        logged = step(trainer, samples, raise_oom=True)
    except FloatingPointError as error:
        raise UserError(_explanation(trainer, len(samples), error)) from error
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        raise UserError(_out_of_memory(trainer, error)) from error
    statistics = logged or {}
    # Without predicted tokens, fairseq's masked_lm logs 0 / 0.
    loss = statistics.get("loss", 0.0) if statistics.get("sample_size", 1) else 0.0
    if not math.isfinite(loss):
        raise UserError(_explanation(trainer, len(samples), FloatingPointError(f"the loss is {loss}")))
    return logged


def _out_of_memory(trainer: Trainer, error: RuntimeError) -> str:
    return (
        f"update {trainer.get_num_updates() + 1}: {first_line(error).rstrip('.')}; the checkpoints in "
        f"{trainer.cfg.checkpoint.save_dir} are valid. A batch has {_a_batch(trainer)}: use a smaller --batch-size or "
        "--max-tokens and a larger --update-freq, or --checkpoint-activations"
    )


def _a_batch(trainer: Trainer) -> str:
    dataset = trainer.cfg.dataset
    return f"{dataset.batch_size} sequences" if dataset.batch_size else f"{dataset.max_tokens} tokens"


def _explanation(trainer: Trainer, batches: int, error: FloatingPointError) -> str:
    """Return the error message: what happened and when, the state of the checkpoints, and options to change."""
    checkpoints, optimization = trainer.cfg.checkpoint.save_dir, trainer.cfg.optimization
    reason = first_line(error).rstrip(".")
    if reason.startswith("Minimum loss scale"):
        happened = "float16 overflowed repeatedly"
        remedy = (
            f"if the GPU supports it, use --bf16 --finetune-from-model {checkpoints}/checkpoint_last.pt with another "
            "--save-dir, otherwise try"
        )
    elif reason.startswith("Fatal error: gradients are inconsistent") and not re.search(r"= *(nan|inf)", str(error)):
        return f"update {trainer.get_num_updates() + 1}: {reason.removeprefix('Fatal error: ')}"
    else:
        happened, remedy = "the loss or a gradient is not finite", "try"
    clipping = "a smaller --clip-norm" if optimization.clip_norm else "--clip-norm 2"  # 0 is none
    processes = trainer.data_parallel_world_size
    return (
        f"update {trainer.get_num_updates() + 1}: {happened} ({reason}); the checkpoints in {checkpoints} were saved "
        f"before that and are valid. The run had lr {trainer.get_lr():.3g}, {processes} x {batches} x "
        f"{_a_batch(trainer)} per update and --clip-norm {optimization.clip_norm}; {remedy} a lower learning rate "
        f"(--lr; in a sweep, --learning-rates), a longer --warmup-updates, a larger --update-freq, {clipping} or "
        "another seed"
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

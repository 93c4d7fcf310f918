"""Patches of updates that fail, and of the numbers that fairseq logs: losses, and correlations that are undefined."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq.criterions import sentence_prediction
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.patching import patch
from mae_lm_fairseq.utils.errors import UserError, first_line

_MOST_EMPTY = 10
"""Updates in a row without a predicted token at which a training ends."""


@patch(Trainer, "train_step")
def stop_at_updates_that_fail(step: Callable, trainer: Trainer, samples: list) -> Any:
    """Stop at a non-finite loss, when a GPU is out of memory, and if nothing is predicted.

    fairseq continues with such a loss as long as the gradient norm is finite, and leaves out an update that does not
    fit into memory: every one, and without end, if none does. Its search for the layer at fault and its ``crash.pt``,
    the weights before the update, are kept. An update without predicted tokens changes little and may happen, but not
    ten times in a row, nor in all updates of a shorter training.
    """
    update = trainer.get_num_updates() + 1
    valid = f"the checkpoints in {trainer.cfg.checkpoint.save_dir} were saved before that and are valid"
    try:
        logged = step(trainer, samples, raise_oom=True)
        statistics = logged or {}
        loss = statistics.get("loss", 0.0)
        has_targets = statistics.get("sample_size", 1)  # without any, fairseq's masked_lm logs 0 / 0
        if has_targets and not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss}")
        trainer.empty_updates = 0 if has_targets else getattr(trainer, "empty_updates", 0) + 1
    except FloatingPointError as error:
        remedy = (
            "Try a lower --lr (in a sweep, --learning-rates), a longer --warmup-updates, a smaller --clip-norm, a "
            "larger --update-freq, --bf16 in place of --fp16, or another seed"
        )
        raise _failed(update, error, valid, remedy) from error
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        remedy = "Use a smaller --batch-size or --max-tokens and a larger --update-freq, or --checkpoint-activations"
        raise _failed(update, error, valid, remedy) from error
    max_update = trainer.cfg.optimization.max_update or _MOST_EMPTY
    if trainer.empty_updates == min(_MOST_EMPTY, max_update):
        raise UserError(
            f"no token was predicted in the last {trainer.empty_updates} updates, so nothing is learnt; raise "
            "--mask-prob, or check --mask-function"
        )
    return logged


def _failed(update: int, error: Exception, valid: str, remedy: str) -> UserError:
    problem = first_line(error).rstrip(".")
    return UserError(f"update {update} failed: {problem}; {valid}. {remedy}")


@patch(sentence_prediction, "pearson_and_spearman")
def define_every_correlation(compute: Callable, predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Report a correlation of 0 where it is undefined: for fewer than two rows, and for constant scores.

    fairseq also computes it for each batch. SciPy refuses a batch of one row, which ended in a traceback. Constant
    predictions gave NaN, which is neither above nor below any value, so the best checkpoint was lost.
    """
    is_defined = len(true) > 1 and np.ptp(predicted) != 0 and np.ptp(true) != 0
    if not is_defined:
        return {"pearson": 0.0, "spearmanr": 0.0, "corr": 0.0}
    return compute(predicted, true)

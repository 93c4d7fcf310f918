"""Patches of fairseq's data code."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fairseq.data import bucket_pad_length_dataset, data_utils, iterators
from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig
from fairseq.trainer import Trainer

from mae_lm_fairseq.fairseq_patches.hooks import TaskHooks
from mae_lm_fairseq.fairseq_patches.patching import patch, wrap
from mae_lm_fairseq.utils.errors import UserError, first_line


def restore_numpy_compat() -> None:
    """Restore what ``--sample-break-mode eos`` and ``--num-batch-buckets`` use and NumPy 2.4 removed."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)
    wrap(bucket_pad_length_dataset, "get_buckets", _buckets)


def _buckets(_get: Callable, sizes: Any, number: int) -> np.ndarray:
    percentages = np.linspace(0, 100, number + 1)
    bounds = np.percentile(sizes, percentages, method="lower")
    return np.unique(bounds[1:])


@patch(iterators, "_chunk_iterator")
def accumulate_batches_that_have_sequences(chunks: Callable, *args, **kwargs) -> Iterator[list]:
    """Normalise the last update of an epoch by all its predicted tokens, with several processes and ``--update-freq``.

    A process without a batch gets an empty one. If it is the last of the update's, fairseq counts none of the tokens of
    that process, while the gradients of its other batches stay in the sum: the update was too large.
    """
    for samples in chunks(*args, **kwargs):
        # All processes must exchange gradients, so one empty batch stays if there are no others.
        yield [sample for sample in samples if sample] or samples[:1]


@patch(Trainer, "get_train_iterator")
def check_splits(get: Callable, trainer: Trainer, epoch: int, *args, **kwargs) -> Any:
    """Load validation splits before training starts, and tell the task the update of the next batch.

    fairseq fails at the first validation, which is before the first checkpoint, if a validation split has no batch or
    sequences that are too long. The method ``number_batches`` of the task, if it has
    :class:`~mae_lm_fairseq.fairseq_patches.hooks.TaskHooks`, is called before the iterator begins.
    """
    if kwargs.get("load_dataset", True) and not trainer.cfg.dataset.disable_validation:
        for subset in trainer.cfg.dataset.valid_subset.split(","):
            trainer.get_valid_iterator(subset)
    iterator = get(trainer, epoch, *args, **kwargs)
    if isinstance(trainer.task, TaskHooks):
        batches_of_epochs = trainer.cfg.optimization.update_freq
        per_update = batches_of_epochs[min(epoch, len(batches_of_epochs)) - 1]
        trainer.task.number_batches(iterator, trainer.get_num_updates(), per_update)
    return iterator


@patch(data_utils, "raise_if_valid_subsets_unintentionally_ignored")
def report_splits_without_validation(check: Callable, cfg: Any) -> None:
    """Report a data-bin with a split such as ``valid1`` that ``--valid-subset`` does not name, without a traceback."""
    try:
        check(cfg)
    except ValueError as error:
        raise UserError(f"--valid-subset {cfg.dataset.valid_subset}: {first_line(error)}") from error


@patch(GPT2BPE, "__init__")
def name_missing_files_of_gpt2(read: Callable, bpe: GPT2BPE, cfg: GPT2BPEConfig) -> None:
    """Name the files of GPT-2's byte-level BPE that are missing, and the options for them.

    ``RobertaModel.from_pretrained`` assumes this tokenizer and downloads its files, also for a model with another one.
    Without a connection, or without the package ``requests``, that ended in a traceback about the download.
    """
    try:
        read(bpe, cfg)
    except (ImportError, OSError, ValueError) as error:
        raise UserError(
            f"bpe gpt2 cannot read {cfg.gpt2_encoder_json} and {cfg.gpt2_vocab_bpe}: {first_line(error)}; name the "
            "files that the data was encoded with (gpt2_encoder_json, gpt2_vocab_bpe), another tokenizer (bpe), or "
            "bpe=None for token ids alone"
        ) from error

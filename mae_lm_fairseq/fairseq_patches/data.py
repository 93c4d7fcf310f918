"""Patches of fairseq's data code."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fairseq.data import data_utils, iterators

from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, first_line


def restore_numpy_compat() -> None:
    """Restore ``np.compat.long``, which ``--sample-break-mode eos`` uses and NumPy 2.4 removed."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)


def explain_ignored_validation_subsets() -> None:
    """Report a data-bin with ``valid1``, ... that no option mentions, which ended in a traceback."""
    wrap(data_utils, "raise_if_valid_subsets_unintentionally_ignored", _check_valid_subsets)


def _check_valid_subsets(check: Callable, cfg: Any) -> None:
    try:
        check(cfg)
    except ValueError as error:
        raise UserError(first_line(error)) from None


def accumulate_batches_that_have_sequences() -> None:
    """Normalise the last update of an epoch by all its predicted tokens, with several processes and ``--update-freq``.

    A process without a batch gets an empty one. If it is the last of the update's, fairseq counts none of the tokens of
    that process, while the gradients of its other batches stay in the sum: the update was too large.
    """
    wrap(iterators, "_chunk_iterator", _batches_of_updates)


def _batches_of_updates(chunks: Callable, *args, **kwargs) -> Iterator[list]:
    for samples in chunks(*args, **kwargs):
        # All processes must exchange gradients, so one empty batch stays if there are no others.
        yield [sample for sample in samples if sample] or samples[:1]

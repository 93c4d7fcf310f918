"""Patches of fairseq's data code."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
from fairseq.data import data_utils

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

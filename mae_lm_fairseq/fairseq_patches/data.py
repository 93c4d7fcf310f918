"""Patches of fairseq's data code."""

import types

import numpy as np


def restore_numpy_compat() -> None:
    """``--sample-break-mode eos`` asks for ``np.compat.long``, which NumPy 2 no longer has (gone in 2.4)."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)

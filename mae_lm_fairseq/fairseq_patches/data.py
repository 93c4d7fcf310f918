"""Patches of fairseq's data code."""

import types

import numpy as np


def restore_numpy_compat() -> None:
    """Restore ``np.compat.long``, which ``--sample-break-mode eos`` uses and NumPy 2.4 removed."""
    if not hasattr(np, "compat"):
        np.compat = types.SimpleNamespace(long=int)

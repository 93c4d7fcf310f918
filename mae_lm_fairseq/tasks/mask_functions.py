"""Functions of ``--mask-function``: which tokens of a sequence are predicted, and what is in their place."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.registries import register_name


@dataclass(frozen=True)
class SequenceToMask:
    """A sequence, as a mask function gets it.

    Attributes:
        tokens: [length] int64, token ids, with ``<s>`` and ``</s>``.
        is_special: [length] bool, true at ``<s>`` and ``</s>``.
        rate: masking rate of the sequence: ``--mask-prob``, or what a schedule or range says.
        mask: id of ``[MASK]``.
        counts: [vocabulary] int64, how often each token is in the training text, as ``dict.txt`` says.
    """

    tokens: np.ndarray
    is_special: np.ndarray
    rate: float
    mask: int
    counts: np.ndarray


MaskFunction = Callable[[SequenceToMask, np.random.Generator], tuple[ArrayLike, ArrayLike]]
"""Returns the predicted positions [predicted], and the token ids in their place, [predicted] or the same for all.

It may depend on its arguments alone: the generator is seeded with seed, epoch and index of the sequence.
"""
MASK_FUNCTIONS: dict[str, MaskFunction] = {}
"""Values of ``--mask-function``."""


def register_mask_function(name: str, function: MaskFunction) -> None:
    """Make a function a value of ``--mask-function``, from a module of ``--user-dir``.

    Raises:
        UserError: if another function has the name.
    """
    register_name(MASK_FUNCTIONS, name, function)


def check_mask_function(name: str) -> None:
    """Raise a UserError if no function has the name."""
    if name not in MASK_FUNCTIONS:
        known = ", ".join(MASK_FUNCTIONS) or "none"
        raise UserError(f"--mask-function {name}: no function of this name is registered; --user-dir has {known}")

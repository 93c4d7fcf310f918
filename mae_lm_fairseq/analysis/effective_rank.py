"""How many directions a model's states really use."""

import torch
from torch import Tensor


def effective_rank(states: Tensor, share: float = 0.9) -> int:
    """The smallest k whose k largest squared singular values hold ``share`` of the sum of all of them.

    Args:
        states: ``[N, d]``, one state a row. They are not centred: the mean counts as a direction.
        share: of the sum of squares, in (0, 1].
    """
    energy = torch.linalg.svdvals(states.double()).square()
    held = energy.cumsum(0) / energy.sum()
    # Rounding must not ask for one more direction than hold everything.
    return int((held < share - 1e-9).sum()) + 1

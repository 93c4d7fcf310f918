"""Expansion of ``[MASK]`` tokens: k states each in place of one (ExLM, Zheng et al., ICML 2025, arXiv 2501.13397).

Every ``[MASK]`` enters the layers as k states at its position: state i is its embedding plus the i-th of k learned
*clone embeddings*. Attention over the longer sequence is as usual; :mod:`~mae_lm_fairseq.core.alignment` has the loss.

With ``mask_join="embeddings"``, the encoder's sequence is longer, as in the paper; with ``mask_join="decoder"``, only
the decoder's, which is this project's variant. What else differs from the paper and its code
(github.com/zhengkangjie/ExLM at ad50799):

- The paper rotates one half of each attention head by the position and the other by the clone number: 0 for tokens that
  are not expanded, else 1 to k. Here, all states of a ``[MASK]`` have its position, absolute and relative (T5), as in
  the other presets, and the clone number has an embedding. So the presets differ in the expansion alone, and the
  encoder keeps its stock counterpart.
- The code expands positions with a target, ``<s>`` and ``</s>``; ``<s>`` and ``</s>`` also in fine-tuning. Here,
  exactly the ``[MASK]`` tokens are expanded, ``<s>`` and ``</s>`` only where fairseq masks them. So predictions depend
  on the text alone, and text without ``[MASK]`` is encoded as by the other presets.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mae_lm_fairseq.core.packing import Layout, indices_in


class Expansion(NamedTuple):
    """A layout in which some positions have several states; N' states of N positions."""

    layout: Layout
    """The states. ``index`` and ``positions`` repeat those of an expanded position; ``width`` may exceed the longest
    row, because its exact value would need a synchronisation on GPUs."""
    source: Tensor
    """[N'] int64: index of each state's position in the packed positions."""
    clone: Tensor
    """[N'] int64: number of each state of an expanded position, from 1; 0 at other positions."""


def expand(whole: Layout, masked: Layout, clones: int) -> Expansion:
    """Give ``clones`` states, at least 2, to each position of ``masked``, and one to each of the others.

    All positions of ``masked`` are positions of ``whole``.
    """
    counts = torch.ones_like(whole.index).index_fill(0, indices_in(masked, whole), clones)
    ends = counts.cumsum(0)
    first = ends - counts
    more = clones - 1
    states = torch.arange(len(ends) + more * masked.index.numel(), device=ends.device)
    source = torch.searchsorted(ends, states, right=True)
    rank = states - first[source]
    clone = torch.where(counts[source] > 1, rank + 1, 0)

    lengths = whole.lengths + more * masked.lengths
    width = whole.width + more * masked.width
    row = whole.packed_rows()[source]
    row_starts = lengths.cumsum(0) - lengths
    slots = row * width + states - row_starts[row]
    positions = whole.positions[source]
    row_positions = positions.new_zeros(whole.rows * width).index_copy(0, slots, positions)
    layout = Layout(
        index=whole.index[source],
        positions=positions,
        slots=slots,
        lengths=lengths,
        row_positions=row_positions.view(whole.rows, width),
        rows=whole.rows,
        width=width,
        first=first,
    )
    return Expansion(layout, source, clone)


class PartialExpansion(NamedTuple):
    """The states of some of the expanded positions."""

    part: Expansion
    """The states of these positions."""
    whole: Expansion
    """The states of all positions."""
    part_in_whole: Tensor
    """int64: index of each state of the part among those of all positions."""


def expand_part(part: Layout, whole: Layout, masked: Layout, clones: int) -> PartialExpansion:
    """Return the states of ``part`` and of ``whole``, see :func:`expand`.

    All positions of ``masked`` are positions of ``part``, and these are positions of ``whole``.
    """
    part_states = expand(part, masked, clones)
    whole_states = expand(whole, masked, clones)
    first = whole_states.layout.first[indices_in(part, whole)]
    rank = (part_states.clone - 1).clamp(min=0)
    return PartialExpansion(part_states, whole_states, first[part_states.source] + rank)


class CloneEmbedding(nn.Module):
    """Expands hidden states, and adds a learned vector for the number of the clone.

    Args:
        clones: number of states of an expanded position.
        dim: hidden size.
    """

    def __init__(self, clones: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(clones, dim))

    def forward(self, states: Tensor, expansion: Expansion) -> Tensor:
        """Convert hidden states [N, dim] to [N', dim]."""
        embeddings = F.pad(self.weight, (0, 0, 1, 0))  # row 0 for positions that are not expanded
        return states.index_select(0, expansion.source) + embeddings.index_select(0, expansion.clone)

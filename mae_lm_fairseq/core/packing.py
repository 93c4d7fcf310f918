"""Ragged batches: layouts that select positions of a padded batch, and conversion between padded and packed tensors.

Symbols: B rows and T columns of the padded batch, N selected positions, W the most selected positions of a row. All
modules work on packed tensors [N, ...]; attention backends that need rows convert them to [B, W, ...].
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Layout(NamedTuple):
    """Selected positions of a [B, T] batch, row by row.

    A named tuple of tensors and integers. Code that moves batches to a device traverses tuples but drops the field
    names; :func:`restore` adds them again.
    """

    index: Tensor
    """[N] int64, ascending: index of each position in the flattened batch, ``row * T + column``."""
    positions: Tensor
    """[N] int64: position of each token in its sequence, from 0; padding is not counted."""
    slots: Tensor
    """[N] int64: index of each position in the flattened rows, ``row * W + rank in the row``."""
    lengths: Tensor
    """[B] int64: number of selected positions in each row."""
    row_positions: Tensor
    """[B, W] int64: ``positions`` in rows; [1, W] if all rows count 0, 1, 2, ..."""
    rows: int
    """B."""
    width: int
    """W."""
    first: Tensor | None = None
    """[number of positions] int64: index of the first state of each position, if some have several
    (:mod:`~mae_lm_fairseq.core.expansion`)."""

    @property
    def is_full(self) -> bool:
        """Whether the rows have no empty slots."""
        return self.index.numel() == self.rows * self.width

    def occupied(self) -> Tensor:
        """Return which slots of the rows are in use, [B, W] bool."""
        slots = torch.arange(self.width, device=self.lengths.device)
        return slots < self.lengths[:, None]

    def packed_rows(self) -> Tensor:
        """Return the row of each position, [N] int64."""
        return torch.div(self.slots, max(self.width, 1), rounding_mode="floor")


NEEDED_BY_SOME = frozenset({"visible", "masked", "decoded"})
"""Layouts that only some networks need."""


class BatchLayout(NamedTuple):
    """The layouts of one batch that the network needs; None in place of those that it does not."""

    sequence: Layout
    """All positions except padding."""
    visible: Layout | None
    """Positions that MAE-LM's encoder sees: all tokens except padding and ``[MASK]``, plus the early masks."""
    masked: Layout | None
    """Positions of ``[MASK]`` tokens."""
    predicted: Layout
    """Positions that have a target."""
    decoded: Layout | None
    """Positions of ``[MASK]`` tokens and predicted positions, for decoders that update only these."""
    visible_in_sequence: Tensor | None
    """[number visible] int64: index of each visible position in the packed sequence."""
    predicted_in_sequence: Tensor
    """[number predicted] int64: index of each predicted position in the packed sequence."""
    early_in_visible: Tensor | None
    """[number of early masks] int64: index of each early mask in the packed visible positions."""


def layout_of(present: Tensor, positions: Tensor, width: int | None = None) -> Layout:
    """Return the layout of the positions selected by ``present``.

    Args:
        present: [B, T] bool.
        positions: [B, T] int64, position of each token in its sequence.
        width: W, if it is more than the most selected positions of a row.
    """
    rows, length = present.shape
    index = present.flatten().nonzero().squeeze(1)
    lengths = present.sum(1)
    if width is None:
        width = int(lengths.max()) if rows else 0
    rank = present.cumsum(1) - 1
    row = torch.div(index, max(length, 1), rounding_mode="floor")
    slots = row * width + rank.flatten()[index]
    packed_positions = positions.flatten()[index]
    return Layout(
        index=index,
        positions=packed_positions,
        slots=slots,
        lengths=lengths,
        row_positions=_spread(packed_positions, slots, rows, width),
        rows=rows,
        width=width,
    )


def seen_masks(tokens: Tensor, mask: int, mask_in_encoder: float) -> Tensor:
    """Return which ``<mask>`` tokens the encoder sees, [B, T] bool: those at a fraction of the positions.

    These are the same in every text and every time, so that nothing depends on the other rows of a batch or on torch's
    random numbers, which training uses.

    Args:
        tokens: [B, T] int64 on the CPU.
    """
    draws = np.random.default_rng(0).random(tokens.shape[1])
    is_seen = torch.from_numpy(draws < mask_in_encoder)
    return tokens.eq(mask) & is_seen


def batch_layout(
    tokens: Tensor,
    is_predicted: Tensor,
    pad: int,
    mask: int,
    early_masks: Tensor | None = None,
    needs: frozenset[str] = NEEDED_BY_SOME,
    width: int | None = None,
) -> BatchLayout:
    """Return the layouts of a batch. Call it on CPU tensors: on a GPU, it synchronises with the device several times.

    Args:
        tokens: [B, T] int64, the corrupted input.
        is_predicted: [B, T] bool, positions with a target; padding is ignored.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        early_masks: [B, T] bool, ``[MASK]`` tokens that the encoder sees; None for none of them.
        needs: layouts to compute beside ``sequence`` and ``predicted``, a subset of :data:`NEEDED_BY_SOME`.
        width: W of all layouts; by default that of the batch, see :mod:`~mae_lm_fairseq.core.fixed_sizes`.
    """
    is_token = tokens.ne(pad)
    is_mask = tokens.eq(mask)
    is_early = torch.zeros_like(is_mask) if early_masks is None else is_mask & early_masks
    is_predicted = is_token & is_predicted
    positions = is_token.cumsum(1) - 1
    sequence = layout_of(is_token, positions, width)
    # Every row counts 0, 1, 2, ..., so all rows can share one row of positions and of position biases.
    sequence = sequence._replace(row_positions=_counted(sequence.width, tokens.device))
    predicted = layout_of(is_predicted, positions, width)

    visible = masked = decoded = None
    visible_in_sequence = early_in_visible = None
    if "visible" in needs:
        visible = layout_of(is_token & ~is_mask | is_early, positions, width)
        visible_in_sequence = indices_in(visible, sequence)
        early_in_visible = pack(is_early, visible).nonzero().squeeze(1)
    if "masked" in needs:
        masked = layout_of(is_mask, positions, width)
    if "decoded" in needs:
        decoded = layout_of(is_predicted | is_mask, positions, width)
    return BatchLayout(
        sequence=sequence,
        visible=visible,
        masked=masked,
        predicted=predicted,
        decoded=decoded,
        visible_in_sequence=visible_in_sequence,
        predicted_in_sequence=indices_in(predicted, sequence),
        early_in_visible=early_in_visible,
    )


def _counted(width: int, device: torch.device) -> Tensor:
    """Return positions 0, 1, 2, ... of a row that all rows share, [1, W]."""
    return torch.arange(width, device=device)[None]


def indices_in(part: Layout, whole: Layout) -> Tensor:
    """Return the index of each position of ``part`` in the packed positions of ``whole``, [N of part] int64."""
    return torch.searchsorted(whole.index, part.index)


def renumbered(layout: Layout) -> Layout:
    """Return the layout with positions 0, 1, 2, ... in each row, without gaps."""
    rank = layout.slots % max(layout.width, 1)
    return layout._replace(positions=rank, row_positions=_counted(layout.width, layout.slots.device))


def to_device(layout: tuple, device: torch.device) -> BatchLayout:
    """Return the layout with its tensors on a device."""

    def move(part):
        if isinstance(part, tuple):
            return tuple(map(move, part))
        return part.to(device) if isinstance(part, Tensor) else part

    return restore(move(layout))


def restore(layout: tuple) -> BatchLayout:
    """Return the :class:`BatchLayout` of a plain nested tuple, which is what moving a layout to a device returns."""
    parts = [Layout(*part) if isinstance(part, tuple) else part for part in layout]
    return BatchLayout(*parts)


def pack(batch: Tensor, layout: Layout) -> Tensor:
    """Convert [B, T, ...] to [N, ...]."""
    return batch.flatten(0, 1).index_select(0, layout.index)


def unpack(packed: Tensor, layout: Layout, length: int) -> Tensor:
    """Convert [N, ...] to [B, ``length``, ...], with zeros at all other positions.

    Where a position has several states, its first one is taken.
    """
    index = layout.index
    if layout.first is not None:
        packed = packed[layout.first]
        index = index[layout.first]
    return _spread(packed, index, layout.rows, length)


def to_rows(packed: Tensor, layout: Layout) -> Tensor:
    """Convert [N, ...] to [B, W, ...], with zeros in empty slots. Returns a view if the rows are full."""
    if layout.is_full:
        return packed.view(layout.rows, layout.width, *packed.shape[1:])
    return _spread(packed, layout.slots, layout.rows, layout.width)


def from_rows(rows: Tensor, layout: Layout) -> Tensor:
    """Convert [B, W, ...] to [N, ...], the inverse of :func:`to_rows`."""
    flat = rows.flatten(0, 1)
    return flat if layout.is_full else flat.index_select(0, layout.slots)


def _spread(packed: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
    shape = packed.shape[1:]
    flat = packed.new_zeros(rows * columns, *shape).index_copy(0, index, packed)
    return flat.view(rows, columns, *shape)

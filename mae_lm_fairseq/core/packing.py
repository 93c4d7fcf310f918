"""Ragged batches: which positions of a padded batch take part, and the ways between padded and packed.

Symbols: B rows, T columns of the padded batch, N positions that take part, W the longest row among them.
Everything but attention works on packed tensors [N, ...]; attention works on rows [B, W, ...].
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Some positions of a [B, T] batch, row after row.

    A named tuple of tensors and integers: what moves batches to a device understands tuples, but forgets the names,
    which :func:`restore` gives back.
    """

    index: Tensor
    """[N] int64, ascending: place of each position in the flattened batch, ``row * T + column``."""
    positions: Tensor
    """[N] int64: position of each in its own text, from 0; padding does not count."""
    slots: Tensor
    """[N] int64: place of each in the flattened rows, ``row * W + rank in the row``."""
    lengths: Tensor
    """[B] int64: how many positions of each row take part."""
    row_positions: Tensor
    """[B, W] int64 (or [1, W] where all rows count 0, 1, 2, ...): ``positions`` in rows."""
    rows: int
    """B."""
    width: int
    """W."""

    @property
    def is_full(self) -> bool:
        """Whether the rows have no empty slot."""
        return self.index.numel() == self.rows * self.width

    def occupied(self) -> Tensor:
        """[B, W] bool: which slots of the rows hold a position."""
        return torch.arange(self.width, device=self.lengths.device) < self.lengths[:, None]

    def packed_rows(self) -> Tensor:
        """[N] int64: the row of each position."""
        return torch.div(self.slots, max(self.width, 1), rounding_mode="floor")


class BatchLayout(NamedTuple):
    """The views of one batch that the network needs."""

    sequence: Layout
    """Every position that is not padding."""
    visible: Layout
    """What MAE-LM's encoder sees: the positions whose token is neither padding nor ``[MASK]``, and early masks."""
    masked: Layout
    """The positions whose token is ``[MASK]``."""
    predicted: Layout
    """The positions that have a target."""
    decoded: Layout
    """The masked and the predicted positions: what a decoder computes that leaves the others alone."""
    visible_in_sequence: Tensor
    """[number visible] int64: where each visible position stands in the packed sequence."""
    predicted_in_sequence: Tensor
    """[number predicted] int64: where each predicted position stands in the packed sequence."""
    early_in_visible: Tensor
    """[number of early masks] int64: where each of them stands among the packed visible positions."""


def layout_of(present: Tensor, positions: Tensor) -> Layout:
    """The layout of the positions marked in ``present``.

    Args:
        present: [B, T] bool.
        positions: [B, T] int64, position of each token in its own text.
    """
    rows, length = present.shape
    index = present.flatten().nonzero().squeeze(1)
    lengths = present.sum(1)
    width = int(lengths.max()) if rows else 0
    rank = present.cumsum(1) - 1
    row = torch.div(index, max(length, 1), rounding_mode="floor")
    slots = row * width + rank.flatten()[index]
    packed_positions = positions.flatten()[index]
    row_positions = packed_positions.new_zeros(rows * width).index_copy(0, slots, packed_positions)
    return Layout(index, packed_positions, slots, lengths, row_positions.view(rows, width), rows, width)


def batch_layout(
    tokens: Tensor, is_predicted: Tensor, pad: int, mask: int, early_masks: Tensor | None = None
) -> BatchLayout:
    """The views of a batch. To be called on a CPU: elsewhere it synchronises with the device several times.

    Args:
        tokens: [B, T] int64, the corrupted input.
        is_predicted: [B, T] bool, the positions with a target; padding never counts as one.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        early_masks: [B, T] bool, those ``[MASK]`` that the encoder sees; none where it is None.
    """
    is_token, is_mask = tokens.ne(pad), tokens.eq(mask)
    early = torch.zeros_like(is_mask) if early_masks is None else is_mask & early_masks
    positions = is_token.cumsum(1) - 1
    sequence = layout_of(is_token, positions)
    # Without holes every row counts 0, 1, 2, ...: one row of positions (and of position biases) serves all.
    sequence = sequence._replace(row_positions=torch.arange(sequence.width, device=tokens.device)[None])
    visible = layout_of(is_token & ~is_mask | early, positions)
    predicted = layout_of(is_token & is_predicted, positions)
    return BatchLayout(
        sequence,
        visible,
        masked=layout_of(is_mask, positions),
        predicted=predicted,
        decoded=layout_of(is_token & is_predicted | is_mask, positions),
        visible_in_sequence=places(visible, sequence),
        predicted_in_sequence=places(predicted, sequence),
        early_in_visible=pack(early, visible).nonzero().squeeze(1),
    )


def places(part: Layout, whole: Layout) -> Tensor:
    """[N of the part] int64: where each position of ``part`` stands among the packed positions of ``whole``."""
    return torch.searchsorted(whole.index, part.index)


def renumbered(layout: Layout) -> Layout:
    """The layout with its positions counted 0, 1, 2, ... in each row, whatever lies between them in the text."""
    return layout._replace(
        positions=layout.slots % max(layout.width, 1),
        row_positions=torch.arange(layout.width, device=layout.slots.device)[None],
    )


def to_device(layout: tuple, device: torch.device) -> BatchLayout:
    """The layout with its tensors on a device."""

    def move(part):
        if isinstance(part, tuple):
            return tuple(map(move, part))
        return part.to(device) if isinstance(part, Tensor) else part

    return restore(move(layout))


def restore(layout: tuple) -> BatchLayout:
    """A :class:`BatchLayout` from the plain nested tuple that moving it to a device leaves behind."""
    return BatchLayout(*(Layout(*part) if isinstance(part, tuple) else part for part in layout))


def pack(batch: Tensor, layout: Layout) -> Tensor:
    """[B, T, ...] -> [N, ...]."""
    return batch.flatten(0, 1).index_select(0, layout.index)


def unpack(packed: Tensor, layout: Layout, length: int) -> Tensor:
    """[N, ...] -> [B, ``length``, ...] with zeros at the positions that do not take part."""
    return _spread(packed, layout.index, layout.rows, length)


def to_rows(packed: Tensor, layout: Layout) -> Tensor:
    """[N, ...] -> [B, W, ...] with zeros in the empty slots; a view where there are none."""
    if layout.is_full:
        return packed.view(layout.rows, layout.width, *packed.shape[1:])
    return _spread(packed, layout.slots, layout.rows, layout.width)


def from_rows(rows: Tensor, layout: Layout) -> Tensor:
    """[B, W, ...] -> [N, ...]: undoes :func:`to_rows`."""
    flat = rows.flatten(0, 1)
    return flat if layout.is_full else flat.index_select(0, layout.slots)


def _spread(packed: Tensor, places: Tensor, rows: int, columns: int) -> Tensor:
    flat = packed.new_zeros(rows * columns, *packed.shape[1:]).index_copy(0, places, packed)
    return flat.view(rows, columns, *packed.shape[1:])

"""Hidden states of real tokens and of ``[MASK]`` in every layer of an encoder.

The text is encoded in several ways (:data:`INPUTS`). The compared tokens are the same each time: those that are not
masked in any of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.encoder import Encoder
from mae_lm_fairseq.core.packing import batch_layout, seen_masks, to_device
from mae_lm_fairseq.wrapped.encoder import WrappedEncoder

INPUTS = {
    "clean": "no [MASK] in the text",
    "as_trained": "text with [MASK], which the encoder sees as in pretraining",
    "forced": "text with [MASK], which passes through all layers of the encoder, unlike in pretraining",
}
"""The ways in which a text is encoded."""
TEXTS_AT_ONCE = 16


class MaskedBatch(NamedTuple):
    """A batch of texts, and the positions to mask."""

    tokens: Tensor
    """[B, T] int64, padded."""
    is_masked: Tensor
    """[B, T] bool."""


class LayerStates(NamedTuple):
    """Hidden states of a layer for a batch."""

    states: Tensor
    """[N, dim], of the positions that the layer computes."""
    index: Tensor
    """[N] int64, the index of each position in the flattened batch."""


class KindOfStates(NamedTuple):
    """A layer, how the text is encoded, and tokens; kinds are sorted as the rows of a profile."""

    layer: int
    """0 are the embeddings."""
    input: str
    """One of :data:`INPUTS`."""
    tokens: str
    """``real`` or ``mask``."""


class EncoderStates:
    """Hidden states of an encoder, always computed in evaluation mode.

    Args:
        encoder: the encoder; the decoder is not needed.
        mask_in_encoder: the fraction of ``<mask>`` tokens that the encoder saw in pretraining because of the option
            ``--mask-in-encoder``.
        without_masks: whether the model was trained without ``[MASK]``, so that only clean text is encoded.

    Attributes:
        inputs: the :data:`INPUTS` that differ for this encoder, "clean" first.
    """

    def __init__(
        self,
        encoder: Encoder | WrappedEncoder,
        pad: int,
        mask: int,
        mask_in_encoder: float = 0.0,
        *,
        without_masks: bool = False,
    ):
        self.encoder = encoder
        self.mask_in_encoder = mask_in_encoder
        self.pad = pad
        self.mask = mask
        self.layers = len(encoder.layers)
        self.dim = encoder.dim
        self.max_tokens = encoder.max_positions
        if without_masks:
            self.inputs = ("clean",)
        elif mask_in_encoder < 1 and "visible" in encoder.needs:
            self.inputs = tuple(INPUTS)
        else:
            self.inputs = ("clean", "as_trained")

    @torch.no_grad()
    def __call__(self, tokens: Tensor, see_masks: bool) -> list[LayerStates]:
        """Return the hidden states of the embeddings and every layer.

        Args:
            tokens: [B, T] int64 on the CPU.
            see_masks: whether every layer sees ``[MASK]``, from the embeddings on.
        """
        early = seen_masks(tokens, self.mask, 1.0 if see_masks else self.mask_in_encoder)
        device = self.encoder.embed_tokens.weight.device
        is_predicted = torch.zeros_like(tokens).bool()
        layout = to_device(batch_layout(tokens, is_predicted, self.pad, self.mask, early), device)
        was_training = self.encoder.training
        backend = self.encoder.attention_backend
        self.encoder.eval()
        if backend is AttentionBackend.fused:  # is for training only, in the precision in which it was compared
            self.encoder.attention_backend = AttentionBackend.sdpa
        try:
            states = self.encoder(tokens.to(device), layout)
        finally:
            self.encoder.train(was_training)
            self.encoder.attention_backend = backend
        layouts = self.encoder.layouts(layout)
        return [LayerStates(layer, seen.index.cpu()) for layer, seen in zip(states, layouts, strict=True)]


def mask_texts(
    texts: Sequence[list[int]], pad: int, special_ids: Sequence[int], mask_prob: float, seed: int, first: int = 0
) -> MaskedBatch:
    """Return texts as a batch, with masks that depend only on the seed and the number of the text.

    Args:
        special_ids: ids that are never masked.
        mask_prob: fraction of the other tokens to mask, rounded to a number of tokens.
        first: number of the first text.
    """
    tokens = torch.full((len(texts), max(map(len, texts))), pad)
    is_masked = torch.zeros_like(tokens).bool()
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        is_special = np.isin(text, list(special_ids))
        positions = np.flatnonzero(~is_special)
        count = round(mask_prob * len(positions))
        generator = np.random.default_rng((seed, first + row))
        masked = generator.choice(positions, count, replace=False)
        is_masked[row, masked] = True
    return MaskedBatch(tokens, is_masked)


def masked_batches(
    texts: Sequence[list[int]], pad: int, special_ids: Sequence[int], mask_prob: float, seed: int, first: int = 0
) -> list[MaskedBatch]:
    """Return texts in batches of :data:`TEXTS_AT_ONCE`, masked as by :func:`mask_texts`."""
    batches = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        batch_texts = texts[start : start + TEXTS_AT_ONCE]
        batches.append(mask_texts(batch_texts, pad, special_ids, mask_prob, seed, first + start))
    return batches


def layer_ranges(layers: int, bytes_per_layer: int, memory: int) -> Iterator[range]:
    """Yield ranges of layers, from the embeddings up, that need at most ``memory`` bytes, or are of one layer."""
    layers_at_once = max(1, memory // bytes_per_layer)
    numbers = range(layers + 1)
    for first in numbers[::layers_at_once]:
        yield numbers[first : first + layers_at_once]


def states_by_kind(encoder: EncoderStates, batch: MaskedBatch) -> Iterator[tuple[KindOfStates, Tensor]]:
    """Yield the hidden states [N, dim] of a batch, with their kind.

    Layers that do not see ``[MASK]`` yield no states for it. Real tokens are those that are never masked.
    """
    corrupted = batch.tokens.masked_fill(batch.is_masked, encoder.mask)
    is_masked = batch.is_masked.flatten()
    for input_name in encoder.inputs:
        is_clean = input_name == "clean"
        tokens = batch.tokens if is_clean else corrupted
        for layer, (states, index) in enumerate(encoder(tokens, see_masks=input_name == "forced")):
            is_mask = is_masked[index].to(states.device)
            yield KindOfStates(layer, input_name, "real"), states[~is_mask]
            if not is_clean and is_mask.any():
                yield KindOfStates(layer, input_name, "mask"), states[is_mask]

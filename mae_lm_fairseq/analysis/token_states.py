"""The states of real tokens and of ``[MASK]`` in every layer of an encoder, ours or a Hugging Face one.

The text goes through an encoder in several ways (:data:`INPUTS`). Compared are the same tokens every time: those that
are not masked in any of them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.encoder import Encoder
from mae_lm_fairseq.core.packing import batch_layout, to_device

INPUTS = {
    "clean": "no [MASK] in the text",
    "as_trained": "text with [MASK], which the encoder sees where and when it did in pretraining",
    "forced": "text with [MASK], which goes through the encoder from its embeddings on, though not in pretraining",
}
"""The ways in which a text goes through an encoder."""

TOKENS = ("real", "mask")
"""Whose states they are."""


class MaskedText(NamedTuple):
    """Some texts, and what of them is masked."""

    tokens: Tensor
    """[B, T] int64, padded."""
    is_masked: Tensor
    """[B, T] bool."""


class LayerStates(NamedTuple):
    """What a layer made of a batch."""

    states: Tensor
    """[N, dim] of the positions that the layer saw."""
    index: Tensor
    """[N] int64: place of each in the flattened batch."""


class StatesOf(Protocol):
    """An encoder that is looked into.

    Attributes:
        inputs: those of :data:`INPUTS` that differ for it, "clean" first.
        layers: how many layers it has, embeddings not counted.
        dim: its width.
        max_tokens: the longest text that it takes.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
    """

    inputs: tuple[str, ...]
    layers: int
    dim: int
    max_tokens: int
    pad: int
    mask: int

    def __call__(self, tokens: Tensor, see_masks: bool) -> list[LayerStates]:
        """What the embeddings and every layer make of ``[B, T]`` tokens on the CPU; ``see_masks`` from the start."""


class EncoderStates:
    """The states of an encoder of this package, in evaluation mode whatever mode it is in.

    Args:
        encoder: without its decoder, which takes no part.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        mask_in_encoder: share of the ``<mask>``s that the encoder saw in pretraining though it would not, of the
            option ``--mask-in-encoder``.
    """

    def __init__(self, encoder: Encoder, pad: int, mask: int, mask_in_encoder: float = 0.0):
        self.encoder = encoder
        self.mask_in_encoder = mask_in_encoder
        self.pad, self.mask = pad, mask
        self.layers = len(encoder.layers)
        self.dim = encoder.embed_tokens.embedding_dim
        self.max_tokens = encoder.embed_positions.max_positions
        is_forced_new = mask_in_encoder < 1 and self._leaves_masks_out()
        self.inputs = tuple(INPUTS) if is_forced_new else ("clean", "as_trained")

    def _leaves_masks_out(self) -> bool:
        lone_mask = torch.tensor([[self.mask]])
        layout = batch_layout(lone_mask, torch.zeros_like(lone_mask).bool(), self.pad, self.mask)
        return self.encoder.layouts(layout)[0].index.numel() == 0

    @torch.no_grad()
    def __call__(self, tokens: Tensor, see_masks: bool) -> list[LayerStates]:
        # Drawn apart from torch's numbers, which training uses, and the same every time.
        drawn = torch.from_numpy(np.random.default_rng(0).random(tokens.shape))
        early = tokens.eq(self.mask) & (drawn < (1 if see_masks else self.mask_in_encoder))
        device = self.encoder.embed_tokens.weight.device
        layout = to_device(batch_layout(tokens, torch.zeros_like(tokens).bool(), self.pad, self.mask, early), device)
        was_training = self.encoder.training
        self.encoder.eval()
        states = self.encoder(tokens.to(device), layout)
        self.encoder.train(was_training)
        layouts = self.encoder.layouts(layout)
        return [LayerStates(layer, seen.index.cpu()) for layer, seen in zip(states, layouts, strict=True)]


class HuggingFaceStates:
    """The states of an encoder that ``transformers.AutoModel`` loaded, in evaluation mode.

    Args:
        model: in evaluation mode.
        mask: id of its tokenizer's mask token.
    """

    inputs = ("clean", "as_trained")

    def __init__(self, model: nn.Module, pad: int, mask: int):
        self.model = model
        self.pad, self.mask = pad, mask
        config = model.config
        self.layers, self.dim = config.num_hidden_layers, config.hidden_size
        # RoBERTa and MPNet count their positions from behind the padding's.
        offset = 0 if config.model_type == "bert" else pad + 1
        self.max_tokens = config.max_position_embeddings - offset

    @torch.no_grad()
    def __call__(self, tokens: Tensor, see_masks: bool) -> list[LayerStates]:
        is_token = tokens.ne(self.pad)
        output = self.model(
            tokens.to(self.model.device),
            attention_mask=is_token.long().to(self.model.device),
            output_hidden_states=True,
        )
        index = is_token.flatten().nonzero().squeeze(1)
        places = index.to(self.model.device)
        return [LayerStates(layer.flatten(0, 1).index_select(0, places), index) for layer in output.hidden_states]


def mask_texts(
    texts: Sequence[list[int]], pad: int, keep: Sequence[int], mask_prob: float, seed: int, first: int = 0
) -> MaskedText:
    """Texts as a batch, with what of them is masked drawn from the seed and the number of the text.

    Args:
        texts: ids.
        pad: id of ``<pad>``.
        keep: ids of the special tokens, which are not masked.
        mask_prob: share of the other tokens that is masked; what is left of a token is rounded.
        seed: of the draw.
        first: the number of the first text.
    """
    tokens = torch.full((len(texts), max(map(len, texts))), pad)
    is_masked = torch.zeros_like(tokens).bool()
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = torch.tensor(text)
        places = np.flatnonzero(~np.isin(text, list(keep)))
        generator = np.random.default_rng((seed, first + row))
        is_masked[row, generator.choice(places, round(mask_prob * len(places)), replace=False)] = True
    return MaskedText(tokens, is_masked)


def states_by_kind(encoder: StatesOf, text: MaskedText) -> Iterator[tuple[str, str, int, Tensor]]:
    """Input, tokens ("real" or "mask"), number of the layer (0: embeddings), and states ``[N, dim]``.

    A layer that does not see ``[MASK]`` gives none for it. Real tokens are those that are never masked.
    """
    corrupted = text.tokens.masked_fill(text.is_masked, encoder.mask)
    is_masked = text.is_masked.flatten()
    for kind in encoder.inputs:
        tokens = text.tokens if kind == "clean" else corrupted
        for number, (states, index) in enumerate(encoder(tokens, see_masks=kind == "forced")):
            masked = is_masked[index].to(states.device)
            yield kind, "real", number, states[~masked]
            if kind != "clean" and masked.any():
                yield kind, "mask", number, states[masked]

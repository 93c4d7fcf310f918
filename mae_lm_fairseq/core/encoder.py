"""Encoders: the part of the network that is kept after pretraining.

All encoders have the same weights, but for the clone embeddings of ExLM; they differ in where ``[MASK]`` tokens join,
and in how many states they have. An encoder takes the tokens and the layout of a batch and returns packed hidden
states: of the embeddings, then of every layer, the encoder's output last.
``layouts`` returns the positions that each of them belongs to, and ``needs`` names the layouts that it reads, see
:func:`~mae_lm_fairseq.core.packing.batch_layout`. :func:`build_encoder` selects the encoder.
"""

from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.core.expansion import CloneEmbedding, expand
from mae_lm_fairseq.core.packing import BatchLayout, Layout, pack, renumbered
from mae_lm_fairseq.core.transformer import Embedding, PositionEmbedding, TransformerStack


class Encoder(TransformerStack):
    """Encoder of vanilla MLM (BERT, RoBERTa): ``[MASK]`` is an ordinary token and passes through all layers."""

    needs: frozenset[str] = frozenset()

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        self.dim, self.max_positions = config.encoder.dim, config.max_positions
        super().__init__(config.encoder, PositionEmbedding(self.max_positions, self.dim, pad))
        self.embed_tokens = Embedding(vocab_size, config.encoder.dim, padding_idx=pad)

    def mask_embedding(self, mask: int) -> Tensor:
        """Return the embedding [dim] of ``[MASK]``, from which a decoder starts."""
        return self.embed_tokens.weight[mask]

    def layouts(self, layout: BatchLayout) -> list[Layout]:
        """Return the positions that the hidden states of the embeddings and of every layer belong to."""
        return [self.seen(layout)] * (len(self.layers) + 1)

    def seen(self, layout: BatchLayout) -> Layout:
        """Return the positions that enter the first layer."""
        return layout.sequence

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        """Encode [B, T] int64 tokens; return packed hidden states [N, dim] of the embeddings and of every layer."""
        seen = self.seen(layout)
        states = self.embed_tokens(pack(tokens, seen))
        states = self.embed(states, seen)
        return self.with_output_norm(self.run(list(self.layers), states, seen))

    def run(self, layers: list[nn.Module], states: Tensor, layout: Layout) -> list[Tensor]:
        """Return ``states`` [N, dim], followed by the output of each of ``layers``."""
        pattern = self.pattern(layout, layout)
        hidden_states = [states]
        for layer in layers:
            states = self.apply_layer(layer, states, pattern)
            hidden_states.append(states)
        return hidden_states

    def with_output_norm(self, states: list[Tensor]) -> list[Tensor]:
        """Return the hidden states of all layers, with layer norm of the last one in pre-norm."""
        *below, last = states
        return [*below, self.output_layer_norm(last)]


class VisibleEncoder(Encoder):
    """Encoder of MAE-LM and 3ML: sees the visible tokens only, at their original positions.

    The computation saved is the fraction of ``[MASK]`` tokens.
    """

    needs = frozenset({"visible"})

    def seen(self, layout: BatchLayout) -> Layout:
        return layout.visible


class RenumberingEncoder(VisibleEncoder):
    """Ablation of MAE-LM with misaligned positions: visible tokens are numbered 0, 1, 2, ..."""

    def seen(self, layout: BatchLayout) -> Layout:
        return renumbered(layout.visible)


class ExpandedEncoder(Encoder):
    """Encoder of ExLM: every ``[MASK]`` passes through the layers as several states."""

    needs = frozenset({"masked"})

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__(config, vocab_size, pad)
        self.clones = config.mask_states
        self.embed_clones = CloneEmbedding(self.clones, config.encoder.dim)

    def seen(self, layout: BatchLayout) -> Layout:
        return expand(layout.sequence, layout.masked, self.clones).layout

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        expansion = expand(layout.sequence, layout.masked, self.clones)
        states = self.embed_tokens(pack(tokens, layout.sequence))
        states = self.embed_clones(states, expansion)
        states = self.embed(states, expansion.layout)
        return self.with_output_norm(self.run(list(self.layers), states, expansion.layout))


class MaskLaterEncoder(Encoder):
    """Encoder of 3ML's analysis: ``[MASK]`` tokens join between two layers.

    Layers below the join see the visible tokens only. Layers above it see all tokens, where each ``[MASK]`` starts from
    its embedding, position included. Only the layers below the join save computation.
    """

    needs = frozenset({"visible"})

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__(config, vocab_size, pad)
        self.join_layer = config.layers_before_masks

    def layouts(self, layout: BatchLayout) -> list[Layout]:
        above = len(self.layers) - self.join_layer
        return [layout.visible] * (self.join_layer + 1) + [layout.sequence] * above

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        sequence, visible_in_sequence = layout.sequence, layout.visible_in_sequence
        layers = list(self.layers)
        embedded = self.embed_tokens(pack(tokens, sequence))
        embedded = self.embed(embedded, sequence)
        visible = embedded.index_select(0, visible_in_sequence)
        below = self.run(layers[: self.join_layer], visible, layout.visible)
        encoded = below[-1].to(embedded.dtype)
        joined = embedded.index_copy(0, visible_in_sequence, encoded)
        _, *above = self.run(layers[self.join_layer :], joined, sequence)
        return self.with_output_norm(below + above)


def build_encoder(config: MaskedAutoencoderConfig, vocab_size: int, pad: int) -> Encoder:
    """Build the encoder for a configuration."""
    encoders = {
        MaskJoin.embeddings: Encoder if config.mask_states == 1 else ExpandedEncoder,
        MaskJoin.encoder: MaskLaterEncoder,
        MaskJoin.decoder: RenumberingEncoder if config.renumber_visible else VisibleEncoder,
    }
    return encoders[config.mask_join](config, vocab_size, pad)

"""The encoders: the part that stays after pretraining. They differ in when they see ``[MASK]``, not in their weights.

An encoder is called with the tokens of a batch and its layout, and returns the packed states of the embeddings and of
every layer, the encoder's output last; ``layouts`` says which positions each of them belongs to.
:func:`build_encoder` chooses one.
"""

from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, MaskJoin
from mae_lm_fairseq.core.packing import BatchLayout, Layout, pack, renumbered
from mae_lm_fairseq.core.transformer import PositionEmbedding, TransformerStack


class Encoder(TransformerStack):
    """Vanilla MLM's (BERT, RoBERTa): ``[MASK]`` is a token like any other, and goes through all layers."""

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__(config.encoder, PositionEmbedding(config.max_positions, config.encoder.dim, pad))
        self.embed_tokens = nn.Embedding(vocab_size, config.encoder.dim, padding_idx=pad)

    def layouts(self, layout: BatchLayout) -> list[Layout]:
        """The positions of the embeddings and of every layer's states."""
        return [self.seen(layout)] * (len(self.layers) + 1)

    def seen(self, layout: BatchLayout) -> Layout:
        """The positions that go in."""
        return layout.sequence

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        """[B, T] int64 -> packed states [N, dim], one after the embeddings and one after every layer."""
        seen = self.seen(layout)
        return self.run(list(self.layers), self.embed(self.embed_tokens(pack(tokens, seen)), seen), seen)

    def run(self, layers: list[nn.Module], states: Tensor, layout: Layout) -> list[Tensor]:
        """The states [N, dim] of a layout, and what they become in each of some layers."""
        hidden_states, pattern = [states], self.pattern(layout, layout)
        for layer in layers:
            hidden_states.append(self.apply_layer(layer, hidden_states[-1], pattern))
        return hidden_states


class VisibleEncoder(Encoder):
    """MAE-LM's and 3ML's: no ``[MASK]`` goes in. What is visible keeps its original positions.

    It costs as much less as is masked.
    """

    def seen(self, layout: BatchLayout) -> Layout:
        return layout.visible


class RenumberingEncoder(Encoder):
    """MAE-LM's with misaligned positions (an ablation): what is visible is numbered 0, 1, 2, ..."""

    def seen(self, layout: BatchLayout) -> Layout:
        return renumbered(layout.visible)


class MaskLaterEncoder(Encoder):
    """The one of 3ML's analysis: ``[MASK]`` joins between two layers.

    The layers below see what is visible; those above see everything, a ``[MASK]`` as the embeddings left it, with its
    position. It costs less by what is masked in the layers below.
    """

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__(config, vocab_size, pad)
        self.join_layer = config.layers_before_masks

    def layouts(self, layout: BatchLayout) -> list[Layout]:
        above = len(self.layers) - self.join_layer
        return [layout.visible] * (self.join_layer + 1) + [layout.sequence] * above

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        sequence, layers = layout.sequence, list(self.layers)
        embedded = self.embed(self.embed_tokens(pack(tokens, sequence)), sequence)
        visible = embedded.index_select(0, layout.visible_in_sequence)
        below = self.run(layers[: self.join_layer], visible, layout.visible)
        joined = embedded.index_copy(0, layout.visible_in_sequence, below[-1])
        _, *above = self.run(layers[self.join_layer :], joined, sequence)
        return below + above


def build_encoder(config: MaskedAutoencoderConfig, vocab_size: int, pad: int) -> Encoder:
    """The encoder that a configuration asks for."""
    encoders = {
        MaskJoin.embeddings: Encoder,
        MaskJoin.encoder: MaskLaterEncoder,
        MaskJoin.decoder: RenumberingEncoder if config.renumber_visible else VisibleEncoder,
    }
    return encoders[config.mask_join](config, vocab_size, pad)

"""The encoder: the part that stays after pretraining. In MAE-LM it never sees ``[MASK]``."""

from torch import Tensor, nn

from .config import MaskedAutoencoderConfig
from .packing import Layout
from .transformer import TransformerStack


class Encoder(TransformerStack):
    """Token embeddings and a stack of transformer layers, over packed tokens."""

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int):
        super().__init__(
            config, config.encoder_layers, config.dropout, config.attention_dropout, config.relative_buckets, pad
        )
        self.embed_tokens = nn.Embedding(vocab_size, config.encoder_embed_dim, padding_idx=pad)

    def forward(self, tokens: Tensor, layout: Layout) -> list[Tensor]:
        """States of the given tokens.

        Args:
            tokens: [N] int64, the packed tokens of ``layout``; visible ones keep their original positions.

        Returns:
            the packed states [N, dim] of the embeddings and of every layer, the encoder's output last.
        """
        hidden_states = [self.embed(self.embed_tokens(tokens), layout)]
        pattern = self.pattern(layout, layout)
        for layer in self.layers:
            hidden_states.append(self.apply_layer(layer, hidden_states[-1], pattern))
        return hidden_states

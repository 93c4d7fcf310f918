"""The masked autoencoder: encode what is visible, decode, predict what is masked."""

from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, RelativeBiasInit
from mae_lm_fairseq.core.decoder import build_decoder
from mae_lm_fairseq.core.encoder import build_encoder
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.core.packing import BatchLayout, Layout
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from mae_lm_fairseq.core.transformer import TransformerStack


class MaskedAutoencoder(nn.Module):
    """Masked language model in which one knob says where ``[MASK]`` joins.

    After the encoder it is MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060) or 3ML (Liao et al., Findings of EMNLP
    2022, arXiv 2211.04898); at the embeddings it is the vanilla MLM of BERT and RoBERTa, and in between what 3ML's
    analysis looks at, all made of the same parts.

    Args:
        config: the shape of the network.
        vocab_size: number of tokens, special ones included.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
    """

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int, mask: int):
        super().__init__()
        self.config = config
        self.mask = mask
        self.encoder = build_encoder(config, vocab_size, pad)
        self.decoder = build_decoder(config, pad, self.encoder.embed_positions)
        self.lm_head = LMHead(config.encoder_embed_dim, self.encoder.embed_tokens)
        initialise(self, config)

    def forward(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Logits of the predicted positions.

        Args:
            tokens: [B, T] int64, the corrupted text.
            layout: the batch's layout, see :func:`~mae_lm_fairseq.core.packing.batch_layout`.

        Returns:
            [number predicted, vocabulary], in the order of ``layout.predicted``.
        """
        states = self.encode(tokens, layout)
        return self.predict(states[-1], layout)

    def encode(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        """Packed states [N, dim] of the tokens that the encoder sees: of the embeddings and of every layer.

        Which those are, :meth:`encoder_layouts` tells.

        Raises:
            ValueError: a text is longer than the position table.
        """
        if layout.sequence.width > self.config.max_positions:
            raise ValueError(
                f"a text of {layout.sequence.width} tokens is longer than --max-positions {self.config.max_positions}"
            )
        return self.encoder(tokens, layout)

    def decode(self, states: Tensor, layout: BatchLayout) -> Tensor:
        """Packed states [number predicted, dim] of the predicted positions, from the encoder's output."""
        return self.decoder(states, self.encoder.embed_tokens.weight[self.mask], layout)

    def predict(self, states: Tensor, layout: BatchLayout) -> Tensor:
        """Logits [number predicted, vocabulary], from the encoder's output."""
        return self.lm_head(self.decode(states, layout))

    def masked_states(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Packed states [number predicted, dim] from which the head predicts."""
        return self.decode(self.encode(tokens, layout)[-1], layout)

    def drop_prediction(self):
        """Leave nothing but the encoder: no decoder and no head, as for fine-tuning."""
        self.decoder = self.lm_head = None

    def encoder_layouts(self, layout: BatchLayout) -> list[Layout]:
        """The positions of a batch that each of the states of :meth:`encode` belongs to."""
        return self.encoder.layouts(layout)

    def stacks(self) -> list[TransformerStack]:
        """The encoder, and the decoder if it has layers."""
        return [part for part in (self.encoder, self.decoder) if isinstance(part, TransformerStack)]


def initialise(model: nn.Module, config: MaskedAutoencoderConfig):
    """BERT's initialisation: normal weights and embeddings, zero biases and padding, unit layer norms.

    Nothing is done on the meta device, where a network waits for weights that it is going to be given.
    """
    if next(model.parameters()).is_meta:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | RelativePositionBias):
            nn.init.normal_(module.weight, std=config.init_std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
        if isinstance(module, RelativePositionBias) and config.relative_bias_init is RelativeBiasInit.neighbours:
            module.lean_towards_neighbours()

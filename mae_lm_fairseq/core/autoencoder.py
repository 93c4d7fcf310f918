"""The masked autoencoder: encode the visible tokens, decode, predict the masked ones."""

from collections.abc import Iterable

from torch import Tensor, nn

from mae_lm_fairseq.core.alignment import AlignmentHead, Transitions
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, RelativeBiasInit
from mae_lm_fairseq.core.decoder import build_decoder
from mae_lm_fairseq.core.encoder import build_encoder
from mae_lm_fairseq.core.expansion import CloneEmbedding
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.core.packing import BatchLayout, Layout, unpack
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from mae_lm_fairseq.core.transformer import TransformerStack


class MaskedAutoencoder(nn.Module):
    """Masked language model, configurable in where ``[MASK]`` tokens join the network.

    ``mask_join="decoder"`` gives MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060) or 3ML (Liao et al., Findings of
    EMNLP 2022, arXiv 2211.04898), ``"embeddings"`` the vanilla MLM of BERT and RoBERTa, and ``"encoder"`` the models of
    3ML's analysis, which lie in between. With ``mask_states`` above 1, the ``[MASK]`` tokens are expanded where they
    join, and the loss is that of ExLM (Zheng et al., ICML 2025, arXiv 2501.13397), see
    :mod:`~mae_lm_fairseq.core.expansion` and :mod:`~mae_lm_fairseq.core.alignment`. All share the same building blocks.

    Args:
        config: configuration of the network.
        vocab_size: number of tokens, special tokens included.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
    """

    def __init__(self, config: MaskedAutoencoderConfig, vocab_size: int, pad: int, mask: int):
        super().__init__()
        self.config = config
        self.mask = mask
        # The decoder draws its weights last, and before it what only some heads and encoders have: networks of the same
        # sizes start from the same weights in encoder and head if they have the same seed, so that a comparison is
        # paired.
        encoder = build_encoder(config, vocab_size, pad)
        clones = [module for module in encoder.modules() if isinstance(module, CloneEmbedding)]
        initialise((module for module in encoder.modules() if module not in clones), config)
        head_type = LMHead if config.mask_states == 1 else AlignmentHead
        lm_head = head_type(config, encoder.embed_tokens)
        initialise([*lm_head.modules(), *clones], config)
        decoder = build_decoder(config, pad, encoder.embed_positions)
        initialise((module for module in decoder.modules() if module is not encoder.embed_positions), config)
        self.encoder = encoder
        self.decoder = decoder
        self.lm_head = lm_head

    def forward(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Return the logits at the predicted positions.

        Args:
            tokens: [B, T] int64, the corrupted tokens.
            layout: layout of the batch, see :func:`~mae_lm_fairseq.core.packing.batch_layout`.

        Returns:
            [number predicted, vocabulary], in the order of ``layout.predicted``.
        """
        states = self.encode(tokens, layout)
        return self.predict(states[-1], layout)

    def encode(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        """Return the encoder's packed hidden states [N, dim]: of the embeddings, then of every layer.

        :meth:`encoder_layouts` returns the positions that they belong to.

        Raises:
            ValueError: if a sequence is longer than the position table.
        """
        if layout.sequence.width > self.config.max_positions:
            raise ValueError(
                f"a sequence of {layout.sequence.width} tokens is longer than max_positions {self.config.max_positions}"
            )
        return self.encoder(tokens, layout)

    def decode(self, states: Tensor, layout: BatchLayout) -> Tensor:
        """Return what the head predicts from, given the encoder's output: see :mod:`~mae_lm_fairseq.core.decoder`."""
        return self.decoder(states, self.encoder.mask_embedding(self.mask), layout)

    def predict(self, states: Tensor, layout: BatchLayout) -> Tensor:
        """Return the logits [number predicted, vocabulary], from the encoder's output."""
        return self.lm_head(self.decode(states, layout), layout)

    def predicted_states(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Return the packed hidden states that the language model head predicts from."""
        return self.decode(self.encode(tokens, layout)[-1], layout)

    def drop_prediction(self):
        """Remove the decoder and the language model head, as for fine-tuning."""
        self.decoder = self.lm_head = None

    def encoder_layouts(self, layout: BatchLayout) -> list[Layout]:
        """Return the positions of each of the hidden states that :meth:`encode` returns."""
        return self.encoder.layouts(layout)

    def unpack_states(self, states: list[Tensor], layout: BatchLayout, length: int) -> list[Tensor]:
        """Convert hidden states of :meth:`encode` to [B, ``length``, dim] each, with zeros at the other positions."""
        layouts = self.encoder_layouts(layout)
        return [unpack(*layer, length) for layer in zip(states, layouts, strict=True)]

    def needs(self) -> frozenset[str]:
        """Return which layouts of a batch the network reads, see :func:`~mae_lm_fairseq.core.packing.batch_layout`."""
        return self.encoder.needs if self.decoder is None else self.encoder.needs | self.decoder.needs

    def stacks(self) -> list[TransformerStack]:
        """Return the encoder and, if it has layers, the decoder."""
        return [part for part in (self.encoder, self.decoder) if isinstance(part, TransformerStack)]


def initialise(modules: Iterable[nn.Module], config: MaskedAutoencoderConfig):
    """Apply BERT's initialisation: normal weights and embeddings, zero biases and padding, unit layer norms.

    Does nothing on the meta device, where the network only waits for weights to be loaded.
    """
    for module in modules:
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            return
        if isinstance(module, nn.Linear | nn.Embedding | RelativePositionBias | CloneEmbedding):
            nn.init.normal_(module.weight, std=config.init_std)
        if isinstance(module, Transitions):
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=config.init_std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])
        if isinstance(module, RelativePositionBias) and config.relative_bias_init is RelativeBiasInit.neighbours:
            module.lean_towards_neighbours()

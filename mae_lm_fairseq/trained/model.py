"""A trained network with its heads: what loading gives, and what fairseq trains. Plain PyTorch."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.attention_backends import fastest_backend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.fixed_sizes import NO_DUMMIES, Counts
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, to_device, unpack


class TrainedModel(nn.Module):
    """A network and the heads that fine-tuning has added.

    Attributes:
        autoencoder: the network.
        classification_heads: heads by name; none before fine-tuning.
        pad: id of ``<pad>``.
        mask: id of ``<mask>``.
        dictionary: fingerprint of the dictionary.
    """

    def __init__(self, autoencoder: MaskedAutoencoder, pad: int, mask: int, dictionary: str | None = None):
        super().__init__()
        self.autoencoder = autoencoder
        self.classification_heads = nn.ModuleDict()
        self.pad = pad
        self.mask = mask
        self.dictionary = dictionary

    def masked_loss(
        self, src_tokens: Tensor, layout: BatchLayout, targets: Tensor, loss_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the head's summed loss of the predicted tokens, without materialising all logits.

        Args:
            src_tokens: [B, T] int64.
            layout: layout of the batch, which masked_autoencoder_lm adds to its batches.
            targets: [number predicted] int64; negative at dummies, which have no loss.
            loss_weights: [number predicted] float32, the factor of each position's loss; None if all are 1.

        Returns:
            The loss in nats, and the number of correct predictions or None, see :class:`AlignmentHead`.
        """
        self.resolve_backend(src_tokens.device)
        with self._precision(src_tokens):
            predicted_states = self.autoencoder.predicted_states(src_tokens, layout)
            return self.autoencoder.lm_head.loss(predicted_states, targets, layout, loss_weights)

    def encoder_tokens(self, layout: BatchLayout, dummies: Counts = NO_DUMMIES) -> float:
        """Return the number of tokens that the encoder sees, mean over its layers, without the dummies of the batch."""
        seen = []
        for layer in self.autoencoder.encoder_layouts(layout)[1:]:
            dummies_seen = dummies.tokens if layer is layout.sequence else dummies.visible
            seen.append(layer.index.numel() - dummies_seen)
        return sum(seen) / len(seen)

    def predicted_logits(
        self, src_tokens: Tensor, layout: BatchLayout, return_all_hiddens: bool = False
    ) -> tuple[Tensor, dict]:
        """Compute the logits [number predicted, vocabulary] of the predicted positions.

        The returned dictionary has :meth:`encoder_tokens` and, with ``return_all_hiddens``, ``inner_states`` as in
        :meth:`extract_features`.
        """
        self.resolve_backend(src_tokens.device)
        with self._precision(src_tokens):
            states = self.autoencoder.encode(src_tokens, layout)
            logits = self.autoencoder.predict(states[-1], layout)
        return logits, self._extra(states, layout, src_tokens, return_all_hiddens)

    def token_logits(
        self,
        src_tokens: Tensor,
        masked_tokens: Tensor | None = None,
        early_masks: Tensor | None = None,
        return_all_hiddens: bool = False,
    ) -> tuple[Tensor, dict]:
        """Compute the logits of a batch without a layout. Computing the layout costs one synchronisation on a GPU.

        Args:
            src_tokens: [B, T] int64.
            masked_tokens: [B, T] bool, the positions to predict; None for all positions.
            early_masks: [B, T] bool, ``<mask>`` tokens that the encoder sees (``--mask-in-encoder``); None for none of
                them.
            return_all_hiddens: also return the hidden states of all encoder layers.

        Returns:
            Logits [number of masked_tokens, vocabulary], or [B, T, vocabulary] without ``masked_tokens``; zero at
            padding. And the dictionary of :meth:`predicted_logits`.
        """
        layout = self.layout_of(src_tokens, masked_tokens, early_masks)
        logits, extra = self.predicted_logits(src_tokens, layout, return_all_hiddens)
        return self._in_place(logits, layout, masked_tokens, src_tokens.shape[1]), extra

    def extract_features(self, src_tokens: Tensor, return_all_hiddens: bool = False, **unused) -> tuple[Tensor, dict]:
        """Compute the encoder's output [B, T, dim], zero at padding and, in MAE-LM, at ``<mask>``.

        With ``return_all_hiddens``, the dictionary has ``inner_states``, the same for the embeddings and every layer.
        If ``<mask>`` tokens join inside the encoder, they are zero in the layers below.
        """
        layout = self.layout_of(src_tokens)
        self.resolve_backend(src_tokens.device)
        with self._precision(src_tokens):
            states = self.autoencoder.encode(src_tokens, layout)
        features = unpack(states[-1], self.autoencoder.encoder_layouts(layout)[-1], src_tokens.shape[1])
        return features, self._extra(states, layout, src_tokens, return_all_hiddens)

    def classify(self, src_tokens: Tensor, head: str, return_all_hiddens: bool = False) -> tuple[Tensor, dict]:
        """Compute the logits of a head: [B, number of classes], or those of every token.

        For start and end of an answer these are [B, T, 2], for labels of words [B, T, number of labels].

        The dictionary is that of :meth:`extract_features`.
        """
        features, extra = self.extract_features(src_tokens, return_all_hiddens)
        with self._precision(src_tokens):
            return self.classification_heads[head](features), extra

    def max_positions(self) -> int:
        """Return the maximum sequence length in tokens."""
        return self.autoencoder.config.max_positions

    def resolve_backend(self, device: torch.device) -> None:
        """Choose the fastest attention backend for evaluation on a device."""
        backend = fastest_backend(device, training=False)
        for stack in self.autoencoder.stacks():
            stack.attention_backend = backend

    def layout_of(
        self, src_tokens: Tensor, masked_tokens: Tensor | None = None, early_masks: Tensor | None = None
    ) -> BatchLayout:
        """Compute the layout of a batch on the CPU, with a single transfer from the device."""
        is_predicted = torch.ones_like(src_tokens) if masked_tokens is None else masked_tokens.to(src_tokens)
        is_early = torch.zeros_like(src_tokens) if early_masks is None else early_masks.to(src_tokens)
        tokens, is_predicted, is_early = torch.stack([src_tokens, is_predicted, is_early]).cpu()
        needs = self.autoencoder.needs()
        layout = batch_layout(tokens, is_predicted.bool(), self.pad, self.mask, is_early.bool(), needs)
        return to_device(layout, src_tokens.device)

    @staticmethod
    def _in_place(logits: Tensor, layout: BatchLayout, masked_tokens: Tensor | None, length: int) -> Tensor:
        """Return logits for exactly the requested positions, with zeros at padding.

        fairseq's ``masked_lm`` also requests padding when a batch has no masked token.
        """
        if masked_tokens is None:
            return unpack(logits, layout.predicted, length)
        if layout.predicted.index.numel() < int(masked_tokens.sum()):
            return unpack(logits, layout.predicted, length)[masked_tokens]
        return logits

    def _precision(self, tokens: Tensor) -> AbstractContextManager:
        return contextlib.nullcontext()  # keeps the caller's setting

    def _extra(self, states: list, layout: BatchLayout, src_tokens: Tensor, return_all_hiddens: bool) -> dict:
        extra = {"encoder_tokens": self.encoder_tokens(layout)}
        if return_all_hiddens:
            extra["inner_states"] = self.autoencoder.unpack_states(states, layout, src_tokens.shape[1])
        return extra

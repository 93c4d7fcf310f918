"""The network as a fairseq model."""

import contextlib
import logging

import torch
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from mae_lm_fairseq.checkpoints.checkpoint_file import content_errors
from mae_lm_fairseq.checkpoints.validation import check_ties
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, to_device, unpack
from mae_lm_fairseq.models.architectures import Autocast, MAELMModelConfig, core_config, register_architectures
from mae_lm_fairseq.models.backend import BackendChoice
from mae_lm_fairseq.models.finetuning import (
    check_origin,
    freeze_below,
    mark_depths,
    predicts_masked_tokens,
    select_weights,
)
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.network import WrappedTaskHead, build_network, stock_class

logger = logging.getLogger(__name__)

WARM_UP_SIZES = (8, 64), (32, 512)
"""Rows and tokens per row of the batch on which layers are compiled, on a CPU and on a GPU."""
TOKEN = 4
"""Any token of the vocabulary."""


@register_model("mae_lm", dataclass=MAELMModelConfig)
class MAELMModel(BaseFairseqModel):
    """Masked language model for fairseq's trainer: MAE-LM, 3ML, ExLM or vanilla MLM, depending on the architecture.

    For a task that does not pretrain, :meth:`build_model` builds the encoder only; the task adds its heads.

    Args:
        dictionary: fingerprint of the dictionary.
    """

    def __init__(
        self,
        autoencoder: MaskedAutoencoder,
        pad: int,
        mask: int,
        autocast: Autocast = Autocast.none,
        attention_backend: AttentionBackend = AttentionBackend.auto,
        compile: bool = False,
        classifier_dropout: float = 0.0,
        dictionary: str | None = None,
    ):
        super().__init__()
        self.autoencoder = autoencoder
        self.pad = pad
        self.mask = mask
        self.autocast = autocast
        self.backend = BackendChoice(autoencoder, attention_backend, autocast, compile)
        self.classifier_dropout = classifier_dropout
        self.dictionary = dictionary
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def build_model(cls, cfg: MAELMModelConfig, task) -> "MAELMModel":
        """Build the model of an architecture (``cfg._name``) for the dictionary of ``task``.

        Raises:
            UserError: if options contradict each other, or the dictionary has no ``<mask>``.
        """
        config = core_config(cfg)
        _check_options(cfg, config, predicts_masked_tokens(task))
        logger.info("network: %s", config)
        dictionary = task.source_dictionary
        if "<mask>" not in dictionary:
            raise UserError(
                "the task's dictionary has no <mask>; use a task that adds it, as masked_autoencoder_lm does"
            )
        pad, mask = dictionary.pad(), dictionary.index("<mask>")
        with content_errors("--wrapped"):
            autoencoder = build_network(config, len(dictionary), pad, mask)
        mark_depths(autoencoder.encoder)
        for stack in autoencoder.stacks():
            stack.checkpoint_activations = cfg.checkpoint_activations
        if config.wrapped and cfg.checkpoint_activations:
            autoencoder.encoder.model.gradient_checkpointing_enable()
        fingerprint = dictionary_fingerprint(dictionary.symbols)
        if not predicts_masked_tokens(task):
            autoencoder.drop_prediction()
            if cfg.trained_layers is not None:
                freeze_below(autoencoder.encoder, cfg.trained_layers)
            # Saved in checkpoints, so that runs that start from them can check their dictionary.
            task.state.merge_state_dict({"dictionary": fingerprint})
        return cls(
            autoencoder,
            pad,
            mask,
            Autocast(cfg.autocast),
            AttentionBackend(cfg.attention_backend),
            cfg.compile,
            config.dropout if cfg.classifier_dropout is None else cfg.classifier_dropout,
            fingerprint,
        )

    def register_classification_head(
        self, name: str, num_classes: int | None = None, inner_dim: int | None = None, **unused
    ):
        """Add a new classification head. Called by fairseq's ``sentence_prediction``.

        Args:
            name: name of the head, for :meth:`forward`; an existing head of that name is replaced.
            inner_dim: output size of the dense layer (default: the encoder's hidden size).
        """
        sizes = num_classes, inner_dim or self.autoencoder.config.encoder_embed_dim, self.classifier_dropout
        self._add_head(name, "ForSequenceClassification", num_classes, *sizes)

    def register_span_head(self, name: str):
        """Add a new head for extractive question answering. Called by ``question_answering``."""
        self._add_head(name, "ForQuestionAnswering", 2)

    def register_token_classification_head(self, name: str, num_classes: int):
        """Add a new head that classifies every token. Called by ``token_classification``."""
        self._add_head(name, "ForTokenClassification", num_classes, num_classes, self.classifier_dropout)

    def _add_head(self, name: str, task: str, num_classes: int, *sizes: float):
        """Add the head that the wrapped encoder's type has for a task, or else ours, given its sizes and dropout."""
        config, ours = self.autoencoder.config, WrappedTaskHead.TASKS[task]
        if config.wrapped and stock_class(config.wrapped, task):
            head = WrappedTaskHead(config, task, num_classes, self.classifier_dropout)
        else:
            head = ours(config.encoder_embed_dim, *sizes, config.init_std)
        self.classification_heads[name] = head

    def load_state_dict(self, state_dict: dict, strict: bool = True, model_cfg=None, args=None):
        """Load weights. A model for fine-tuning loads those of the encoder and the heads that match."""
        if self.autoencoder.lm_head is None:
            state_dict = select_weights(state_dict, self.state_dict())
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    def check_checkpoint(self, filename: str, state: dict, resumes: bool = False):
        """Check a checkpoint that training is about to start from, or to resume with the state of its optimizer.

        Raises:
            UserError: if its weights would have another meaning in this model.
        """
        decodes, pretrains = (part is not None for part in (self.autoencoder.decoder, self.autoencoder.lm_head))
        config = self.autoencoder.config
        check_origin(filename, state, vars(config), self.dictionary, decodes, resumes and pretrains)
        if pretrains:
            with content_errors(filename):
                check_ties(config, state["model"])

    def forward(
        self,
        src_tokens: Tensor,
        masked_tokens: Tensor | None = None,
        early_masks: Tensor | None = None,
        layout: BatchLayout | None = None,
        targets: Tensor | None = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        **unused,
    ) -> tuple[Tensor, dict]:
        """Compute the output that the arguments select, as fairseq's criterions expect.

        ``classification_head_name`` selects :meth:`classify`, ``features_only`` selects :meth:`extract_features`,
        ``targets`` selects :meth:`masked_loss`, and ``layout`` alone selects :meth:`predicted_logits`. Without any of
        them it is :meth:`token_logits`, as in fairseq's RoBERTa.
        """
        if classification_head_name is not None:
            return self.classify(src_tokens, classification_head_name, return_all_hiddens)
        if features_only:
            return self.extract_features(src_tokens, return_all_hiddens)
        if targets is not None:
            if layout is None:
                layout = self._layout(src_tokens, masked_tokens, early_masks)
            return self.masked_loss(src_tokens, layout, targets)
        if layout is not None:
            return self.predicted_logits(src_tokens, layout, return_all_hiddens)
        return self.token_logits(src_tokens, masked_tokens, early_masks, return_all_hiddens)

    def masked_loss(self, src_tokens: Tensor, layout: BatchLayout, targets: Tensor) -> tuple[Tensor, dict]:
        """Compute the head's summed loss of the predicted tokens, without materialising all logits.

        Args:
            src_tokens: [B, T] int64.
            layout: layout of the batch, which masked_autoencoder_lm adds to its batches.
            targets: [number predicted] int64.

        Returns:
            The loss in nats, and a dictionary with ``encoder_tokens``, the number of tokens that the encoder sees (mean
            over its layers), and ``correct``, the number of correct predictions or None, see :class:`AlignmentHead`.
        """
        self.resolve_backend(src_tokens.device)
        with self._precision(src_tokens):
            predicted_states = self.autoencoder.predicted_states(src_tokens, layout)
            loss, correct = self.autoencoder.lm_head.loss(predicted_states, targets, layout)
        return loss, {"encoder_tokens": self._encoder_tokens(layout), "correct": correct}

    def predicted_logits(
        self, src_tokens: Tensor, layout: BatchLayout, return_all_hiddens: bool = False
    ) -> tuple[Tensor, dict]:
        """Compute the logits [number predicted, vocabulary] of the predicted positions.

        The returned dictionary has ``encoder_tokens`` as in :meth:`masked_loss` and, with ``return_all_hiddens``,
        ``inner_states`` as in :meth:`extract_features`.
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
        layout = self._layout(src_tokens, masked_tokens, early_masks)
        logits, extra = self.predicted_logits(src_tokens, layout, return_all_hiddens)
        return self._in_place(logits, layout, masked_tokens, src_tokens.shape[1]), extra

    def extract_features(self, src_tokens: Tensor, return_all_hiddens: bool = False, **unused) -> tuple[Tensor, dict]:
        """Compute the encoder's output [B, T, dim], zero at padding and, in MAE-LM, at ``<mask>``.

        With ``return_all_hiddens``, the dictionary has ``inner_states``, the same for the embeddings and every layer.
        If ``<mask>`` tokens join inside the encoder, they are zero in the layers below.
        """
        layout = self._layout(src_tokens)
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

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Return float32 (log-)probabilities from the output of :meth:`forward`."""
        logits = net_output[0].float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)

    def max_positions(self) -> int:
        """Return the maximum sequence length in tokens."""
        return self.autoencoder.config.max_positions

    def begin_training(self, device: torch.device):
        """Prepare for training on a device, see :class:`BackendChoice`. Called by the patched trainer."""
        self.backend.begin_training(device, self.training)
        if self.backend.is_compiled and self.training:
            self._compile(device)

    def _compile(self, device: torch.device):
        """Compile the layers on a batch of fixed size, on which their code depends: a resumed run compiles the same."""
        rows, length = WARM_UP_SIZES[device.type == "cuda"]
        tokens = torch.full((rows, min(length, self.max_positions())), TOKEN, device=device)
        tokens[:, 1::4] = self.mask
        is_masked = tokens.eq(self.mask)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            targets = torch.full_like(tokens, TOKEN)[is_masked]
            self.masked_loss(tokens, self._layout(tokens, is_masked), targets)[0].backward()
        self.zero_grad(set_to_none=True)

    def resolve_backend(self, device: torch.device):
        """Choose the attention backend for a device, see :class:`BackendChoice`."""
        self.backend.resolve(device, self.training)

    def _layout(
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

    def _precision(self, src_tokens: Tensor):
        if self.autocast is Autocast.none:
            return contextlib.nullcontext()  # keeps the caller's setting
        return torch.autocast(src_tokens.device.type, torch.bfloat16)

    def _encoder_tokens(self, layout: BatchLayout) -> float:
        seen = [layer.index.numel() for layer in self.autoencoder.encoder_layouts(layout)[1:]]
        return sum(seen) / len(seen)

    def _extra(self, states: list, layout: BatchLayout, src_tokens: Tensor, return_all_hiddens: bool) -> dict:
        extra = {"encoder_tokens": self._encoder_tokens(layout)}
        if return_all_hiddens:
            extra["inner_states"] = self.autoencoder.unpack_states(states, layout, src_tokens.shape[1])
        return extra


def _check_options(cfg: MAELMModelConfig, network: MaskedAutoencoderConfig, pretrains: bool):
    if cfg.compile and (backend := AttentionBackend(cfg.attention_backend).value) not in ("auto", "fused"):
        raise UserError(f"--compile computes attention with fused; remove --attention-backend {backend}")
    if cfg.compile and network.wrapped:
        raise UserError("--compile is for this package's layers, not for a wrapped encoder's; remove it")
    if cfg.compile and not pretrains:
        raise UserError("--compile is for pretraining only; remove it, or choose --task masked_autoencoder_lm")
    for name in ("classifier_dropout", "trained_layers"):
        if pretrains and (value := getattr(cfg, name)) is not None:
            raise UserError(f"--{name.replace('_', '-')} {value} has no effect in pretraining; remove it")
    if not 0 <= (cfg.trained_layers or 0) <= network.encoder_layers:
        raise UserError(f"--trained-layers {cfg.trained_layers} must be from 0 to {network.encoder_layers}")
    distance = network.relative_max_distance
    has_bias = network.relative_buckets or network.decoder_relative_buckets
    # Fine-tuning repeats all options of pretraining, those of the decoder's bias included.
    if pretrains and not has_bias and distance != MaskedAutoencoderConfig.relative_max_distance:
        raise UserError(
            f"--relative-max-distance {distance} has no effect without a relative position bias (--relative-buckets 0)"
        )


register_architectures()

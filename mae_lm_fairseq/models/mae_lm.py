"""The network as a fairseq model."""

import logging
import time
from contextlib import AbstractContextManager

import torch
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.decoder import try_decoder
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
from mae_lm_fairseq.trained.checkpoint_file import content_errors
from mae_lm_fairseq.trained.model import TrainedModel
from mae_lm_fairseq.trained.validation import check_ties
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.heads import SENTENCES, HeadKind, WrappedTaskHead
from mae_lm_fairseq.wrapped.network import build_network, stock_class

logger = logging.getLogger(__name__)

WARM_UP_SIZES = (8, 64), (32, 512)
"""Rows and tokens per row of the batch on which layers are compiled, on a CPU and on a GPU."""
TOKEN = 4
"""Any token of the vocabulary."""
SEED_OF_HEADS = 1 << 40
"""Added to the seed of a run to draw the weights of its heads. Updates draw from the seed plus their number."""


@register_model("mae_lm", dataclass=MAELMModelConfig)
class MAELMModel(TrainedModel, BaseFairseqModel):
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
        super().__init__(autoencoder, pad, mask, dictionary)
        self.autocast = autocast
        self.backend = BackendChoice(autoencoder, attention_backend, autocast, compile)
        self.classifier_dropout = classifier_dropout
        self._in_training: tuple[nn.Module, ...] = ()  # all modules, while the mode is training
        self._counting: tuple[nn.Module, ...] = ()  # the modules that fairseq tells the number of updates

    @classmethod
    def build_model(cls, cfg: MAELMModelConfig, task) -> "MAELMModel":
        """Build the model of an architecture (``cfg._name``) for the dictionary of ``task``.

        Raises:
            UserError: if options contradict each other, the dictionary has no ``<mask>``, or a decoder of a user's
                directory fails.
        """
        config = core_config(cfg)
        _check_options(cfg, config, predicts_masked_tokens(task))
        try_decoder(config)
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

    def register_classification_head(self, name: str, num_classes: int, inner_dim: int | None = None, **unused):
        """Add a new classification head. Called by fairseq's ``sentence_prediction``.

        Args:
            name: name of the head, for :meth:`classify`; an existing head of that name is replaced.
            inner_dim: output size of the dense layer (default: the encoder's hidden size).
        """
        self.register_head(SENTENCES, num_classes, name, inner_dim)

    def register_head(self, kind: HeadKind, labels: int, name: str | None = None, inner_dim: int | None = None):
        """Add a new head: the one that the type of a wrapped encoder has for the task, or else this package's.

        Its weights depend on the seed alone, not on what the network has drawn before. So models with and without a
        decoder are fine-tuned from equal heads, and comparisons of them are paired.

        Args:
            labels: number of its outputs.
            name: name of the head (default: that of its kind); an existing head of that name is replaced.
            inner_dim: output size of a hidden layer of the head (default: the encoder's hidden size).
        """
        config = self.autoencoder.config
        seed = torch.initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + SEED_OF_HEADS)
            if config.wrapped and stock_class(config.wrapped, kind.ending):
                head = WrappedTaskHead(config, kind, labels, self.classifier_dropout)
            else:
                head = kind.build(config, labels, self.classifier_dropout, inner_dim)
        self.classification_heads[name or kind.name] = head

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
        decodes = self.autoencoder.decoder is not None
        pretrains = self.autoencoder.lm_head is not None
        config = self.autoencoder.config
        check_origin(filename, state, vars(config), self.dictionary, decodes, resumes and pretrains)
        if pretrains:
            with content_errors(filename):
                check_ties(config, state["model"])

    def forward(self, src_tokens: Tensor, method: str = "roberta_output", **inputs) -> tuple[Tensor, dict]:
        """Return the output of a method of this class, by its name.

        fairseq's criterions name none, and get :meth:`roberta_output`. Ours names :meth:`masked_loss` and does not call
        it, because DistributedDataParallel only takes part in calls of the model itself.
        """
        return getattr(self, method)(src_tokens, **inputs)

    def roberta_output(
        self,
        src_tokens: Tensor,
        masked_tokens: Tensor | None = None,
        early_masks: Tensor | None = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        **unused,
    ) -> tuple[Tensor, dict]:
        """Compute what fairseq's RoBERTa does: the logits of tokens, or of a head, or features.

        See :meth:`token_logits`, :meth:`classify` and :meth:`extract_features`. ``unused`` are other entries of
        ``net_input`` in batches of fairseq's tasks.
        """
        if classification_head_name is not None:
            return self.classify(src_tokens, classification_head_name, return_all_hiddens)
        if features_only:
            return self.extract_features(src_tokens, return_all_hiddens)
        return self.token_logits(src_tokens, masked_tokens, early_masks, return_all_hiddens)

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """Return float32 (log-)probabilities from logits, the output of :meth:`forward`."""
        logits = net_output[0].float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)

    def train(self, mode: bool = True) -> "MAELMModel":
        """Set the mode of all modules. If all are in training already, as in most updates, that is only checked.

        fairseq calls this twice per update, and torch's own method walks through the modules for a millisecond.
        """
        modules = self._in_training
        if mode and modules and all(module.training for module in modules):
            return self
        super().train(mode)
        self._in_training = tuple(self.modules()) if mode else ()
        self._counting = tuple(filter(_counts_updates, self._in_training[1:]))
        return self

    def set_num_updates(self, num_updates: int):
        """Tell the modules that want to know it the number of updates, as fairseq does; see :meth:`train`."""
        if not self._in_training:
            super().set_num_updates(num_updates)
        for module in self._counting:
            module.set_num_updates(num_updates)

    def begin_training(self, device: torch.device):
        """Prepare for training on a device, see :class:`BackendChoice`. Called by the patched trainer."""
        self.backend.begin_training(device, self.training)
        if self.backend.is_compiled and self.training:
            self._compile(device)

    def _compile(self, device: torch.device):
        """Compile the layers on a batch of fixed size, on which their code depends: a resumed run compiles the same."""
        began = time.monotonic()
        rows, length = WARM_UP_SIZES[device.type == "cuda"]
        tokens = torch.full((rows, min(length, self.max_positions())), TOKEN, device=device)
        tokens[:, 1::4] = self.mask
        is_masked = tokens.eq(self.mask)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            targets = torch.full_like(tokens, TOKEN)[is_masked]
            self.masked_loss(tokens, self.layout_of(tokens, is_masked), targets)[0].backward()
        self.zero_grad(set_to_none=True)
        logger.info("compiled the layers in %.0f s", time.monotonic() - began)

    def resolve_backend(self, device: torch.device):
        """Choose the attention backend for a device, see :class:`BackendChoice`."""
        self.backend.resolve(device, self.training)

    def _precision(self, tokens: Tensor) -> AbstractContextManager:
        if self.autocast is Autocast.none:
            return super()._precision(tokens)
        return torch.autocast(tokens.device.type, torch.bfloat16)


def _counts_updates(module: nn.Module) -> bool:
    return hasattr(module, "set_num_updates")


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

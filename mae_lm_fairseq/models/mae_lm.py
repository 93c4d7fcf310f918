"""The network as a model of fairseq's trainer."""

import contextlib
import logging
from pathlib import Path

import torch
from fairseq.models import BaseFairseqModel, register_model
from torch import Tensor, nn

from mae_lm_fairseq.core.attention_backends import AttentionBackend, fastest_backend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.heads import ClassificationHead, SpanHead
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, to_device, unpack
from mae_lm_fairseq.hub import MAELMHubInterface, hub_interface
from mae_lm_fairseq.models.architectures import Autocast, MAELMModelConfig, core_config, register_architectures
from mae_lm_fairseq.models.compilation import Compiled
from mae_lm_fairseq.models.finetuning import check_origin, mark_depths, predicts_masked_tokens, take_over
from mae_lm_fairseq.pretrained.reading import read
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.utils.allocator import keep_few_primitives, keep_freed_memory
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)


@register_model("mae_lm", dataclass=MAELMModelConfig)
class MAELMModel(BaseFairseqModel):
    """Masked language model for fairseq's trainer: MAE-LM, 3ML or vanilla MLM, as its architecture says.

    Built for a task that does not pretrain, it is the encoder alone, with heads for that task.

    Args:
        autoencoder: the network.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        autocast: precision of the matrix products.
        attention_backend: how attention is computed.
        compile: whether to compile the network for training.
        classifier_dropout: in the classification heads.
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
        self.attention_backend = attention_backend
        self.resolved_for = None
        self.compiled = Compiled(autoencoder.masked_states) if compile else None
        self.classifier_dropout = classifier_dropout
        self.dictionary = dictionary
        self.classification_heads = nn.ModuleDict()

    @classmethod
    def from_pretrained(cls, path: str | Path, data_bin: str | Path | None = None) -> MAELMHubInterface:
        """A trained model to use, anywhere and without a task.

        Args:
            path: a bundle, the directory that ``scripts/bundle.py`` has made; or a checkpoint of fairseq-train.
            data_bin: for a checkpoint the directory with its ``dict.txt`` and ``sentencepiece.bpe.model``.

        Raises:
            UserError: a file is missing, damaged, could run code, or does not belong to the others.
        """
        return hub_interface(cls, read(path, data_bin))

    @classmethod
    def build_model(cls, cfg: MAELMModelConfig, task) -> "MAELMModel":
        """Build the model of an architecture (``cfg._name``) for the dictionary of ``task``.

        Raises:
            UserError: options contradict each other, or the dictionary has no ``<mask>``.
        """
        config = core_config(cfg)
        if cfg.attention_backend == AttentionBackend.flex and (config.attention_dropout or config.decoder_dropout):
            raise UserError(
                "--attention-backend flex has no attention dropout; use sdpa, or set --attention-dropout 0 and "
                "--decoder-dropout 0"
            )
        if not 0 <= (cfg.classifier_dropout or 0) < 1:
            raise UserError(f"--classifier-dropout {cfg.classifier_dropout} must be in [0, 1)")
        logger.info("network: %s", config)
        dictionary = task.source_dictionary
        if "<mask>" not in dictionary:
            raise UserError(
                "the task's dictionary has no <mask>; use a task that adds it, as masked_autoencoder_lm does"
            )
        pad, mask = dictionary.pad(), dictionary.index("<mask>")
        autoencoder = MaskedAutoencoder(config, len(dictionary), pad, mask)
        for stack in autoencoder.stacks():
            stack.checkpoint_activations = cfg.checkpoint_activations
        fingerprint = dictionary_fingerprint(dictionary.symbols)
        if not predicts_masked_tokens(task):
            if cfg.compile:
                raise UserError("--compile is for pretraining: leave it out, or choose --task masked_autoencoder_lm")
            autoencoder.drop_prediction()
            mark_depths(autoencoder.encoder)
            # Checkpoints keep it, so that the next to start from them is held to the same dictionary.
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
        """Add a fresh head; fairseq's ``sentence_prediction`` asks for it.

        Args:
            name: of the head, for :meth:`forward`; one of the same name is replaced.
            num_classes: number of classes, 1 for regression.
            inner_dim: width of the dense layer's output (default: the encoder's).
        """
        config = self.autoencoder.config
        dim = config.encoder_embed_dim
        head = ClassificationHead(dim, num_classes, inner_dim or dim, self.classifier_dropout, config.init_std)
        self.classification_heads[name] = head

    def register_span_head(self, name: str):
        """Add a fresh head for answers that are slices of the text; ``question_answering`` asks for it."""
        config = self.autoencoder.config
        self.classification_heads[name] = SpanHead(config.encoder_embed_dim, config.init_std)

    def load_state_dict(self, state_dict: dict, strict: bool = True, model_cfg=None, args=None):
        """Load weights; for fine-tuning those of the encoder, and heads as far as they fit.

        Raises:
            UserError: the weights of the encoder are not all there, or there are more.
        """
        if self.autoencoder.lm_head is None:
            state_dict = take_over(state_dict, self.state_dict())
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    def check_checkpoint(self, filename: str, state: dict):
        """Called when training is about to start from a checkpoint.

        Raises:
            UserError: its weights would mean something else here.
        """
        decodes = self.autoencoder.decoder is not None
        check_origin(filename, state, vars(self.autoencoder.config), self.dictionary, decodes)

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
        """Return what the arguments ask for, as fairseq's criterions call a model.

        ``classification_head_name`` asks for :meth:`classify`, ``features_only`` for :meth:`extract_features`,
        ``targets`` for :meth:`masked_loss`, ``layout`` alone for :meth:`predicted_logits`, and none of them for
        :meth:`token_logits`, which is the call of fairseq's RoBERTa.
        """
        if classification_head_name is not None:
            return self.classify(src_tokens, classification_head_name, return_all_hiddens)
        if features_only:
            return self.extract_features(src_tokens, return_all_hiddens)
        if self.autoencoder.lm_head is None:
            raise UserError(
                "a model built for fine-tuning predicts no masked tokens; choose --task masked_autoencoder_lm"
            )
        if targets is not None:
            if layout is None:
                layout = self._layout(src_tokens, masked_tokens, early_masks)
            return self.masked_loss(src_tokens, layout, targets)
        if layout is not None:
            return self.predicted_logits(src_tokens, layout, return_all_hiddens)
        return self.token_logits(src_tokens, masked_tokens, early_masks, return_all_hiddens)

    def masked_loss(self, src_tokens: Tensor, layout: BatchLayout, targets: Tensor) -> tuple[Tensor, dict]:
        """The summed cross-entropy at the predicted positions, without ever holding all logits.

        Args:
            src_tokens: [B, T] int64.
            layout: of the batch, as those of masked_autoencoder_lm bring it.
            targets: [number predicted] int64.

        Returns:
            The loss in nats, and a dictionary with ``encoder_tokens``, how many tokens the encoder saw (the mean of its
            layers), and ``correct``, how many targets were predicted right.
        """
        self.resolve_backend(src_tokens.device)
        # The loss stays out of what is compiled: the number of its chunks would be part of the compiled code.
        compiled = self.compiled if self.training else None
        with self._precision(src_tokens):
            masked_states = (compiled or self.autoencoder.masked_states)(src_tokens, layout)
            loss, correct = self.autoencoder.lm_head.loss(masked_states, targets)
        return loss, {"encoder_tokens": self._encoder_tokens(layout), "correct": correct}

    def predicted_logits(
        self, src_tokens: Tensor, layout: BatchLayout, return_all_hiddens: bool = False
    ) -> tuple[Tensor, dict]:
        """The logits [number predicted, vocabulary] at the predicted positions of a batch with a layout.

        The dictionary has ``encoder_tokens``, as in :meth:`masked_loss`, and on request ``inner_states``, as in
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
        """The logits of a batch without a layout, which is made here, at the price of one synchronisation on a GPU.

        Args:
            src_tokens: [B, T] int64.
            masked_tokens: [B, T] bool, the positions to predict; all of them where it is None.
            early_masks: [B, T] bool, those ``<mask>`` that the encoder sees though it would not (--mask-in-encoder);
                none where it is None.
            return_all_hiddens: also give the states of all of the encoder's layers.

        Returns:
            [number of masked_tokens, vocabulary], or [B, T, vocabulary] without them; zero at padding. And the
            dictionary of :meth:`predicted_logits`.
        """
        layout = self._layout(src_tokens, masked_tokens, early_masks)
        logits, extra = self.predicted_logits(src_tokens, layout, return_all_hiddens)
        return self._in_place(logits, layout, masked_tokens, src_tokens.shape[1]), extra

    def extract_features(self, src_tokens: Tensor, return_all_hiddens: bool = False, **unused) -> tuple[Tensor, dict]:
        """The encoder's output [B, T, dim], zero at padding and, in MAE-LM, at ``<mask>``, which it never sees.

        With ``return_all_hiddens`` the dictionary's ``inner_states`` has the same for the embeddings and every layer;
        where ``<mask>`` joins inside the encoder, they are zero there up to the layer below.
        """
        layout = self._layout(src_tokens)
        self.resolve_backend(src_tokens.device)
        with self._precision(src_tokens):
            states = self.autoencoder.encode(src_tokens, layout)
        features = unpack(states[-1], self.autoencoder.encoder_layouts(layout)[-1], src_tokens.shape[1])
        return features, self._extra(states, layout, src_tokens, return_all_hiddens)

    def classify(self, src_tokens: Tensor, head: str, return_all_hiddens: bool = False) -> tuple[Tensor, dict]:
        """The logits of a head: [B, number of classes], or [B, T, 2] for start and end of an answer.

        The dictionary is that of :meth:`extract_features`.
        """
        features, extra = self.extract_features(src_tokens, return_all_hiddens)
        with self._precision(src_tokens):
            return self.classification_heads[head](features), extra

    def get_normalized_probs(self, net_output, log_probs: bool, sample=None) -> Tensor:
        """(Log-)probabilities in float32 from what :meth:`forward` returned."""
        logits = net_output[0].float()
        return torch.log_softmax(logits, -1) if log_probs else torch.softmax(logits, -1)

    def max_positions(self) -> int:
        """Longest sample in tokens."""
        return self.autoencoder.config.max_positions

    def begin_training(self, device: torch.device):
        """Called by fairseq's trainer when it starts. Settings of the process that training on a CPU needs.

        Raises:
            UserError: the attention backend does not train on that device. Raised in the first update instead, it would
                let the trainer leave a ``crash.pt``.
        """
        self.resolve_backend(device)
        if device.type == "cpu":
            keep_freed_memory()
            if self.autocast is Autocast.none:
                keep_few_primitives()

    def resolve_backend(self, device: torch.device):
        """Choose the attention backend for the device of a batch.

        Raises:
            UserError: the chosen one does not train on that device.
        """
        backend = self.attention_backend
        if backend is AttentionBackend.flex and self.training and device.type == "cpu":
            raise UserError("--attention-backend flex does not train on a CPU; use eager or sdpa")
        if self.resolved_for == device.type:
            return
        self.resolved_for = device.type
        if backend is AttentionBackend.auto:
            backend = fastest_backend(device.type)
            logger.info("attention backend on %s: %s", device.type, backend.value)
        for stack in self.autoencoder.stacks():
            stack.attention_backend = backend

    def _layout(
        self, src_tokens: Tensor, masked_tokens: Tensor | None = None, early_masks: Tensor | None = None
    ) -> BatchLayout:
        """The layout of a batch that brings none, made on the CPU from one transfer."""
        is_predicted = torch.ones_like(src_tokens) if masked_tokens is None else masked_tokens.to(src_tokens)
        is_early = torch.zeros_like(src_tokens) if early_masks is None else early_masks.to(src_tokens)
        tokens, is_predicted, is_early = torch.stack([src_tokens, is_predicted, is_early]).cpu()
        layout = batch_layout(tokens, is_predicted.bool(), self.pad, self.mask, is_early.bool())
        return to_device(layout, src_tokens.device)

    @staticmethod
    def _in_place(logits: Tensor, layout: BatchLayout, masked_tokens: Tensor | None, length: int) -> Tensor:
        """Logits for just the positions asked for, with zeros where those are padding.

        fairseq's ``masked_lm`` asks for padding too when a batch has no masked token.
        """
        if masked_tokens is None:
            return unpack(logits, layout.predicted, length)
        if layout.predicted.index.numel() < int(masked_tokens.sum()):
            return unpack(logits, layout.predicted, length)[masked_tokens]
        return logits

    def _precision(self, src_tokens: Tensor):
        if self.autocast is Autocast.none:
            return contextlib.nullcontext()  # whatever the caller has set stays, fairseq's --amp for one
        return torch.autocast(src_tokens.device.type, torch.bfloat16)

    def _encoder_tokens(self, layout: BatchLayout) -> float:
        """How many tokens the encoder's layers see, on average."""
        seen = [layer.index.numel() for layer in self.autoencoder.encoder_layouts(layout)[1:]]
        return sum(seen) / len(seen)

    def _extra(self, states: list, layout: BatchLayout, src_tokens: Tensor, return_all_hiddens: bool) -> dict:
        extra = {"encoder_tokens": self._encoder_tokens(layout)}
        if return_all_hiddens:
            layouts, length = self.autoencoder.encoder_layouts(layout), src_tokens.shape[1]
            extra["inner_states"] = [unpack(*layer, length) for layer in zip(states, layouts, strict=True)]
        return extra


register_architectures()

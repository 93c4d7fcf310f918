"""A bundle as a ``transformers`` model around the network of this package, which predicts masked tokens.

It computes every preset and wrapped encoders, packed. :mod:`~mae_lm_fairseq.trained.huggingface.modeling_mae_lm` is the
same model, with the same weights and configuration, in plain PyTorch, for readers without this package; what the two
share is defined there.

Importing this module registers it with ``AutoConfig``, ``AutoModelForMaskedLM`` and, for the encoder in plain PyTorch,
``AutoModel``::

    import mae_lm_fairseq.trained.huggingface.modeling
    from transformers import pipeline

    fill_mask = pipeline("fill-mask", directory)
    fill_mask("Paris is the <mask> of France.")
"""

import os
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from transformers.modeling_outputs import MaskedLMOutput

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, plain_values
from mae_lm_fairseq.core.packing import batch_layout, seen_masks, to_device, unpack
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from mae_lm_fairseq.trained.huggingface import modeling_mae_lm as plain
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.reading import check_bundle
from mae_lm_fairseq.trained.validation import network_config, tied_names
from mae_lm_fairseq.utils.hashes import HASHES
from mae_lm_fairseq.utils.hugging_face import without_code
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.writing import remove
from mae_lm_fairseq.wrapped.network import build_network, shared_weights


class MAELMConfig(plain.MAELMConfig):
    """Configuration of :class:`MAELMForMaskedLM`.

    Args:
        network: values of :class:`~mae_lm_fairseq.core.config.MaskedAutoencoderConfig` that differ from its defaults.
        others: as for the class in plain PyTorch, but for keys that lead to code.
    """

    def __init__(self, network: dict | None = None, vocab_size: int = 32000, **others):
        network = plain_values(MaskedAutoencoderConfig()) | (network or {})
        if network["wrapped"]:  # found and cached here, as transformers ties no weights while it loads a model
            shared_weights(network_config(network))
        super().__init__(network, vocab_size, **without_code(others))


class _BundleFiles:
    """Loads and saves a bundle."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args, **kwargs) -> Self:
        """Load a model, see ``PreTrainedModel``; the files of a bundle are compared with their hashes.

        Raises:
            UserError: if a file is damaged.
        """
        check_bundle(Path(pretrained_model_name_or_path))
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """Save a model, see ``PreTrainedModel``; hashes of a bundle that was there would be those of other files."""
        remove(Path(save_directory, HASHES))
        super().save_pretrained(save_directory, *args, **kwargs)


class MAELMModel(_BundleFiles, plain.MAELMModel):
    """The encoder of a bundle, in plain PyTorch, which refuses wrapped encoders, ExLM and masks that join later."""

    config_class = MAELMConfig


class MAELMForMaskedLM(_BundleFiles, plain.MAELMPreTrainedModel):
    """Encoder, decoder and language model head (:class:`~mae_lm_fairseq.core.autoencoder.MaskedAutoencoder`).

    The weights have the same names as in our checkpoints.
    """

    config_class = MAELMConfig
    _supports_sdpa = False  # the network has backends of its own

    def __init__(self, config: MAELMConfig):
        super().__init__(config)
        core = network_config(config.network)
        self.autoencoder = build_network(core, config.vocab_size, config.pad_token_id, config.mask_token_id)
        self._tied_weights_keys = tied_names(core, self.state_dict())
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):
        """Restore the relative position buckets, which are not saved; the network initialises everything else."""
        if isinstance(module, RelativePositionBias):
            core = network_config(self.config.network)
            buckets, heads = module.weight.shape
            length = module.reach + 1
            computed = RelativePositionBias(buckets, core.relative_max_distance, heads, length, core.relative_bucketing)
            module.bucket.copy_(computed.bucket)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **others,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """Predict a token at every position; at ``<mask>``, from the decoder's output.

        The encoder sees the fraction of ``<mask>`` tokens that it saw in pretraining (``--mask-in-encoder``).

        Args:
            input_ids: [B, T] int64.
            attention_mask: [B, T], 0 at padding; None to mask ``<pad>`` tokens.
            labels: [B, T] int64, -100 at positions without a target.
            output_hidden_states: also return the encoder's hidden states [B, T, dim] of all layers, zero at padding and
                where a layer does not see ``<mask>``.
            return_dict: False for a tuple without names.
            others: see :func:`~mae_lm_fairseq.trained.huggingface.modeling_mae_lm.check_others`.

        Returns:
            logits [B, T, vocabulary], zero at padding, and with labels before them the mean cross-entropy.
        """
        plain.check_others(others)
        pad, mask = self.config.pad_token_id, self.config.mask_token_id
        tokens = input_ids if attention_mask is None else input_ids.masked_fill(attention_mask == 0, pad)
        length = tokens.shape[1]
        on_cpu = tokens.cpu()
        about = typed(self.config.about, ModelInfo)
        early = seen_masks(on_cpu, mask, about.mask_in_encoder or 0.0)
        everywhere = torch.ones_like(on_cpu, dtype=torch.bool)
        layout = to_device(batch_layout(on_cpu, everywhere, pad, mask, early), tokens.device)
        states = self.autoencoder.encode(tokens, layout)
        logits = self.autoencoder.predict(states[-1], layout)
        logits = unpack(logits, layout.predicted, length)
        hidden_states = None
        if self.returns_states(output_hidden_states):
            hidden_states = tuple(self.autoencoder.unpack_states(states, layout, length))
        output = MaskedLMOutput(loss=plain.mean_loss(logits, labels), logits=logits, hidden_states=hidden_states)
        return self.returned(output, return_dict)


AutoConfig.register(MAELMConfig.model_type, MAELMConfig, exist_ok=True)
AutoModel.register(MAELMConfig, MAELMModel, exist_ok=True)
AutoModelForMaskedLM.register(MAELMConfig, MAELMForMaskedLM, exist_ok=True)

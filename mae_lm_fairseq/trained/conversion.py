"""Conversion of pretrained models: to the state that training starts from, and to the decoder of a preset."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mae_lm_fairseq.core.config import (
    ARCHITECTURES,
    MaskedAutoencoderConfig,
    RelativeBiasInit,
    plain_values,
    preset_config,
)
from mae_lm_fairseq.core.decoder import check_decoder
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.trained.reading import Pretrained, read_bundle
from mae_lm_fairseq.trained.validation import DECODER, NETWORK, PAD, head_names, tied_names
from mae_lm_fairseq.wrapped.network import build_network, has_own_decoder, own_decoder

logger = logging.getLogger(__name__)

OWN_BIAS = {"decoder_relative_buckets": 32, "relative_bias_init": RelativeBiasInit.neighbours}
"""Position bias of a new decoder around an encoder that has none."""
_PRESET_OPTIONS = ("mask_join", "mask_join_layer", "mask_states", "renumber_visible", "reset_mask_states")
"""Options that a preset determines, beside those of the decoder."""
_OF_PRESET = (DECODER, f"{NETWORK}encoder.embed_clones.", f"{NETWORK}lm_head.transitions.")
"""Weights that models of another preset lack."""


def read_training_state(bundle: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint with the model of a bundle, and without a state of the optimizer.

    Raises:
        UserError: as for :func:`~mae_lm_fairseq.trained.reading.read_bundle`.
    """
    pretrained = read_bundle(bundle)
    model = {"_name": architecture_of(pretrained), **plain_values(pretrained.config)}
    task = "sentence_prediction" if head_names(pretrained.weights) else "masked_autoencoder_lm"
    history = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": pretrained.about.updates or 0,
    }
    return {
        "args": None,
        "cfg": {"model": model, "task": {"_name": task}},
        "model": pretrained.weights,
        "task_state": {"dictionary": dictionary_fingerprint(pretrained.symbols)},
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }


def architecture_of(pretrained: Pretrained) -> str:
    """Return the architecture that a model was trained as; ``mae_lm`` if that is unknown."""
    return pretrained.about.architecture or "mae_lm"


def preset_of(pretrained: Pretrained) -> str:
    """Return the preset that a model was trained with; see :func:`architecture_of`."""
    return ARCHITECTURES[architecture_of(pretrained)][0]


def predicts(pretrained: Pretrained) -> bool:
    """Return whether a model has trained weights that predict tokens."""
    return not why_no_predictions(pretrained)


def why_no_predictions(pretrained: Pretrained) -> str:
    """Return why a model predicts no tokens, for messages: fine-tuning drops weights, and imports may lack some."""
    if not any(name.startswith(f"{NETWORK}lm_head.") for name in pretrained.weights):
        return "was fine-tuned and predicts no tokens; use the pretrained model that it started from"
    if pretrained.about.untrained:
        added = " and ".join(pretrained.about.untrained)
        return f"predicts nothing yet, because it was imported without {added}; pretrain it further first"
    return ""


def with_preset(pretrained: Pretrained, preset: str, seed: int) -> Pretrained:
    """Return a model for further pretraining with a preset.

    Encoder and language model head are kept, and a trained decoder if the model has this preset already; else it gets
    :func:`new_decoder`. What else is missing starts from random weights. Heads of tasks are dropped. The weights are
    float32.
    """
    config, about = pretrained.config, pretrained.about
    # Fine-tuning drops the decoder, and imports add a new one.
    has_decoder = any(name.startswith(DECODER) for name in pretrained.weights)
    keeps_decoder = has_decoder and "decoder" not in about.untrained
    dropped = () if keeps_decoder else DECODER
    if preset_of(pretrained) != preset:
        _, size = ARCHITECTURES[architecture_of(pretrained)]
        about = replace(about, architecture=f"{preset}_{size}", mask_in_encoder=0.0)
        config = _with_options_of(preset, config)
        keeps_decoder, dropped = False, _OF_PRESET
    check_decoder(config.decoder_attention)

    weights = {}
    for name, weight in pretrained.weights.items():
        if name.startswith(NETWORK) and not name.startswith(dropped):
            weights[name] = weight.float()
    if not keeps_decoder:
        config, decoder = new_decoder(config, weights)
        weights |= decoder
    weights = completed(config, weights, len(pretrained.symbols), seed)
    return replace(pretrained, config=config, weights=weights, about=about)


def _with_options_of(preset: str, config: MaskedAutoencoderConfig) -> MaskedAutoencoderConfig:
    """Return a configuration with the options of a preset, except for those of the encoder and of sizes."""
    options = {}
    for name, value in vars(preset_config(preset, "base")).items():
        if name in _PRESET_OPTIONS or name.startswith("decoder_"):
            options[name] = value
    return replace(config, **options)


def with_position_bias(config: MaskedAutoencoderConfig) -> MaskedAutoencoderConfig:
    """Return a configuration with a decoder, if it has one, that knows the distances between tokens.

    The decoder has the encoder's relative position bias, or one of its own around an encoder without. Around a wrapped
    encoder whose layers know them, it is made of such layers if the sizes fit.
    """
    if not config.decoder_layers:
        return config
    if config.wrapped:
        own_type = replace(config, decoder_relative_buckets=0)
        if has_own_decoder(own_type):
            return own_type
    bias = {"decoder_relative_buckets": config.relative_buckets} if config.relative_buckets else OWN_BIAS
    return replace(config, **bias)


def new_decoder(
    config: MaskedAutoencoderConfig, weights: dict[str, Tensor]
) -> tuple[MaskedAutoencoderConfig, dict[str, Tensor]]:
    """Return a configuration with a new decoder around a trained encoder, and the weights that it starts from.

    Of :func:`with_position_bias`, it learned far faster than without, and faster from the encoder's last layers than
    from random weights (docs/adapting.md). It starts from these layers, the layer norm whose output the first of them
    reads, and positions. Cross-attention has no counterpart in the encoder. There are no weights if the decoder has
    layers of other sizes than the encoder, or more.
    """
    config = with_position_bias(config)
    if not config.decoder_layers:
        return config, {}
    if config.wrapped and has_own_decoder(config):
        named = {name.removeprefix(NETWORK): weight for name, weight in weights.items()}
        copied = own_decoder(config, named)
        return config, {NETWORK + name: weight for name, weight in copied.items()}

    encoder, decoder = config.encoder, config.decoder
    below = encoder.layers - decoder.layers
    are_alike = (encoder.dim, encoder.ffn_dim, encoder.heads) == (decoder.dim, decoder.ffn_dim, decoder.heads)
    if config.wrapped or below < 0 or not are_alike:
        logger.warning("the new decoder starts from random weights, because the encoder has no such layers")
        return config, {}

    sources = {f"layers.{layer}": f"layers.{below + layer}" for layer in range(decoder.layers)}
    sources["embed_positions"] = "embed_positions"
    sources["output_layer_norm"] = "output_layer_norm"
    reads_embeddings = config.pre_norm or not below
    sources["embed_layer_norm"] = "embed_layer_norm" if reads_embeddings else f"layers.{below - 1}.final_layer_norm"
    if encoder.relative_buckets == decoder.relative_buckets:
        sources["relative_bias"] = "relative_bias"

    copied = {}
    for target, source in sources.items():
        prefix = f"{NETWORK}encoder.{source}."
        for name, weight in weights.items():
            if name.startswith(prefix):
                copied[f"{DECODER}{target}.{name.removeprefix(prefix)}"] = weight.clone()
    return config, copied


def completed(
    config: MaskedAutoencoderConfig, weights: dict[str, Tensor], symbols: int, seed: int
) -> dict[str, Tensor]:
    """Return the weights of the full network. Missing ones are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(config, symbols, PAD, symbols - 1)
    complete = {NETWORK + name: weight for name, weight in network.state_dict().items()} | weights
    return complete | {name: complete[first] for name, first in tied_names(config, complete).items()}

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
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint
from mae_lm_fairseq.trained.reading import Pretrained, read_bundle
from mae_lm_fairseq.trained.validation import NETWORK, PAD, head_names, tied_names
from mae_lm_fairseq.wrapped.network import build_network, has_own_decoder, own_decoder

logger = logging.getLogger(__name__)

OWN_BIAS = {"decoder_relative_buckets": 32, "relative_bias_init": RelativeBiasInit.neighbours}
"""Position bias of a new decoder around an encoder that has none."""
_DECODER = f"{NETWORK}decoder."
_OF_PRESET = (_DECODER, f"{NETWORK}encoder.embed_clones.", f"{NETWORK}lm_head.transitions.")
"""Weights that models of another preset lack."""


def read_training_state(bundle: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint with the model of a bundle, and without a state of the optimizer.

    Raises:
        UserError: as for :func:`~mae_lm_fairseq.trained.reading.read_bundle`.
    """
    pretrained = read_bundle(bundle)
    model = {"_name": architecture_of(pretrained), **plain_values(pretrained.config)}
    task = "sentence_prediction" if head_names(pretrained.weights) else "masked_autoencoder_lm"
    names = {"criterion_name": "none", "optimizer_name": "none", "lr_scheduler_state": {}}
    return {
        "args": None,
        "cfg": {"model": model, "task": {"_name": task}},
        "model": pretrained.weights,
        "task_state": {"dictionary": dictionary_fingerprint(pretrained.symbols)},
        "optimizer_history": [names | {"num_updates": pretrained.about.updates or 0}],
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
    if added := pretrained.about.untrained:
        return f"predicts nothing yet, because it was imported without {' and '.join(added)}; pretrain it further first"
    return ""


def with_preset(pretrained: Pretrained, preset: str, seed: int) -> Pretrained:
    """Return a model for further pretraining with a preset.

    Encoder and language model head are kept, and a trained decoder if the model has this preset already; else it gets
    :func:`new_decoder`. What else is missing starts from random weights. Heads of tasks are dropped. The weights are
    float32.
    """
    same = preset_of(pretrained) == preset
    config = pretrained.config
    if not same:
        names = ("mask_join", "mask_join_layer", "mask_states", "renumber_visible", "reset_mask_states")
        values = vars(preset_config(preset, "base")).items()
        around = {name: value for name, value in values if name in names or name.startswith("decoder_")}
        config = replace(config, **around)
    # Fine-tuning drops the decoder, and imports add a new one.
    has_decoder = any(name.startswith(_DECODER) for name in pretrained.weights)
    keeps_decoder = same and has_decoder and "decoder" not in pretrained.about.untrained
    dropped = () if keeps_decoder else (_DECODER,) if same else _OF_PRESET
    kept = {
        name: weight.float()
        for name, weight in pretrained.weights.items()
        if name.startswith(NETWORK) and not name.startswith(dropped)
    }
    config, new = (config, {}) if keeps_decoder else new_decoder(config, kept)
    weights = completed(config, kept | new, len(pretrained.symbols), seed)
    _, size = ARCHITECTURES[architecture_of(pretrained)]
    changed = {} if same else {"architecture": f"{preset}_{size}", "mask_in_encoder": 0.0}
    return replace(pretrained, config=config, weights=weights, about=replace(pretrained.about, **changed))


def new_decoder(
    config: MaskedAutoencoderConfig, weights: dict[str, Tensor]
) -> tuple[MaskedAutoencoderConfig, dict[str, Tensor]]:
    """Return a configuration with a new decoder around a trained encoder, and the weights that it starts from.

    The decoder has the encoder's relative position bias, or one of its own around an encoder without: it learned far
    faster than without a bias, and faster from the encoder's last layers than from random weights (docs/adapting.md).
    It starts from these layers, the layer norm whose output the first of them reads, and positions. Cross-attention
    has no counterpart in the encoder. There are no weights if the decoder has layers of other sizes than the encoder,
    or more.
    """
    if config.wrapped and has_own_decoder(of_its_type := replace(config, decoder_relative_buckets=0)):
        named = {name.removeprefix(NETWORK): weight for name, weight in weights.items()}
        return of_its_type, {f"{NETWORK}{name}": x for name, x in own_decoder(of_its_type, named).items()}
    if config.decoder_layers:
        buckets = {"decoder_relative_buckets": config.relative_buckets} if config.relative_buckets else OWN_BIAS
        config = replace(config, **buckets)
    encoder, decoder = config.encoder, config.decoder
    below = encoder.layers - decoder.layers
    sizes = ("dim", "ffn_dim", "heads")
    if not decoder.layers:
        return config, {}
    if config.wrapped or below < 0 or any(getattr(encoder, size) != getattr(decoder, size) for size in sizes):
        logger.warning("the new decoder starts from random weights, because the encoder has no such layers")
        return config, {}
    norm = "embed_layer_norm" if config.pre_norm or not below else f"layers.{below - 1}.final_layer_norm"
    sources = {f"layers.{layer}": f"layers.{below + layer}" for layer in range(decoder.layers)}
    sources |= {name: name for name in ("embed_positions", "output_layer_norm")} | {"embed_layer_norm": norm}
    if encoder.relative_buckets == decoder.relative_buckets:
        sources["relative_bias"] = "relative_bias"
    return config, {
        f"{_DECODER}{target}{name.removeprefix(prefix)}": weight.clone()
        for target, source in sources.items()
        for name, weight in weights.items()
        if name.startswith((prefix := f"{NETWORK}encoder.{source}") + ".")
    }


def completed(
    config: MaskedAutoencoderConfig, weights: dict[str, Tensor], symbols: int, seed: int
) -> dict[str, Tensor]:
    """Return the weights of the full network. Missing ones are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(config, symbols, PAD, symbols - 1)
    complete = {f"{NETWORK}{name}": weight for name, weight in network.state_dict().items()} | weights
    return complete | {name: complete[first] for name, first in tied_names(config, complete).items()}

"""Loading pretrained weights for fine-tuning: select weights, check that they fit, mark layer depths."""

import logging
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from fairseq.tasks import FairseqTask
from fairseq.tasks.masked_lm import MaskedLMTask
from torch import Tensor, nn

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.trained.validation import HEADS, PREDICTION, head_names
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

OUTPUT_CHANGING_OPTIONS = ("encoder_attention_heads", "layer_norm_eps", "pre_norm", "wrapped")
"""Options of every model that change the output but not the shape of any weight; below, those of parts, and of
pretraining."""
_BIAS_OPTIONS = ("relative_max_distance", "relative_bucketing")
_DECODER_HEADS = "decoder_attention_heads"
_DECODER_OPTIONS = (_DECODER_HEADS, "decoder_attention", "reset_mask_states", "renumber_visible")
_OBJECTIVE_OPTIONS = ("mask_join", "mask_join_layer")
_DEFAULTS = vars(MaskedAutoencoderConfig())


def predicts_masked_tokens(task: FairseqTask) -> bool:
    """Return whether a task pretrains: masked_autoencoder_lm, fairseq's masked_lm, and tasks derived from it."""
    return isinstance(task, MaskedLMTask)


def select_weights(saved: dict[str, Tensor], initial: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights to load into a model for fine-tuning, from a pretraining or fine-tuning checkpoint.

    Decoder and language model head are dropped. A task head is loaded if the model has a head of the same name and
    shape, as when an interrupted run resumes. Other heads are dropped, and the model's keep their ``initial`` weights.

    Returns:
        A value for each weight of the model, if the encoders' weights have the same names.
    """
    loaded = {name for name in saved if not name.startswith((HEADS, *PREDICTION))}
    for head in head_names(saved):
        shapes = _shapes(saved, head)
        if shapes == _shapes(initial, head):
            loaded |= shapes.keys()
    logger.info("loaded from the checkpoint: %s", _list(loaded))
    logger.info("new, not in the checkpoint: %s", _list(initial.keys() - loaded))
    logger.info("not loaded from the checkpoint: %s", _list(saved.keys() - loaded))
    new_heads = {name: weight for name, weight in initial.items() if name.startswith(HEADS)}
    return new_heads | {name: saved[name] for name in loaded}


def check_origin(
    filename: str,
    state: dict[str, Any],
    model_cfg: dict[str, Any],
    dictionary: str,
    decodes: bool,
    resumes: bool = False,
):
    """Check that a checkpoint's weights have the same meaning in a model as in the one that they were trained in.

    Args:
        resumes: whether the run continues pretraining with the same objective.

    Raises:
        UserError: if the checkpoint was trained with another dictionary, or with options that change what the same
            weights compute.
    """
    trained_with = (state.get("task_state") or {}).get("dictionary")
    if trained_with not in (None, dictionary):
        raise UserError(
            f"{filename} was trained with another dictionary than the data's dict.txt; prepare the data with that "
            "checkpoint's tokenizer"
        )
    saved = (state.get("cfg") or {}).get("model")
    saved = saved if hasattr(saved, "keys") else {}  # checkpoints of other fairseq models may hold a Namespace
    if not saved:
        return
    for name in _options_with_meaning(model_cfg, decodes, resumes):
        trained_with, value = _value(saved, name), _value(model_cfg, name)
        if trained_with != value:
            raise UserError(
                f"{filename} does not fit this model: --{name.replace('_', '-')} is {trained_with} in the checkpoint "
                f"and {value} here"
            )


def _options_with_meaning(model_cfg: Mapping[str, Any], decodes: bool, resumes: bool) -> Iterator[str]:
    yield from OUTPUT_CHANGING_OPTIONS
    if model_cfg.get("relative_buckets") or (decodes and model_cfg.get("decoder_relative_buckets")):
        yield from _BIAS_OPTIONS
    if decodes:
        yield from _DECODER_OPTIONS
    if resumes:
        yield from _OBJECTIVE_OPTIONS


def _value(options: Mapping[str, Any], name: str) -> Any:
    """Return an option of a model, or its default if it is unset, as in checkpoints that are older than the option.

    The decoder's number of attention heads defaults to the encoder's.
    """
    value = options.get(name)
    if value is None and name == _DECODER_HEADS:
        value = options.get("encoder_attention_heads")
    elif value is None:
        value = _DEFAULTS[name]
    return value.value if isinstance(value, Enum) else value


def mark_depths(encoder: nn.Module):
    """Set ``param_group`` of the encoder's parameters to their depth below the heads, for the optimizer.

    The top layer has depth 1, with the layer norm of its output, and the bottom layer the number of layers. Parameters
    below the layers, or shared by them, are one deeper. Parameters without a mark, such as those of heads and of the
    decoder, have depth 0.
    """
    layers = len(encoder.layers)
    _mark(encoder, layers + 1)
    _mark(encoder.output_layer_norm, 1)
    for depth, layer in enumerate(reversed(encoder.layers), 1):  # of a layer that is used several times, the lowest
        _mark(layer, depth)


def freeze_below(encoder: nn.Module, layers: int) -> None:
    """Freeze all parameters of an encoder but those of its last layers.

    Args:
        encoder: an encoder whose parameters have been marked by :func:`mark_depths`.

    Raises:
        UserError: if a layer is used several times, as in ALBERT, and only its last uses should be trained.
    """
    if 0 < layers < len(encoder.layers) > len(set(encoder.layers)):
        raise UserError(f"--trained-layers {layers}: the encoder uses a layer several times; train all or none")
    for parameter in encoder.parameters():
        parameter.requires_grad_(parameter.param_group <= layers)


def _mark(module: nn.Module, depth: int):
    for parameter in module.parameters():
        parameter.param_group = depth


def _shapes(weights: dict[str, Tensor], head: str) -> dict[str, tuple[int, ...]]:
    prefix = f"{HEADS}{head}."
    return {name: tuple(weight.shape) for name, weight in weights.items() if name.startswith(prefix)}


def _list(names) -> str:
    return ", ".join(sorted(names)) or "nothing"

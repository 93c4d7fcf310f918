"""From pretraining to fine-tuning: which weights are taken over, which stay behind, which start fresh."""

import logging
from collections.abc import Mapping
from typing import Any

from fairseq.tasks import FairseqTask
from fairseq.tasks.masked_lm import MaskedLMTask
from torch import Tensor, nn

from mae_lm_fairseq.core.transformer import TransformerStack
from mae_lm_fairseq.pretrained.validation import HEADS, PREDICTION, head_names
from mae_lm_fairseq.utils.errors import UserError

logger = logging.getLogger(__name__)

# What two networks with the same weights can compute differently.
_NOT_IN_THE_WEIGHTS = ("encoder_attention_heads", "relative_max_distance")
_OF_THE_DECODER = "decoder_attention_heads"


def predicts_masked_tokens(task: FairseqTask) -> bool:
    """Whether a task pretrains: masked_autoencoder_lm, fairseq's masked_lm and what derives from it do."""
    return isinstance(task, MaskedLMTask)


def take_over(saved: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a model for fine-tuning loads from a checkpoint, of pretraining or its own.

    Decoder and language model head stay behind. Heads for tasks are taken over where the model has one of the same name
    and shape, as when an interrupted run goes on; others stay behind, and the model's own start fresh.

    Args:
        saved: the checkpoint's weights by name.
        own: the model's.

    Returns:
        As many weights as the model has.

    Raises:
        UserError: the encoder's weights have other names than the model's; the message lists the difference.
    """
    fitting = {
        name for head in head_names(saved) if _shapes(saved, head) == _shapes(own, head) for name in _shapes(own, head)
    }
    encoder = {name for name in saved if not name.startswith((HEADS, *PREDICTION))}
    wanted = {name for name in own if not name.startswith(HEADS)}
    if encoder != wanted:
        raise UserError(
            "the checkpoint's encoder is not the model's, nothing was trained: "
            f"it lacks {_list(wanted - encoder)}; it has besides {_list(encoder - wanted)}; give the options of its "
            "architecture"
        )
    loaded = encoder | fitting
    logger.info("loaded from the checkpoint: %s", _list(loaded))
    logger.info("new, not in the checkpoint: %s", _list(own.keys() - loaded))
    logger.info("left out of the checkpoint: %s", _list(saved.keys() - loaded))
    return {name: saved[name] if name in loaded else weight for name, weight in own.items()}


def check_origin(filename: str, state: dict[str, Any], model_cfg: dict[str, Any], dictionary: str, decodes: bool):
    """Make sure that weights mean in a model what they meant where a checkpoint was made.

    Args:
        filename: the checkpoint's.
        state: what it holds.
        model_cfg: the options of the model.
        dictionary: fingerprint of the model's dictionary.
        decodes: whether the model has a decoder.

    Raises:
        UserError: it was trained with another dictionary, or computes something else with the same weights.
    """
    theirs = (state.get("task_state") or {}).get("dictionary")
    if theirs not in (None, dictionary):
        raise UserError(
            f"{filename} was trained with another dictionary than the data's dict.txt, nothing was trained; prepare "
            "the data with that checkpoint's tokenizer"
        )
    saved = (state.get("cfg") or {}).get("model")
    saved = saved if hasattr(saved, "keys") else {}  # other models of fairseq have a Namespace there
    for name in (*_NOT_IN_THE_WEIGHTS, *([_OF_THE_DECODER] if decodes else [])):
        there, here = (_value(options, name) for options in (saved, model_cfg))
        if name in saved and there != here:
            raise UserError(
                f"{filename} does not fit this model, nothing was trained: --{name.replace('_', '-')} is "
                f"{there} there and {here} here"
            )


def _value(options: Mapping[str, Any], name: str) -> Any:
    """An option of a model; where the decoder's heads are not given, they are as many as the encoder's."""
    if name == _OF_THE_DECODER and options.get(name) is None:
        return options.get("encoder_attention_heads")
    return options.get(name)


def mark_depths(encoder: TransformerStack):
    """Tell the optimizer how deep below the heads each of the encoder's parameters lies, as ``param_group``.

    The top layer is 1, the bottom one the number of layers, what comes before the layers or is shared by them one more.
    Parameters without a mark, those of heads, count as 0.
    """
    layers = len(encoder.layers)
    _mark(encoder, layers + 1)
    for index, layer in enumerate(encoder.layers):
        _mark(layer, layers - index)


def _mark(module: nn.Module, depth: int):
    for parameter in module.parameters():
        parameter.param_group = depth


def _shapes(weights: dict[str, Tensor], head: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in weights.items() if name.startswith(f"{HEADS}{head}.")}


def _list(names) -> str:
    return ", ".join(sorted(names)) or "nothing"

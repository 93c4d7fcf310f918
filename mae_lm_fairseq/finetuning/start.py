"""Starting point of fine-tuning: a checkpoint, a bundle, or random weights."""

from pathlib import Path
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES, DECODER_ATTENTIONS, plain_values, preset_config
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.recipes import FOR_SMALL_MODELS, Recipe
from mae_lm_fairseq.finetuning.results import end_of_path
from mae_lm_fairseq.trained.averaging import with_ema
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, save_checkpoint
from mae_lm_fairseq.trained.conversion import architecture_of
from mae_lm_fairseq.trained.opening import Description, describe, describe_random
from mae_lm_fairseq.training.settings import DEVELOPMENT, RECIPE_OF_SIZE
from mae_lm_fairseq.utils.errors import UserError

EMA = "ema"
"""Subdirectory of ``--out`` that every start with ``--ema`` writes again."""
# Model options that fine-tuning sets itself.
_SET_BY_FINETUNING = ("max_positions", "dropout", "attention_dropout", "decoder_dropout")


def find_start(options: FinetuningOptions, heads: tuple[str, ...] = ()) -> Description:
    """Return the model that the options name, whose heads must be the given ones; none if it is pretrained.

    With ``--ema``, the EMA weights are written to the output directory, as a checkpoint to start from. The name of an
    architecture stands for random weights, for a control experiment.

    Raises:
        UserError: if the model does not exist, is not one of this package, or has other heads.
    """
    model = options.model
    if options.ema:
        start = describe(write_ema(options))
    elif str(model) in ARCHITECTURES and not model.exists():
        start = describe_random(str(model))
    else:
        start = describe(model)
    _check_start(start, model, heads)
    return start


def write_ema(options: FinetuningOptions) -> Path:
    """Write the EMA weights of the checkpoint to the output directory, as a checkpoint; return its path.

    Raises:
        UserError: if it has none.
    """
    model = options.model
    state = with_ema(load_as_data(model), model)
    checkpoint = options.out / EMA / model.name
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(state, checkpoint)
    return checkpoint


def _check_start(start: Description, model: Path, heads: tuple[str, ...]) -> None:
    if start.path and start.path.is_file() and start.about.updates is None:  # fairseq needs it of a checkpoint
        raise UserError(f"{model}: has no training state. Run mae-lm bundle, then fine-tune its output")
    if start.heads != heads:
        problem = "is not fine-tuned"
        if start.heads:
            problem = f"has already been fine-tuned on {', '.join(start.heads)}"
        remedy = "the pretrained model"
        if heads:
            remedy = f"a model fine-tuned on {', '.join(heads)}"
        raise UserError(f"{model} {problem}; use {remedy}")


def network_options(start: Description) -> dict[str, Any]:
    """Return the options of the network that differ from its architecture's, with that as ``_name``.

    They are what :func:`~mae_lm_fairseq.training.command.as_options` expects.
    """
    name = architecture_of(start)
    defaults = plain_values(preset_config(*ARCHITECTURES[name]))
    options = {"_name": name}
    changed = plain_values(start.config)
    if start.config.decoder_attention not in DECODER_ATTENTIONS:  # fine-tuning drops the decoder
        del changed["decoder_attention"]
    for option, value in changed.items():
        # Not by truth: without a position bias, --relative-buckets is 0.
        if value != defaults[option] and option not in _SET_BY_FINETUNING:
            options[option] = value
    return options


def recipe_for(start: Description, published: Recipe) -> Recipe:
    """Return the published recipe for a base or large model, and our own for a tiny or small one."""
    _, size = ARCHITECTURES[architecture_of(start)]
    return FOR_SMALL_MODELS if RECIPE_OF_SIZE[size] == DEVELOPMENT else published


def start_content(start: Description) -> dict[str, Any]:
    """Return the content of the result file about the starting point."""
    if not start.path:
        origin = "random weights"
    elif start.heads:
        origin = f"a model fine-tuned on {', '.join(start.heads)}"
    else:
        origin = "a pretrained model"
    return {
        "from": origin,
        "checkpoint": start.path and end_of_path(start.path),
        "sha256": start.sha256,
        "updates": start.about.updates or 0,
        **network_options(start),
    }

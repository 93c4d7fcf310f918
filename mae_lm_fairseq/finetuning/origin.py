"""Starting point of fine-tuning: a checkpoint, a bundle, or random weights."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq.checkpoints.averaging import with_ema
from mae_lm_fairseq.checkpoints.checkpoint_file import (
    content_errors,
    load_as_data,
    opened_safetensors,
    save_checkpoint,
    value_at,
)
from mae_lm_fairseq.checkpoints.conversion import architecture_of
from mae_lm_fairseq.checkpoints.reading import (
    WEIGHTS,
    Pretrained,
    check_bundle,
    check_model_exists,
    read_description,
)
from mae_lm_fairseq.checkpoints.validation import head_names, saved_config
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, plain_values
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256

_EMA = "ema"
"""Subdirectory of ``--out`` that every start with ``--ema`` writes again."""
# Model options that fine-tuning sets itself.
_SET_BY_FINETUNING = ("max_positions", "dropout", "attention_dropout", "decoder_dropout")


@dataclass(frozen=True)
class Origin:
    """Starting point of fine-tuning.

    Attributes:
        checkpoint: the file, or the directory of a bundle; None for random weights.
        model: options of the model, with the architecture as ``_name``, as
            :func:`~mae_lm_fairseq.training.command.as_options` expects them.
        dictionary: fingerprint of the dictionary used in pretraining; None if unknown.
        heads: names of the fine-tuned heads; empty for a pretrained model.
        sha256: hash of the file, or of the bundle's weights.
    """

    checkpoint: Path | None
    model: dict[str, Any]
    max_positions: int
    dictionary: str | None = None
    heads: tuple[str, ...] = ()
    updates: int = 0
    sha256: str | None = None

    def described(self) -> dict[str, Any]:
        """Return a description for a result file. It has only the end of the path, as the file may be published."""
        kind = f"a model fine-tuned on {', '.join(self.heads)}" if self.heads else "a pretrained model"
        checkpoint = self.checkpoint and "/".join(self.checkpoint.parts[-2:])
        facts = {"checkpoint": checkpoint, "sha256": self.sha256, "updates": self.updates, **self.model}
        return {"from": kind if checkpoint else "random weights", **facts}


def find_origin(options: FinetuningOptions, heads: Sequence[str] = ()) -> Origin:
    """Return the starting point that the options name, whose heads must be the given ones; none if it is pretrained.

    With ``--ema``, the EMA weights are written to the output directory, as a checkpoint to start from.

    Raises:
        UserError: if the model does not exist, is not one of this package, or has other heads.
    """
    model = options.model
    if options.ema:
        state, written = with_ema(load_as_data(model), model), options.out / _EMA / model.name
        written.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(state, written)
        origin = origin_of(written)
    elif os.path.exists(model) or str(model) not in ARCHITECTURES:  # Path.exists raises for names that are too long
        origin = origin_of(model)
    else:
        positions = architecture_values(str(model))["max_positions"]
        origin = Origin(None, {"_name": str(model)}, positions)  # random weights, for the control experiment
    if origin.heads != tuple(heads):
        found = f"has already been fine-tuned on {', '.join(origin.heads)}" if origin.heads else "is not fine-tuned"
        needed = f"a model fine-tuned on {', '.join(heads)}" if heads else "the pretrained model"
        raise UserError(f"{model} {found}; use {needed}")
    return origin


def origin_of(path: Path) -> Origin:
    """Return the starting point described by a checkpoint or bundle of this package.

    The weights of a bundle are compared with their hash, but not loaded: each run does, and checks them.

    Raises:
        UserError: if the file is missing, damaged, or from another model.
    """
    check_model_exists(path)
    if os.path.isdir(path):
        return _of_bundle(path)
    state = load_as_data(path, mapped=True)
    with content_errors(path):
        config, heads = saved_config(state), tuple(head_names(state["model"]))
    updates = value_at(state, "optimizer_history", -1, "num_updates")
    if updates is None:  # fairseq asks for it
        raise UserError(f"{path}: has no training state. Run mae-lm bundle, then fine-tune its output")
    options = _model_options(value_at(state, "cfg", "model", "_name"), config)
    dictionary = value_at(state, "task_state", "dictionary")
    return Origin(path.resolve(), options, config.max_positions, dictionary, heads, updates, file_sha256(path))


def _of_bundle(path: Path) -> Origin:
    hashes = check_bundle(path)
    config, info = read_description(path)
    with opened_safetensors(path / WEIGHTS, "create the bundle again") as file:
        heads = tuple(head_names(file.keys()))
    options = _model_options(architecture_of(Pretrained(config, {}, (), None, info)), config)
    dictionary, sha256 = info.dictionary_sha256, hashes.get(WEIGHTS) or file_sha256(path / WEIGHTS)
    return Origin(path.resolve(), options, config.max_positions, dictionary, heads, info.updates or 0, sha256)


def _model_options(name: str, config: MaskedAutoencoderConfig) -> dict[str, Any]:
    defaults = architecture_values(name)
    # Not by truth: without a position bias, --relative-buckets is 0.
    changed = {key: value for key, value in plain_values(config).items() if value != defaults[key]}
    return {"_name": name} | {key: value for key, value in changed.items() if key not in _SET_BY_FINETUNING}

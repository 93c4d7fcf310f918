"""Starting point of fine-tuning: a checkpoint, a bundle, or random weights."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from mae_lm_fairseq.checkpoints.averaging import read_ema
from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data
from mae_lm_fairseq.checkpoints.conversion import read_training_state
from mae_lm_fairseq.checkpoints.reading import WEIGHTS
from mae_lm_fairseq.checkpoints.validation import head_names
from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, make_output_directory

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
        max_positions: maximum sequence length.
        dictionary: fingerprint of the dictionary used in pretraining; None if unknown.
        heads: names of the fine-tuned heads; empty for a pretrained model.
        updates: number of updates of the previous training.
        sha256: hash of the file, or of the bundle's weights.
    """

    checkpoint: Path | None
    model: dict[str, Any]
    max_positions: int
    dictionary: str | None = None
    heads: tuple[str, ...] = ()
    updates: int = 0
    sha256: str | None = None

    @property
    def kind(self) -> str:
        """The kind of start, in words."""
        if self.checkpoint is None:
            return "random weights"
        return f"a model fine-tuned on {', '.join(self.heads)}" if self.heads else "a pretrained model"

    def described(self) -> dict[str, Any]:
        """Return a description for a result file. It has only the end of the path, as the file may be published."""
        checkpoint = self.checkpoint and "/".join(self.checkpoint.parts[-2:])
        return {"checkpoint": checkpoint, "sha256": self.sha256, "updates": self.updates, **self.model}


def find_origin(options: FinetuningOptions, heads: tuple[str, ...] = ()) -> Origin:
    """Return the starting point that the options name.

    Args:
        options: with ``ema``, the EMA weights are written to the output directory, as a checkpoint to start from.
        heads: names of the heads that the model must have; none for a pretrained model.

    Raises:
        UserError: if the model does not exist, is not one of this package, or has other heads.
    """
    model = options.model
    if os.path.exists(model) or str(model) not in ARCHITECTURES:  # Path.exists raises for names that are too long
        origin = origin_of(ema_checkpoint(model, options.out) if options.ema else model)
    elif options.ema:
        raise UserError(f"--ema: {model} stands for random weights, which have no moving average")
    else:
        origin = from_scratch(str(model))
    if origin.heads != heads:
        found = f"has already been fine-tuned on {', '.join(origin.heads)}" if origin.heads else "is not fine-tuned"
        needed = f"a model fine-tuned on {', '.join(heads)}" if heads else "the pretrained model"
        raise UserError(f"{model} {found}; use {needed}")
    return origin


def from_scratch(architecture: str) -> Origin:
    """Return random weights of an architecture as the starting point, for the control experiment."""
    return Origin(None, {"_name": architecture}, architecture_values(architecture)["max_positions"])


def origin_of(path: Path) -> Origin:
    """Return the starting point described by a checkpoint or bundle of this package.

    Raises:
        UserError: if the file is missing, damaged, or from another model.
    """
    if not os.path.exists(path):
        raise UserError(
            f"{path}: no such file or directory, and no architecture, for random weights: {', '.join(ARCHITECTURES)}"
        )
    is_bundle = os.path.isdir(path)
    state = read_training_state(path) if is_bundle else load_as_data(path, mapped=True)
    saved = (state.get("cfg") or {}).get("model")
    name = saved.get("_name", "") if hasattr(saved, "keys") else ""
    if name not in ARCHITECTURES:
        raise UserError(f"{path}: not a model of this package (architecture {name or 'unknown'})")
    if not state.get("optimizer_history"):  # which fairseq asks for
        raise UserError(f"{path}: has weights alone; fine-tune a bundle of it, which mae-lm bundle makes")
    defaults = architecture_values(name)
    changed = {
        key: saved[key]
        for key in defaults
        if key not in _SET_BY_FINETUNING and saved.get(key, defaults[key]) != defaults[key]
    }
    return Origin(
        path.resolve(),
        {"_name": name, **{key: value for key, value in changed.items() if value is not None and value is not False}},
        saved.get("max_positions", defaults["max_positions"]),
        (state.get("task_state") or {}).get("dictionary"),
        tuple(head_names(state["model"])),
        state["optimizer_history"][-1]["num_updates"],
        file_sha256(path / WEIGHTS if is_bundle else path),
    )


def ema_checkpoint(checkpoint: Path, out: Path) -> Path:
    """Write the EMA weights of a checkpoint to ``out``, as the model of a checkpoint, and return its path.

    Raises:
        UserError: if they cannot be read or written.
    """
    state = read_ema(checkpoint)
    make_output_directory(out / _EMA)
    written = out / _EMA / checkpoint.name
    checkpoint_utils.torch_persistent_save(state, str(written))
    return written

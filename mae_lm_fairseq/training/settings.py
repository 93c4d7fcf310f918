"""fairseq's options for training an architecture, by group, for the command line and for Hydra."""

from copy import deepcopy
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.training.stated import STATED, Cell
from mae_lm_fairseq.utils.errors import UserError

Settings = dict[str, dict[str, Any]]

DEVELOPMENT = "development"
"""Our own column, for sizes that learn within minutes."""

# Speed, logging and checkpoints: none of these options changes the results. Those of long runs are from MAE-LM's
# script. fairseq drops an epoch's last batch unless its size is a multiple of required_batch_size_multiple, default 8.
_LONG_RUN: Settings = {
    "common": {"log_interval": 100, "fp16_init_scale": 4, "fp16_scale_window": 256},
    "dataset": {"batch_size": 32, "required_batch_size_multiple": 1, "num_workers": 8},
    "checkpoint": {"save_interval_updates": 10_000, "keep_interval_updates": 30, "no_epoch_checkpoints": True},
}
_SHORT_RUN: Settings = {
    "common": {"log_interval": 10},
    "dataset": {
        "batch_size": 32,
        "required_batch_size_multiple": 1,
        "num_workers": 1,
        "validate_interval_updates": 200,
    },
    "checkpoint": {"save_interval_updates": 200, "keep_interval_updates": 1, "no_epoch_checkpoints": True},
}


COLUMNS = {"tiny": DEVELOPMENT, "small": DEVELOPMENT, "base": "MAE-LM base", "large": "MAE-LM large"}
"""The column of the table for each size."""


def recipe(architecture: str) -> dict[str, Cell]:
    """Return the settings of an architecture: rows of the table of published settings.

    Presets of one size share a recipe, so that a comparison is one of architectures. Only the 3ML presets have a higher
    masking rate, which is their purpose. Base and large use MAE-LM's recipe, tiny and small our own.

    Raises:
        UserError: if the architecture does not exist; the message lists the presets.
    """
    if architecture not in ARCHITECTURES:
        raise UserError(f"no preset {architecture}; choose one of {', '.join(ARCHITECTURES)}")
    preset, size = ARCHITECTURES[architecture]
    rows = STATED[COLUMNS[size]]
    if preset.startswith("mae_lm_3ml"):
        rows = {**rows, "mask_prob": STATED["3ML base"]["mask_prob"]}
    return rows


def settings(architecture: str) -> Settings:
    """Return fairseq's options except paths, precision and ``update_freq``, which depend on the machine."""
    value = {row: cell.value for row, cell in recipe(architecture).items()}
    pace = _LONG_RUN if value["updates"] > 100_000 else _SHORT_RUN
    return {
        **deepcopy(pace),
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": value["tokens"],
            "sample_break_mode": "complete_doc",
            "mask_prob": value["mask_prob"],
            "leave_unmasked_prob": value["kept"],
            "random_token_prob": value["random"],
        },
        "model": {
            "_name": architecture,
            "dropout": value["dropout"],
            "attention_dropout": value["attention_dropout"],
        },
        "criterion": {"_name": "masked_autoencoder_lm"},
        "optimizer": {
            "_name": "adam",
            "adam_betas": str(value["betas"]),
            "adam_eps": value["eps"],
            "weight_decay": value["weight_decay"],
        },
        "lr_scheduler": {
            "_name": "polynomial_decay",
            "warmup_updates": value["warmup"],
            "total_num_update": value["updates"],
        },
        "optimization": {"lr": [value["lr"]], "clip_norm": value["clip_norm"], "max_update": value["updates"]},
    }


def as_options(chosen: Settings) -> dict[str, Any]:
    """Convert settings by group to options of fairseq-train, without dashes in front."""
    options = {}
    for group, values in chosen.items():
        for name, value in values.items():
            option = {"model": "arch"}.get(group, group) if name == "_name" else name
            options[option.replace("_", "-")] = value[0] if isinstance(value, list) else value
    return options


def as_words(options: dict[str, Any]) -> list[str]:
    """Convert options to words of the command line; ``True`` is a flag, and ``False`` its absence."""
    words = []
    for name, value in options.items():
        words += [] if value is False else [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def as_arguments(chosen: Settings) -> list[str]:
    """Convert settings by group to words of the command line of fairseq-train."""
    return as_words(as_options(chosen))

"""What fairseq is told to train an architecture: its options by group, for the command line and for Hydra alike."""

from copy import deepcopy
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.recipes.stated import STATED, Cell
from mae_lm_fairseq.utils.errors import UserError

Settings = dict[str, dict[str, Any]]

DEVELOPMENT = "development"
"""The column that is ours, for sizes that learn something within minutes."""

# How fast and how often, which changes no result. The first are those of MAE-LM's script.
_LONG_RUN: Settings = {
    "common": {"log_interval": 100, "fp16_init_scale": 4, "fp16_scale_window": 256},
    "dataset": {"batch_size": 32, "num_workers": 8},
    "checkpoint": {"save_interval_updates": 10_000, "keep_interval_updates": 30, "no_epoch_checkpoints": True},
}
_SHORT_RUN: Settings = {
    "common": {"log_interval": 10},
    "dataset": {"batch_size": 32, "num_workers": 1, "validate_interval_updates": 200},
    "checkpoint": {"save_interval_updates": 200, "keep_interval_updates": 1, "no_epoch_checkpoints": True},
}


COLUMNS = {"tiny": DEVELOPMENT, "small": DEVELOPMENT, "base": "MAE-LM base", "large": "MAE-LM large"}
"""The column of the table that each size is trained with."""


def recipe(architecture: str) -> dict[str, Cell]:
    """The rows of the table that an architecture is trained with.

    Presets of one size have the same recipe, so that a comparison compares architectures; only 3ML's mask more, which
    is what they are made for. Base and large take MAE-LM's, tiny and small ours.

    Raises:
        UserError: there is no such architecture; the message lists them.
    """
    if architecture not in ARCHITECTURES:
        raise UserError(f"no preset {architecture}; the presets are {', '.join(ARCHITECTURES)}")
    preset, size = ARCHITECTURES[architecture]
    rows = STATED[COLUMNS[size]]
    if preset.startswith("mae_lm_3ml"):
        rows = {**rows, "mask_prob": STATED["3ML base"]["mask_prob"]}
    return rows


def settings(architecture: str) -> Settings:
    """fairseq's options, but for paths, precision, and ``update_freq``, which depends on the number of processes."""
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


def as_arguments(chosen: Settings) -> list[str]:
    """The options of fairseq-train that say the same as settings by group."""
    words = []
    for group, values in chosen.items():
        for name, value in values.items():
            option = {"model": "arch"}.get(group, group) if name == "_name" else name
            words.append(f"--{option.replace('_', '-')}")
            if value is not True:
                words.append(str(value[0] if isinstance(value, list) else value))
    return words

"""Recipes: the settings that an architecture is pretrained with, from the table of published ones."""

from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES, no_preset
from mae_lm_fairseq.training.command import Optimisation, Settings, common_settings, merge
from mae_lm_fairseq.training.published import ADAM, PUBLISHED, Setting
from mae_lm_fairseq.utils.errors import UserError

DEVELOPMENT = "development"
"""Our own recipe, for sizes that learn within minutes."""

# Speed, logging and checkpoints: none of these options changes the results. Those of long runs are from MAE-LM's
# script.
_LONG_RUN: Settings = {
    "common": {"log_interval": 100, "fp16_init_scale": 4, "fp16_scale_window": 256},
    "dataset": {"batch_size": 32, "num_workers": 8},
    "checkpoint": {"save_interval_updates": 10_000, "keep_interval_updates": 30},
}
_SHORT_RUN: Settings = {
    "common": {"log_interval": 10},
    "dataset": {"batch_size": 32, "num_workers": 1, "validate_interval_updates": 200},
    "checkpoint": {"save_interval_updates": 200, "keep_interval_updates": 1},
}


RECIPES = {
    DEVELOPMENT: DEVELOPMENT,
    "base": "MAE-LM base",
    "base++": "MAE-LM base++",
    "large++": "MAE-LM large++",
    "academic": "academic",
    "fairseq": "fairseq's RoBERTa base",
}
"""The column of the table for each recipe."""
RECIPE_OF_SIZE = {"tiny": DEVELOPMENT, "small": DEVELOPMENT, "base": "base", "large": "large++"}


def recipe(architecture: str, name: str | None = None) -> dict[str, Setting]:
    """Return the settings that an architecture is trained with: rows of the table of published settings.

    Presets of one size share a recipe, so that a comparison is one of architectures. Only the 3ML presets have a higher
    masking rate, which is their purpose.

    Args:
        name: one of :data:`RECIPES`; by default that of its size.

    Raises:
        UserError: if the architecture does not exist; the message lists the presets.
    """
    if architecture not in ARCHITECTURES:
        raise UserError(no_preset(architecture))
    preset, size = ARCHITECTURES[architecture]
    rows = PUBLISHED[RECIPES[name or RECIPE_OF_SIZE[size]]]
    if preset.startswith("mae_lm_3ml"):
        rows = {**rows, "mask_prob": PUBLISHED["3ML base"]["mask_prob"]}
    return rows


def settings(architecture: str, name: str | None = None) -> Settings:
    """Return fairseq's options except paths, precision and ``update_freq``, which depend on the machine.

    Args:
        name: the recipe, as in :func:`recipe`.
    """
    value = {row: cell.value for row, cell in recipe(architecture, name).items()}
    name = name or RECIPE_OF_SIZE[ARCHITECTURES[architecture][1]]
    pace = _SHORT_RUN if name == DEVELOPMENT else _LONG_RUN
    rows = ("updates", "warmup", "weight_decay", "clip_norm", *ADAM)
    optimisation = Optimisation(optimizer="adam", **{row: value[row] for row in rows})
    network: Settings = {
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
        "optimization": {"lr": [value["lr"]]},
    }
    if value["pre_norm"]:
        network["model"]["pre_norm"] = True
    return merge(common_settings(), pace, network, optimisation.settings())


def tokens_per_update(cfg: Any, processes: int) -> int:
    """Return the number of tokens per update of a configuration of fairseq-train, if all sequences are full."""
    per_batch = cfg.dataset.batch_size * cfg.task.tokens_per_sample
    if cfg.dataset.max_tokens:
        per_batch = min(per_batch, cfg.dataset.max_tokens)
    return per_batch * cfg.optimization.update_freq[0] * processes


def describe_amount(cfg: Any, processes: int) -> str:
    """Return the amount of training data of a configuration of fairseq-train in one sentence."""
    batch_size, accumulated = cfg.dataset.batch_size, cfg.optimization.update_freq[0]
    number = cfg.optimization.max_update
    updates = f"{number:,} updates" if number else "any number of updates"
    in_processes = "1 process" if processes == 1 else f"{processes} processes"
    batches = f"x {accumulated} accumulated x {in_processes}"
    if cfg.dataset.max_tokens:
        return f"at most {cfg.dataset.max_tokens:,} tokens and {batch_size} sequences per batch {batches}; {updates}"
    sequences = batch_size * accumulated * processes
    tokens = tokens_per_update(cfg, processes)
    if number:
        updates += f" = {tokens * number:,} tokens"
    return (
        f"{sequences:,} sequences ({batch_size} per batch {batches}) x {cfg.task.tokens_per_sample} tokens = "
        f"{tokens:,} tokens per update at most; {updates}"
    )

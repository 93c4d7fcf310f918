"""Training of ``mae-lm adapt``: objective, and the run of fairseq-train."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.presets import preset_of, with_preset
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.huggingface.importer import network_options
from mae_lm_fairseq.study.options import AdaptOptions
from mae_lm_fairseq.training.command import (
    COMMON,
    Optimisation,
    Settings,
    as_options,
    in_background,
    merge,
    train_command,
)
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.training_log import loss_curve, training_seconds
from mae_lm_fairseq.utils.errors import UserError

PRESET_OF = {"mlm": "mae_lm_roberta", "mae_lm": "mae_lm", "3ml": "mae_lm_3ml_self"}
"""The preset of each objective, for models of another one."""
_OBJECTIVE_OF = {preset: objective for objective, preset in PRESET_OF.items()} | {
    "mae_lm_3ml_cross": "3ml",
    "mae_lm_mask_later": "mask_later",
    "mae_lm_exlm": "exlm",
    "mae_lm_exlm_decoder": "exlm",
}
MASKING = {
    "mlm": {"mask_prob": 0.15, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1},
    "mae_lm": {"mask_prob": 0.15},
    "3ml": {"mask_prob": 0.5},
    "mask_later": {"mask_prob": 0.15},
    "exlm": {"mask_prob": 0.15},
}
"""Options of the task for each objective: those of the papers, and BERT's 80/10/10."""
LONGEST = 512
"""Maximum of the default of ``--tokens-per-sample``."""
TRAINED = ("model", "stock", "model.json")
"""Products of the training, in the output directory."""


def objective_of(model: Pretrained) -> str:
    """Return the objective that a model was trained with: one of :data:`MASKING`."""
    return _OBJECTIVE_OF[preset_of(model)]


def as_objective(start: Pretrained, options: AdaptOptions) -> Pretrained:
    """Return the model to train: the start with decoder and head of the objective.

    Raises:
        UserError: if the options do not fit the model.
    """
    objective = options.objective or objective_of(start)
    preset = preset_of(start) if objective == objective_of(start) else PRESET_OF[objective]
    try:
        model = with_preset(start, preset, options.seed)
    except ValueError as problem:
        raise UserError(f"--objective {objective} does not fit {options.model}: {problem}") from None
    length = tokens_per_sample(model, options)
    if length > model.config.max_positions:
        raise UserError(f"--tokens-per-sample {length}: the model takes up to {model.config.max_positions} tokens")
    if options.batch_size < length:
        raise UserError(f"--batch-size {options.batch_size} must be at least --tokens-per-sample, {length}")
    return model


def tokens_per_sample(model: Pretrained, options: AdaptOptions) -> int:
    """Return the maximum sequence length of training."""
    return options.tokens_per_sample or min(model.config.max_positions, LONGEST)


def batch_tokens() -> int:
    """Return how many tokens may be in memory; a larger batch is accumulated. Encoders of base size fit with it."""
    return 16_384 if torch.cuda.is_available() else 2_048


def training_run(model: Pretrained, options: AdaptOptions) -> Run:
    """Return the run of fairseq-train, after writing the bundle that it starts from."""
    folder = options.out / "training"
    if not (folder / "start").exists():
        write_bundle(model, folder / "start")
    extra = [*network_options(model), *options.extra]
    command = train_command(options.out / "data-bin", as_options(_settings(model, options)), extra)
    read_result = partial(_read_result, out=options.out)
    return Run("training", command, folder / "result.json", read_result, (0, options.updates))


def _remove_trained(out: Path) -> None:
    """Remove the products of an earlier training, whose directory the user removed to train again."""
    for name in TRAINED:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _settings(model: Pretrained, options: AdaptOptions) -> Settings:
    """Return fairseq's options but those of the network.

    Adam, weight decay and the shape of the schedule are those of task-adaptive pretraining (Gururangan et al., 2020,
    arXiv 2004.10964, Table 14).
    """
    length = tokens_per_sample(model, options)
    accumulated = -(-options.batch_size // max(batch_tokens(), length))
    masking = MASKING[objective_of(model)] | ({"mask_prob": options.mask_prob} if options.mask_prob else {})
    save_every = max(1, options.updates // 10)
    ends_after_an_epoch = any(word.startswith("--max-epoch") for word in options.extra)
    optimisation = Optimisation(updates=options.updates, weight_decay=0.01, clip_norm=1.0)
    chosen: Settings = {
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": length,
            "sample_break_mode": "complete_doc",
            "mask_in_encoder": model.mask_in_encoder,
            "freeze_encoder_updates": options.freeze_encoder_updates,
            **masking,
        },
        "criterion": {"_name": "masked_autoencoder_lm"},
        "optimizer": {"layer_lr_decay": options.layer_lr_decay},
        "optimization": {"lr": [options.learning_rate], "update_freq": [accumulated]},
        "dataset": {
            "max_tokens": max(length, -(-options.batch_size // accumulated)),
            "num_workers": 1,
            "disable_validation": True,
        },
        "checkpoint": {
            "finetune_from_model": options.out / "training" / "start",
            "save_dir": options.out / "training" / "checkpoints",
            # A small text has hundreds of epochs. At the end of --max-epoch, fairseq saves only at this interval.
            "save_interval": 1 if ends_after_an_epoch else options.updates + 1,
            "save_interval_updates": save_every,
            "keep_interval_updates": 1,
        },
        "common": {
            "log_interval": max(1, options.updates // 1000),  # an update can take a minute on a CPU
            "seed": options.seed,
        },
    }
    if torch.cuda.is_available():
        chosen["model"] = {"autocast": "bf16"}
    return merge(COMMON, in_background(), optimisation.settings(), chosen)


def _read_result(run: Run, out: Path) -> dict[str, Any]:
    _remove_trained(out)
    updates, losses = loss_curve(run.log, "train_inner")
    last = losses[updates > 0.9 * updates.max(initial=0)]
    return {"loss_of_last_tenth": float(last.mean()) if len(last) else None, "seconds": training_seconds(run.log)}

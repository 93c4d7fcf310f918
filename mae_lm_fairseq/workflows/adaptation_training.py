"""Training of ``mae-lm adapt``: options, objective, and the run of fairseq-train."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.presets import preset_of, with_preset
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.huggingface.importer import network_options
from mae_lm_fairseq.tasks.long_lines import MIN_SAMPLE_TOKENS
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.training.settings import Settings, as_arguments
from mae_lm_fairseq.training.training_command import with_device
from mae_lm_fairseq.training.training_log import loss_curve, training_seconds
from mae_lm_fairseq.utils.errors import UserError

PRESET_OF = {"mlm": "mae_lm_roberta", "mae_lm": "mae_lm", "3ml": "mae_lm_3ml_self"}
"""The preset of each objective, for models of another one."""
_OBJECTIVE_OF = {preset: objective for objective, preset in PRESET_OF.items()} | {
    "mae_lm_3ml_cross": "3ml",
    "mae_lm_mask_later": "mask_later",
}
MASKING = {
    "mlm": {"mask_prob": 0.15, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1},
    "mae_lm": {"mask_prob": 0.15},
    "3ml": {"mask_prob": 0.5},
    "mask_later": {"mask_prob": 0.15},
}
"""Options of the task for each objective: those of the papers, and BERT's 80/10/10."""
LONGEST = 512
"""Maximum of the default of ``--tokens-per-sample``."""
BATCH_TOKENS = 16_384 if torch.cuda.is_available() else 2_048
"""Maximum number of tokens in memory at a time; a larger batch is accumulated. Encoders of base size fit with it."""
WARMUP_FRACTION = 0.06
TRAINED = ("model", "stock", "model.json")
"""Products of the training, in the output directory."""


@dataclass(frozen=True)
class Options:
    """Options of the command; it has their defaults.

    Attributes:
        model: directory of ``transformers``, bundle, or checkpoint.
        data_bin: for a checkpoint, the directory of its dictionary and tokenizer.
        train, valid: files, directories and globs.
        out: output directory.
        objective: ``mlm``, ``mae_lm`` or ``3ml``; None for that of the model.
        updates: number of updates.
        learning_rate: the maximum, after the warm-up.
        batch_size: tokens per update.
        tokens_per_sample: maximum sequence length; None for the model's, at most :data:`LONGEST`.
        mask_prob: fraction of predicted tokens; None for the objective's.
        freeze_encoder_updates: updates that leave the encoder as it is.
        layer_lr_decay: factor between the learning rate of a layer and that of the layer above it.
        text_field: field with the text, in files with records.
        seed: seed of new weights, masks, dropout and order.
        extra: further options of fairseq-train.
    """

    model: Path
    train: list[str]
    valid: list[str]
    out: Path
    data_bin: Path | None
    objective: str | None
    updates: int
    learning_rate: float
    batch_size: int
    tokens_per_sample: int | None
    mask_prob: float | None
    freeze_encoder_updates: int
    layer_lr_decay: float
    text_field: str
    seed: int
    extra: Sequence[str] = ()

    def recorded(self) -> dict[str, Any]:
        """Return the options that determine the result, as JSON, with absolute paths."""
        return self._with_paths(lambda path: str(Path(path).absolute()))

    def described(self) -> dict[str, Any]:
        """Return them with the last part of each path only, as results may be published."""
        return self._with_paths(lambda path: Path(path).name)

    def _with_paths(self, named: Callable[[str | Path], str]) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name != "out"}
        for name in ("train", "valid"):
            values[name] = [named(path) for path in values[name]]
        for name in ("model", "data_bin"):
            values[name] = values[name] and named(values[name])
        return values


def objective_of(model: Pretrained) -> str:
    """Return the objective that a model was trained with: one of :data:`MASKING`."""
    return _OBJECTIVE_OF[preset_of(model)]


def as_objective(start: Pretrained, options: Options) -> Pretrained:
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
    if length < MIN_SAMPLE_TOKENS:
        raise UserError(f"--tokens-per-sample {length} must be at least {MIN_SAMPLE_TOKENS}")
    if options.mask_prob == 1:
        raise UserError("--mask-prob 1 must be below 1")
    if length > model.config.max_positions:
        raise UserError(f"--tokens-per-sample {length}: the model takes up to {model.config.max_positions} tokens")
    if options.batch_size < length:
        raise UserError(f"--batch-size {options.batch_size} must be at least --tokens-per-sample, {length}")
    return model


def tokens_per_sample(model: Pretrained, options: Options) -> int:
    """Return the maximum sequence length of training."""
    return options.tokens_per_sample or min(model.config.max_positions, LONGEST)


def training_run(model: Pretrained, options: Options) -> Run:
    """Return the run of fairseq-train, after writing the bundle that it starts from."""
    folder = options.out / "training"
    if not (folder / "start").exists():
        write_bundle(model, folder / "start")
    arguments = [*network_options(model), *as_arguments(_settings(model, options)), *options.extra]
    command = [sys.executable, "-m", "fairseq_cli.train", str(options.out / "data-bin"), *arguments]

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


def _settings(model: Pretrained, options: Options) -> Settings:
    """Return fairseq's options but those of the network.

    Adam, weight decay and the shape of the schedule are those of task-adaptive pretraining (Gururangan et al., 2020,
    arXiv 2004.10964, Table 14).
    """
    length = tokens_per_sample(model, options)
    accumulated = -(-options.batch_size // max(BATCH_TOKENS, length))
    masking = MASKING[objective_of(model)] | ({"mask_prob": options.mask_prob} if options.mask_prob else {})
    save_every = max(1, options.updates // 10)
    ends_after_an_epoch = any(word.startswith("--max-epoch") for word in options.extra)
    chosen = {
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": length,
            "sample_break_mode": "complete_doc",
            "mask_in_encoder": model.mask_in_encoder,
            "freeze_encoder_updates": options.freeze_encoder_updates,
            **masking,
        },
        "criterion": {"_name": "masked_autoencoder_lm"},
        "optimizer": {
            "_name": "fused_adamw",
            "adam_betas": "(0.9, 0.98)",
            "adam_eps": 1e-6,
            "weight_decay": 0.01,
            "layer_lr_decay": options.layer_lr_decay,
        },
        "lr_scheduler": {
            "_name": "polynomial_decay",
            "warmup_updates": round(WARMUP_FRACTION * options.updates),
            "total_num_update": options.updates,
        },
        "optimization": {
            "lr": [options.learning_rate],
            "clip_norm": 1.0,
            "max_update": options.updates,
            "update_freq": [accumulated],
        },
        "dataset": {
            "max_tokens": max(length, -(-options.batch_size // accumulated)),
            "required_batch_size_multiple": 1,
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
            "no_epoch_checkpoints": True,
        },
        "common": {
            "user_dir": PACKAGE,
            "log_format": "json",
            "log_interval": max(1, options.updates // 1000),  # an update can take a minute on a CPU
            "seed": options.seed,
        },
    }
    if torch.cuda.is_available():
        chosen["model"] = {"autocast": "bf16"}
    return with_device(chosen)


def _read_result(run: Run, out: Path) -> dict[str, Any]:
    _remove_trained(out)
    updates, losses = loss_curve(run.log, "train_inner")
    last = losses[updates > 0.9 * updates.max(initial=0)]
    return {"loss_of_last_tenth": float(last.mean()) if len(last) else None, "seconds": training_seconds(run.log)}

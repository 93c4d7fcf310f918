"""Adaptation of a pretrained model to a text: further pretraining, measured before and after.

``mae-lm adapt`` uses this module. Every step leaves its result in the output directory and is skipped if that exists.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.experiments.adaptation_report import report
from mae_lm_fairseq.experiments.evaluation import measure
from mae_lm_fairseq.experiments.readers import hugging_face_kind
from mae_lm_fairseq.huggingface.bundle import write_bundle
from mae_lm_fairseq.huggingface.exporter import export_stock
from mae_lm_fairseq.huggingface.importer import import_foreign, network_options, write_checkpoint
from mae_lm_fairseq.huggingface.stock import counterpart
from mae_lm_fairseq.pretrained.presets import predicts, preset_of, with_preset
from mae_lm_fairseq.pretrained.reading import Pretrained, read, read_checkpoint
from mae_lm_fairseq.recipes.settings import Settings, as_arguments
from mae_lm_fairseq.recipes.training_command import with_device
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.text.corpus import Reading, sample_corpus
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json, write_results, write_text
from mae_lm_fairseq.utils.progress import step
from mae_lm_fairseq.utils.runner import Run, reserve, run_all, updates_done
from mae_lm_fairseq.utils.training_log import NATS_PER_BIT, read_records
from mae_lm_fairseq.utils.versions import machine, versions

PRESET_OF = {"mlm": "mae_lm_roberta", "mae_lm": "mae_lm", "3ml": "mae_lm_3ml_self"}
"""The preset of each objective, for models of another one."""
MASKING = {
    "mlm": {"mask_prob": 0.15, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1},
    "mae_lm": {"mask_prob": 0.15},
    "3ml": {"mask_prob": 0.5},
}
"""Options of the task for each objective: those of the papers, and BERT's 80/10/10."""
LONGEST = 512
"""Maximum of the default of ``--tokens-per-sample``."""
BATCH_TOKENS = 16_384 if torch.cuda.is_available() else 2_048
"""Maximum number of tokens in memory at a time; a larger batch is accumulated. Encoders of base size fit with it."""
WARMUP_FRACTION = 0.06
HELD_OUT_BYTES = 200_000
"""Size of the sample of the held-out text that is measured, some 50,000 tokens."""
MEASUREMENT = {"tokens": 50_000, "pseudo_tokens": 2_000, "mask_prob": 0.15, "seed": 1}
"""Options of ``mae-lm evaluate``."""


@dataclass(frozen=True)
class Options:
    """Options of the command.

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
    data_bin: Path | None = None
    objective: str | None = None
    updates: int = 1000
    learning_rate: float = 1e-4
    batch_size: int = 8192
    tokens_per_sample: int | None = None
    mask_prob: float | None = None
    freeze_encoder_updates: int = 0
    layer_lr_decay: float = 1.0
    text_field: str = "text"
    seed: int = 1
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


def adapt(options: Options) -> dict[str, Any]:
    """Run, or resume, all steps, and return the content of ``results.json``.

    Raises:
        UserError: if the model or the text cannot be used, training fails, or the directory has other results.
    """
    reserve(options.out, options.recorded())
    with step(1, 5, f"Text and model: {options.model}"):
        start = make_start(options)
        model = as_objective(start, options)
        text = Manifest.read(options.out / "data-bin" / MANIFEST)
    with step(2, 5, "Held-out loss before"):
        before = measured(options, "start") if predicts(start) else None
        print_measurement(before)
    tokens = options.updates * options.batch_size
    passes = tokens / text.splits["train"].tokens_out
    with step(3, 5, f"Training: {tokens:,} tokens, {passes:.1f} times the text, on {machine()}"):
        [training] = run_all([training_run(model, options)], threads=torch.get_num_threads())
    with step(4, 5, "Model"):
        stock_class = write_models(start, options)
    with step(5, 5, "Held-out loss after"):
        after = measured(options, "model")
        print_measurement(after)
    content = {
        "options": options.described(),
        "objective": objective_of(model),
        "start": start.about,
        "stock_class": stock_class,
        "text": {name: asdict(split) for name, split in text.splits.items()},
        "training": training,
        "before": before,
        "after": after,
        "machine": machine(),
        "versions": versions(),
    }
    write_results(options.out, content, report(content))
    return content


def make_start(options: Options) -> Pretrained:
    """Return the model to start from, after making ``data-bin``, ``held-out.txt`` and ``start``, a bundle of it.

    Nothing is written if the model or the text cannot be used, so that a corrected command can have the same directory.
    """
    out = options.out
    if (out / "start").exists():
        print(f"done before, reusing {out / 'start'}")
        return read(out / "start")
    texts = _preparation(options)
    files = preparation.find_splits(texts)
    start = read_model(options)
    as_objective(start, options)
    if not (out / "data-bin" / MANIFEST).exists():
        preparation.prepare(texts)
    sample = sample_corpus(files["valid"], Reading(options.text_field), HELD_OUT_BYTES)
    write_text(out / "held-out.txt", "".join(f"{line}\n" for line in sample))
    write_bundle(start, out / "start")
    return start


def read_model(options: Options) -> Pretrained:
    """Read the model of the command line: a directory of ``transformers`` is imported.

    Raises:
        UserError: if a file is missing or damaged, the model cannot be imported, or it has no tokenizer.
    """
    path = options.model
    if not path.exists():
        raise UserError(f"--model {path} does not exist; a model of the Hugging Face hub must be downloaded first")
    if path.is_dir() and hugging_face_kind(path):
        model = import_foreign(path, PRESET_OF[options.objective or "mlm"])
    else:
        model = read(path, options.data_bin)
    if model.tokenizer is None:
        raise UserError(f"--model {path} has no tokenizer that this package reads; add its tokenizer.json")
    return model


def objective_of(model: Pretrained) -> str:
    """Return the objective that a model was trained with."""
    return {preset: objective for objective, preset in PRESET_OF.items()}.get(preset_of(model), "3ml")


def as_objective(start: Pretrained, options: Options) -> Pretrained:
    """Return the model to train: the start with decoder and head of the objective.

    Raises:
        UserError: if the options do not fit the model, or ``transformers`` has no class for its encoder.
    """
    objective = options.objective or objective_of(start)
    preset = preset_of(start) if objective == objective_of(start) else PRESET_OF[objective]
    try:
        model = with_preset(start, preset, options.seed)
    except ValueError as problem:
        raise UserError(f"--objective {objective} does not fit {options.model}: {problem}") from None
    counterpart(model)
    length = tokens_per_sample(model, options)
    if length > model.config.max_positions:
        raise UserError(f"--tokens-per-sample {length}: the model takes up to {model.config.max_positions} tokens")
    if options.batch_size < length:
        raise UserError(f"--batch-size {options.batch_size} must be at least --tokens-per-sample, {length}")
    return model


def tokens_per_sample(model: Pretrained, options: Options) -> int:
    """Return the maximum sequence length of training."""
    return options.tokens_per_sample or min(model.config.max_positions, LONGEST)


def _preparation(options: Options) -> preparation.Options:
    return preparation.Options(
        train=options.train,
        valid=options.valid,
        destdir=str(options.out / "data-bin"),
        vocab_size=None,
        sentencepiece_model=None,
        character_coverage=1.0,
        max_unk_rate=1.0,  # the tokenizer is what it is; the report has the rate
        workers=max(1, torch.get_num_threads()),
        tokenizer=str(options.data_bin or options.model),
        text_field=options.text_field,
    )


def measured(options: Options, name: str) -> dict[str, Any]:
    """Return the measurements of a bundle in the output directory on the held-out text."""
    path = options.out / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text())
    length = min(128, read(options.out / name).config.max_positions)
    arguments = argparse.Namespace(
        text=options.out / "held-out.txt", data_bin=None, tokens_per_sample=length, **MEASUREMENT
    )
    numbers = measure(options.out / name, name, arguments)
    write_json(path, numbers)
    return numbers


def print_measurement(numbers: dict[str, Any] | None) -> None:
    """Print the most important numbers of a measurement."""
    if numbers is None:
        print("      the model has no language model head, and cannot be measured")
    else:
        perplexity = numbers["pseudo_perplexity_per_token"]
        print(f"      {numbers['loss']:.3f} nats per masked token, pseudo-perplexity {perplexity:.2f} per token")


def training_run(model: Pretrained, options: Options) -> Run:
    """Return the run of fairseq-train, after writing the checkpoint that it starts from."""
    folder = options.out / "training"
    start = folder / "start.pt"
    if not start.exists():
        folder.mkdir(exist_ok=True)
        write_checkpoint(model, start)
    arguments = [*network_options(model), *as_arguments(_settings(model, options)), *options.extra]
    command = [sys.executable, "-m", "fairseq_cli.train", str(options.out / "data-bin"), *arguments]
    return Run("training", command, folder / "result.json", _read_result, updates_done(options.updates))


def _settings(model: Pretrained, options: Options) -> Settings:
    """Return fairseq's options but those of the network.

    Adam, weight decay and the shape of the schedule are those of task-adaptive pretraining (Gururangan et al., 2020,
    arXiv 2004.10964, Table 14).
    """
    accumulated = -(-options.batch_size // max(BATCH_TOKENS, tokens_per_sample(model, options)))
    masking = MASKING[objective_of(model)] | ({"mask_prob": options.mask_prob} if options.mask_prob else {})
    save_every = max(1, options.updates // 10)
    chosen = {
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": tokens_per_sample(model, options),
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
            "max_tokens": -(-options.batch_size // accumulated),
            "required_batch_size_multiple": 1,
            "num_workers": 1,
            "disable_validation": True,
        },
        "checkpoint": {
            "finetune_from_model": options.out / "training" / "start.pt",
            "save_dir": options.out / "training" / "checkpoints",
            "save_interval_updates": save_every,
            "keep_interval_updates": 1,
            "no_epoch_checkpoints": True,
        },
        "common": {"user_dir": PACKAGE, "log_format": "json", "log_interval": 10, "seed": options.seed},
    }
    if torch.cuda.is_available():
        chosen["model"] = {"autocast": "bf16"}
    return with_device(chosen)


def _read_result(run: Run) -> dict[str, Any]:
    *_, last = read_records(run.log, "train").values()
    return {"loss": float(last["loss"]) * NATS_PER_BIT, "seconds": float(last["train_wall"])}


def write_models(start: Pretrained, options: Options) -> str:
    """Write ``model``, a bundle, and ``stock``, a directory of ``transformers``; return the class of the latter."""
    out = options.out
    adapted = read_checkpoint(out / "training" / "checkpoints" / "checkpoint_last.pt", out / "data-bin")
    if "imported_from" in start.about:
        adapted.about["imported_from"] = start.about["imported_from"]
    if not (out / "model").exists():
        write_bundle(adapted, out / "model")
    if not (out / "stock").exists():
        export_stock(adapted, out / "stock")
    return counterpart(adapted).architecture

"""Fine-tuning sweeps for any task: starting point, runs over learning rates and seeds, and checkpoints to keep."""

import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.checkpoints.averaging import read_ema
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.original import read_original
from mae_lm_fairseq.checkpoints.reading import WEIGHTS, read_checkpoint
from mae_lm_fairseq.checkpoints.validation import head_names
from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.recipe import Recipe
from mae_lm_fairseq.finetuning.seeds import Summary, summarise
from mae_lm_fairseq.huggingface.bundle_files import add_tokenizer_and_card
from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.training.runner import REWRITTEN, Run, run_all
from mae_lm_fairseq.training.settings import Settings, as_arguments
from mae_lm_fairseq.training.training_command import with_device
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, make_output_directory, read_json
from mae_lm_fairseq.utils.markdown import markdown_table
from mae_lm_fairseq.utils.versions import versions

WARMUP_FRACTION = 0.06
BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
MODEL = "model"
"""The directory, in that of the results, with the bundle of the best run."""
_NEW_MODEL = f"{MODEL}.new"
"""It until it is complete."""
OWNED = (MODEL, _NEW_MODEL, "runs", "results.json", "report.md")
"""Names in the directory of the results that every fine-tuning uses or replaces."""
# Model options that fine-tuning sets itself.
_SET_BY_FINETUNING = ("max_positions", "dropout", "attention_dropout", "decoder_dropout")


@dataclass(frozen=True)
class Origin:
    """Starting point of fine-tuning.

    Attributes:
        checkpoint: the file, or the directory of a bundle; None for random weights.
        model: options of the model, with the architecture as ``_name``, as :func:`as_arguments` expects them.
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


def from_scratch(architecture: str) -> Origin:
    """Return random weights as the starting point, for the control experiment.

    Raises:
        UserError: if the architecture does not exist.
    """
    if architecture not in ARCHITECTURES:
        raise UserError(f"--arch {architecture}: no such architecture; choose one of {', '.join(ARCHITECTURES)}")
    return Origin(None, {"_name": architecture}, architecture_values(architecture)["max_positions"])


def origin_of(path: Path) -> Origin:
    """Return the starting point described by a checkpoint or bundle of this package.

    Raises:
        UserError: if the file is missing, damaged, or from another model.
    """
    if not os.path.exists(path):  # Path.exists raises for a directory that cannot be searched
        raise UserError(f"--checkpoint {path}: no such file or directory; check the path")
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    saved = (state["cfg"] or {}).get("model")
    name = saved.get("_name", "") if hasattr(saved, "keys") else ""
    if name not in ARCHITECTURES:
        raise UserError(f"--checkpoint {path}: not a model of this package (architecture {name or 'unknown'})")
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
        file_sha256(path / WEIGHTS if os.path.isdir(path) else path),
    )


def ema_checkpoint(checkpoint: Path | None, out: Path) -> Path:
    """Write the EMA weights of a checkpoint to ``out``, as the model of a checkpoint, and return its path.

    Raises:
        UserError: if they cannot be read or written.
    """
    if checkpoint is None:
        raise UserError("--ema contradicts --checkpoint none: random weights have no moving average")
    state = read_ema(checkpoint)
    make_output_directory(out / REWRITTEN)
    written = out / REWRITTEN / checkpoint.name
    checkpoint_utils.torch_persistent_save(state, str(written))
    return written


def find_origin(checkpoint: Path | None, architecture: str | None) -> Origin:
    """Return the starting point: a checkpoint, or random weights of an architecture.

    Raises:
        UserError: if both or neither are given, or the given one does not exist.
    """
    if checkpoint is None:
        if architecture is None:
            raise UserError("--checkpoint none starts from random weights; add --arch")
        return from_scratch(architecture)
    if architecture is not None:
        raise UserError(f"--arch {architecture} is only for --checkpoint none: a checkpoint has its own architecture")
    return origin_of(checkpoint)


def find_pretrained_origin(checkpoint: Path | None, architecture: str | None) -> Origin:
    """Return what :func:`find_origin` does, if that is not a fine-tuned model.

    Raises:
        UserError: as there, or if the checkpoint was fine-tuned.
    """
    origin = find_origin(checkpoint, architecture)
    if origin.heads:
        raise UserError(
            f"--checkpoint {checkpoint} has already been fine-tuned on {', '.join(origin.heads)}; use the "
            "pretrained model"
        )
    return origin


def settings_for(origin: Origin, updates: int, batch_size: int) -> Settings:
    """Return fairseq's options for fine-tuning, without task, criterion, learning rate and seed.

    Dropout, weight decay, Adam and the shape of the schedule are those of RoBERTa (Liu et al. 2019, arXiv 1907.11692,
    Table 10; fairseq's examples/roberta/README.glue.md).

    Args:
        origin: the starting point.
        updates: total number of updates; the first 6 % warm up.
        batch_size: sequences per update.
    """
    start = {"finetune_from_model": origin.checkpoint} if origin.checkpoint else {}
    chosen = {
        "task": {"max_positions": origin.max_positions},
        "model": {**origin.model, "dropout": 0.1, "attention_dropout": 0.1},
        "criterion": {},
        "optimizer": {"_name": "fused_adamw", "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-6, "weight_decay": 0.1},
        "lr_scheduler": {
            "_name": "polynomial_decay",
            "warmup_updates": round(WARMUP_FRACTION * updates),
            "total_num_update": updates,
        },
        "optimization": {"clip_norm": 0.0, "max_update": updates},
        "dataset": {
            "batch_size": batch_size,
            "batch_size_valid": 64,
            "required_batch_size_multiple": 1,
            "num_workers": 0,
        },
        "checkpoint": {
            **start,
            "no_epoch_checkpoints": True,
            "save_interval_updates": 2000,
            "keep_interval_updates": 1,
        },
        "common": {
            "user_dir": PACKAGE,
            "log_format": "json",
            "log_interval": 10,
        },
    }
    return with_device(chosen)


@dataclass(frozen=True)
class Sweep:
    """A sweep over learning rates and seeds.

    Attributes:
        out: output directory.
        data: the data-bin.
        settings: settings from :func:`settings_for`, with task and criterion.
        learning_rates: the learning rates to try.
        seeds: the seeds for each learning rate.
        evaluate: checkpoint -> metrics; higher is better. Picklable, see :class:`~mae_lm_fairseq.training.runner.Run`.
        selection: the metric whose median over the seeds selects the learning rate.
        extra: further options of fairseq-train, which take precedence.
    """

    out: Path
    data: Path
    settings: Settings
    learning_rates: Sequence[float]
    seeds: Sequence[int]
    evaluate: Callable[[Path], dict[str, float]]
    selection: str
    extra: Sequence[str] = field(default_factory=tuple)

    def runs(self) -> list[Run]:
        """Return one run for each learning rate and seed."""
        return [self._run(lr, seed) for lr in self.learning_rates for seed in self.seeds]

    def _run(self, lr: float, seed: int) -> Run:
        name = f"lr{lr:g}-seed{seed}"
        folder = self.out / "runs" / name
        chosen = {group: dict(values) for group, values in self.settings.items()}
        chosen["optimization"]["lr"] = [lr]
        chosen["checkpoint"]["save_dir"] = folder / "checkpoints"
        chosen["common"]["seed"] = seed
        command = [sys.executable, "-m", "fairseq_cli.train", str(self.data), *as_arguments(chosen), *self.extra]
        return Run(
            name,
            command,
            folder / "result.json",
            read_result=self._evaluate,
            updates=(0, self.settings["optimization"]["max_update"]),
            clean_up=keep_best_checkpoint,
        )

    def _evaluate(self, run: Run) -> dict[str, float]:
        checkpoint = best_checkpoint(run)
        if not checkpoint.exists():
            raise UserError(
                f"{run.name}: training saved no {checkpoint}; drop the options after -- that prevent it, such as "
                "--no-save or --save-dir"
            )
        return self.evaluate(checkpoint)

    def summaries(self, results: Sequence[dict]) -> dict[float, dict[str, Summary]]:
        """Return statistics over the seeds by learning rate and metric, given results in the order of :meth:`runs`."""
        rows = iter(results)
        by_rate = {lr: [next(rows) for _ in self.seeds] for lr in self.learning_rates}
        return {
            lr: {metric: summarise([result[metric] for result in of_lr]) for metric in of_lr[0]}
            for lr, of_lr in by_rate.items()
        }

    def best_rate(self, summaries: dict[float, dict[str, Summary]]) -> float:
        """Return the learning rate with the highest median of the selection metric; the lowest one of a tie."""
        return max(sorted(summaries), key=lambda lr: summaries[lr][self.selection].median)

    def best_run(self, results: Sequence[dict], lr: float) -> tuple[Run, dict]:
        """Return the run of a learning rate with the highest selection metric, and its result; the first of a tie."""
        candidates = zip(self.runs(), results, strict=True)
        of_lr = [(run, result) for run, result in candidates if run.name.startswith(f"lr{lr:g}-")]
        return max(of_lr, key=lambda pair: pair[1][self.selection])


def window_sweep(
    options: FinetuningOptions,
    origin: Origin,
    recipe: Recipe,
    windows: int,
    task: dict[str, Any],
    evaluate: Callable[[Path], dict[str, float]],
    selection: str,
) -> Sweep:
    """Return the sweep of a task that trains on windows of texts.

    Runs are not validated during training: the last checkpoint is evaluated, as in the papers.

    Args:
        options: options of the sweep.
        origin: the starting point.
        recipe: the usual settings of the task.
        windows: number of sequences per epoch.
        task: options of the fairseq task, whose criterion has the same name.
        evaluate, selection: see :class:`Sweep`.
    """
    updates = recipe.epochs * math.ceil(windows / recipe.batch_size)
    updates = min(updates, options.max_updates or updates)
    chosen: Settings = settings_for(origin, updates, recipe.batch_size)
    chosen["task"] = task
    chosen["criterion"] = {"_name": task["_name"]}
    chosen["model"]["max_positions"] = origin.max_positions
    chosen["optimizer"]["weight_decay"] = recipe.weight_decay
    chosen["dataset"]["disable_validation"] = True
    chosen["checkpoint"]["save_interval_updates"] = 500
    rates, seeds = options.learning_rates or recipe.learning_rates, range(1, options.seeds + 1)
    paths = options.out.resolve(), options.tokenizer.resolve()
    return Sweep(*paths, chosen, rates, seeds, evaluate, selection, options.extra)


def best_checkpoint(run: Run) -> Path:
    """Return the best checkpoint of a run, or the last one if the run was not validated."""
    folder = run.result.parent / "checkpoints"
    return folder / (BEST if (folder / BEST).exists() else LAST)


def run_sweep(sweep: Sweep, jobs: int, threads: int) -> tuple[dict[str, Any], Run]:
    """Run the missing runs of a sweep, and keep the best run's model as a bundle.

    Returns:
        The content for a result file (the selected learning rate, its metrics, and those of the whole grid), and the
        best run.

    Raises:
        UserError: if a run fails, or there are results of learning rates or seeds that the sweep lacks.
    """
    _check_grid(sweep)
    results = run_all(sweep.runs(), jobs=jobs, threads=threads)
    summaries = sweep.summaries(results)
    rate = sweep.best_rate(summaries)
    best, metrics = sweep.best_run(results, rate)
    keep_model(sweep, best, metrics)
    grid = {f"{lr:g}": {name: asdict(summary) for name, summary in of.items()} for lr, of in summaries.items()}
    content = {
        "options": list(sweep.extra),
        "learning_rate": rate,
        "metrics": grid[f"{rate:g}"],
        "grid": grid,
        "versions": versions(),
    }
    return content, best


def _check_grid(sweep: Sweep) -> None:
    """Refuse to replace the results of a larger grid.

    Raises:
        UserError: if there are results of learning rates or seeds that the sweep lacks, or their file is damaged.
    """
    path = sweep.out / "results.json"
    if not path.exists():
        return
    grid = read_json(path)["grid"]
    missing = grid.keys() - {f"{lr:g}" for lr in sweep.learning_rates}
    if missing:
        raise UserError(
            f"{path} has results of other learning rates; add {' '.join(sorted(missing, key=float))} to "
            "--learning-rates, or choose another --out"
        )
    seeds = max(len(summary["values"]) for of_lr in grid.values() for summary in of_lr.values())
    if seeds > len(sweep.seeds):
        raise UserError(f"{path} has results of {seeds} seeds; use --seeds {seeds} or more, or choose another --out")


def keep_model(sweep: Sweep, run: Run, metrics: dict[str, float]):
    """Write the bundle of a run's best checkpoint, with its metrics, in place of an earlier one."""
    pretrained = read_checkpoint(best_checkpoint(run), sweep.data)
    pretrained.about["development_set"] = metrics
    start = sweep.settings["checkpoint"].get("finetune_from_model")
    if start is not None and start.is_dir():
        pretrained = replace(pretrained, original=read_original(start))
    new = sweep.out / _NEW_MODEL
    shutil.rmtree(new, ignore_errors=True)
    write_bundle(pretrained, new, add_tokenizer_and_card)
    shutil.rmtree(sweep.out / MODEL, ignore_errors=True)
    new.rename(sweep.out / MODEL)
    print(f"model: {sweep.out / MODEL}, by {run.name}")


def report(content: dict[str, Any], settings: str, selection: str, hidden: Sequence[str], ending: str) -> str:
    """Return the text of ``report.md``.

    Args:
        content: content of the result file.
        settings: number and kind of the updates.
        selection: display name of the metric that selected the learning rate.
        hidden: suffixes of metric names to hide.
        ending: text below the table.
    """
    start = content["start"]
    lines = [
        f"# {content['task']}",
        "",
        f"`{start['_name']}`, from {start['from']}"
        + (f": `{start['checkpoint']}` after {start['updates']:,} updates" if start["checkpoint"] else ""),
        "",
        f"{settings}. Development set, in per cent: median (mean ± standard deviation), and every seed. The learning "
        f"rate with the highest median {selection} is {content['learning_rate']:g}.",
        "",
    ]
    if content["options"]:
        lines += [f"Options of fairseq-train, which override the recipe's: `{' '.join(content['options'])}`.", ""]
    rows = [
        [lr, name, str(Summary(**summary)), ", ".join(f"{value:.1f}" for value in summary["values"])]
        for lr, of_lr in content["grid"].items()
        for name, summary in of_lr.items()
        if not name.endswith(tuple(hidden))
    ]
    table = markdown_table(["learning rate", "metric", "median (mean ± std)", "seeds"], rows)
    return "\n".join([*lines, table, "", f"{ending} `{MODEL}/` holds the best model, for predictions.", ""])


def prediction_names(split: str) -> tuple[str, str]:
    """Return patterns of the names of the files with the predictions of a set, in any format."""
    return f"{split}_predictions", f"{split}_predictions.*"


def remove_predictions(out: Path, split: str, kept: Path | None):
    """Remove the predictions of a set by an earlier run, except the file that this one has written, if any."""
    for pattern in prediction_names(split):
        for path in out.glob(pattern):
            if path != kept:
                path.unlink()


def keep_best_checkpoint(run: Run):
    """Keep only the best checkpoint of a finished run, without optimizer state."""
    kept = best_checkpoint(run)
    if not kept.exists():
        return  # removed by the user, to save space: only the best run's is needed again
    state = torch.load(kept, weights_only=True, mmap=True)
    if state.pop("last_optimizer_state", None) is not None:
        checkpoint_utils.torch_persistent_save(state, str(kept))
    for other in kept.parent.glob("*.pt"):
        if other != kept:
            other.unlink()

"""Fine-tuning sweeps for any task: runs over learning rates and seeds, and the bundle of the best one."""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data
from mae_lm_fairseq.checkpoints.original import read_original
from mae_lm_fairseq.checkpoints.reading import read_checkpoint
from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.finetuning.options import FinetuningOptions, value_of
from mae_lm_fairseq.finetuning.origin import Origin
from mae_lm_fairseq.finetuning.results import MODEL, Summary, summarise
from mae_lm_fairseq.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.training.command import (
    COMMON,
    Optimisation,
    Settings,
    as_options,
    merge,
    train_command,
    unattended_settings,
)
from mae_lm_fairseq.training.keys import Products, run_key
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.training.settings import DEVELOPMENT, RECIPE_OF_SIZE
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.versions import versions

BEST, LAST = "checkpoint_best.pt", "checkpoint_last.pt"
_NEW_MODEL = f"{MODEL}.new"
"""Temporary name while the bundle is written."""
_OWNED = (MODEL, _NEW_MODEL, "runs", "results.json", "report.md")
"""Names in the directory of the results that every fine-tuning uses or replaces."""


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning.

    Attributes:
        learning_rates: the learning rates to try.
        batch_size: sequences per update.
        weight_decay: of AdamW.
        epochs: passes over the training set.
    """

    learning_rates: tuple[float, ...]
    batch_size: int
    weight_decay: float
    epochs: int


def for_size(architecture: str, published: Recipe, ours: Recipe) -> Recipe:
    """Return the published recipe for base and large, and our own for tiny and small."""
    _, size = ARCHITECTURES[architecture]
    return ours if RECIPE_OF_SIZE[size] == DEVELOPMENT else published


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
    chosen: Settings = {
        "task": {"max_positions": origin.max_positions},
        "model": {**origin.model, "dropout": 0.1, "attention_dropout": 0.1},
        "criterion": {},
        "dataset": {"batch_size": batch_size, "batch_size_valid": 64, "num_workers": 0},
        "checkpoint": {**start, "save_interval_updates": 2000, "keep_interval_updates": 1},
        "common": {"log_interval": 10},
    }
    optimisation = Optimisation(updates=updates, weight_decay=0.1, clip_norm=0.0)
    return merge(COMMON, unattended_settings(), optimisation.settings(), chosen)


@dataclass(frozen=True)
class Sweep:
    """A sweep over learning rates and seeds, each run in a directory that is named by the key of what it depends on.

    Attributes:
        options: options of the fine-tuning.
        origin: the starting point.
        data: the data-bin.
        settings: settings from :func:`settings_for`, with task and criterion.
        learning_rates: the learning rates to try.
        evaluate: checkpoint -> metrics; higher is better. Picklable, see :class:`~mae_lm_fairseq.training.runner.Run`.
        selection: the metric whose median over the seeds selects the learning rate.
        inputs: fingerprints of what results depend on besides the options of fairseq-train, see :func:`run_sweep`.
    """

    options: FinetuningOptions
    origin: Origin
    data: Path
    settings: Settings
    learning_rates: Sequence[float]
    evaluate: Callable[[Path], dict[str, float]]
    selection: str
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        """The output directory."""
        return self.options.out.resolve()

    @property
    def seeds(self) -> range:
        """The seeds for each learning rate."""
        return range(1, self.options.seeds + 1)

    def runs(self) -> list[Run]:
        """Return one run for each learning rate and seed."""
        return [self._run(lr, seed) for lr in self.learning_rates for seed in self.seeds]

    def _run(self, lr: float, seed: int) -> Run:
        name, updates = f"lr{lr:g}-seed{seed}", self.settings["optimization"]["max_update"]
        own: Settings = {"optimization": {"lr": [lr]}, "common": {"seed": seed}}
        options = as_options(merge(self.settings, own))
        key = run_key(options, self.options.extra, self.options.threads, self.inputs)
        folder = self.out / "runs" / f"{name}-{key}"
        command = train_command(self.data, options | {"save-dir": folder / "checkpoints"}, self.options.extra)
        return Run(
            name,
            command,
            folder / "result.json",
            read_result=self._evaluate,
            updates=(0, updates),
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


def sequences_per_update(options: FinetuningOptions, batch_size: int) -> int:
    """Return the recipe's ``batch_size``, unless ``--batch-size`` or ``--update-freq`` after ``--`` change it."""
    size = value_of("--batch-size", options.extra) or batch_size
    return int(size) * int(value_of("--update-freq", options.extra) or 1)


def number_of_updates(options: FinetuningOptions, sequences: int, epochs: int, batch_size: int) -> int:
    """Return the updates of the recipe's epochs, at most ``--max-updates``.

    Args:
        options: options of the sweep.
        sequences: number of sequences per epoch.
        epochs, batch_size: the recipe's.
    """
    updates = epochs * math.ceil(sequences / sequences_per_update(options, batch_size))
    return min(updates, options.max_updates or updates)


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
    updates = number_of_updates(options, windows, recipe.epochs, recipe.batch_size)
    chosen: Settings = settings_for(origin, updates, recipe.batch_size)
    chosen["task"] = task
    chosen["criterion"] = {"_name": task["_name"]}
    chosen["model"]["max_positions"] = origin.max_positions
    chosen["optimizer"]["weight_decay"] = recipe.weight_decay
    chosen["dataset"]["disable_validation"] = True
    chosen["checkpoint"]["save_interval_updates"] = 500
    rates = options.learning_rates or recipe.learning_rates
    return Sweep(options, origin, options.tokenizer.resolve(), chosen, rates, evaluate, selection)


def claim(out: Path, *products: str) -> Products:
    """Return the products of a fine-tuning; ``products`` are the names that only this task uses or replaces."""
    return Products(out, (*_OWNED, *products))


def inputs_of(origin: Origin, tokenizer: Tokenizer, **data: Any) -> dict[str, Any]:
    """Return fingerprints of weights, tokenizer and data; those named as an option take the place of its path."""
    return {"finetune-from-model": origin.sha256, "tokenizer": tokenizer.fingerprint, **data}


def best_checkpoint(run: Run) -> Path:
    """Return the best checkpoint of a run, or the last one if the run was not validated."""
    folder = run.result.parent / "checkpoints"
    return folder / (BEST if (folder / BEST).exists() else LAST)


def run_sweep(sweep: Sweep, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Run]:
    """Run the missing runs of a sweep, and keep the best run's model as a bundle.

    Args:
        sweep: the sweep.
        inputs: fingerprints of what its results depend on, from :func:`inputs_of`.

    Returns:
        The content for a result file (start, settings, the selected learning rate, its metrics, and those of the whole
        grid), and the best run.

    Raises:
        UserError: if a run fails.
    """
    sweep = replace(sweep, inputs=inputs)
    options, chosen = sweep.options, sweep.settings
    results = run_all(sweep.runs(), jobs=options.jobs, threads=options.threads)
    summaries = sweep.summaries(results)
    rate = sweep.best_rate(summaries)
    best, metrics = sweep.best_run(results, rate)
    keep_model(sweep, best, metrics)
    grid = {f"{lr:g}": {name: asdict(summary) for name, summary in of.items()} for lr, of in summaries.items()}
    content = {
        "start": {"from": sweep.origin.kind, **sweep.origin.described()},
        "settings": {
            "updates": chosen["optimization"]["max_update"],
            "batch_size": sequences_per_update(options, chosen["dataset"]["batch_size"]),
            **{name: chosen["task"][name] for name in ("tokens_per_sample", "doc_stride") if name in chosen["task"]},
        },
        "options": list(options.extra),
        "learning_rate": rate,
        "metrics": grid[f"{rate:g}"],
        "grid": grid,
        "versions": versions(),
    }
    return content, best


def keep_model(sweep: Sweep, run: Run, metrics: dict[str, float]):
    """Write the bundle of a run's best checkpoint, with its metrics, in place of an earlier one."""
    pretrained = read_checkpoint(best_checkpoint(run), sweep.data)
    start = sweep.settings["checkpoint"].get("finetune_from_model")
    source = start if start is not None and start.is_dir() else sweep.options.tokenizer
    pretrained = replace(
        pretrained, about=replace(pretrained.about, development_set=metrics), original=read_original(source)
    )
    new = sweep.out / _NEW_MODEL
    shutil.rmtree(new, ignore_errors=True)
    write_bundle(pretrained, new, add_tokenizer_and_card)
    shutil.rmtree(sweep.out / MODEL, ignore_errors=True)
    new.rename(sweep.out / MODEL)
    print(f"model: {sweep.out / MODEL}, by {run.name}")


def prediction_names(split: str) -> tuple[str, str]:
    """Return patterns of the names of the files with the predictions of a set, in any format."""
    return f"{split}_predictions", f"{split}_predictions.*"


def remove_predictions(out: Path, split: str, kept: Path | None):
    """Delete stale predictions of a split, except ``kept``."""
    for pattern in prediction_names(split):
        for path in out.glob(pattern):
            if path != kept:
                path.unlink()


def keep_best_checkpoint(run: Run):
    """Keep only the best checkpoint of a finished run, without optimizer state."""
    kept = best_checkpoint(run)
    if not kept.exists():
        return  # removed by the user, to save space: only the best run's is needed again
    state = load_as_data(kept, mapped=True)
    for other in kept.parent.glob("*.pt"):  # first, as the disk may be full
        if other != kept:
            other.unlink()
    if state.pop("last_optimizer_state", None) is not None:
        checkpoint_utils.torch_persistent_save(state, str(kept))

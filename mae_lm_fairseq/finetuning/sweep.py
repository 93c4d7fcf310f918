"""Fine-tuning sweeps for any task: runs over learning rates and seeds, and the bundle of the best one."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from mae_lm_fairseq.finetuning.adapter import TaskSetup
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.results import summarise
from mae_lm_fairseq.finetuning.start import network_options, start_content
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, save_checkpoint
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.trained.original import read_original
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.training.command import (
    Optimisation,
    Settings,
    as_options,
    common_settings,
    merge,
    train_command,
    unattended_settings,
)
from mae_lm_fairseq.training.keys import run_key
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.utils.versions import versions
from mae_lm_fairseq.utils.writing import remove

_CHECKPOINTS = "checkpoints"
_BEST, _LAST = "checkpoint_best.pt", "checkpoint_last.pt"


class Selection(NamedTuple):
    """The choice of a sweep.

    Attributes:
        rate: the learning rate.
        run: its best run.
        metrics: those of the run.
        grid: statistics over the seeds, by learning rate and metric.
    """

    rate: float
    run: Run
    metrics: dict[str, float]
    grid: dict[str, dict[str, dict[str, Any]]]


@dataclass
class Sweep:
    """A sweep over learning rates and seeds, each run in a directory that is named by the key of what it depends on."""

    options: FinetuningOptions
    start: Description
    tokenizer: Tokenizer
    setup: TaskSetup

    @cached_property
    def batches(self) -> int:
        """Batches per update, of all processes."""
        processes = self.options.further_count("distributed-world-size", 1)
        accumulated_batches = self.options.further_count("update-freq", 1)
        return processes * accumulated_batches

    @cached_property
    def batch_size(self) -> int:
        """Sequences per update: the recipe's, unless options after ``--`` change it; at most those of an epoch."""
        batch_size = self.options.further_count("batch-size", self.setup.recipe.batch_size)
        return min(batch_size * self.batches, self.setup.sequences)

    @cached_property
    def updates(self) -> int:
        """Updates of the recipe's epochs, at most ``--max-updates``, unless ``--max-update`` comes after ``--``."""
        updates_per_epoch = math.ceil(self.setup.sequences / self.batch_size)
        updates = self.setup.recipe.epochs * updates_per_epoch
        if self.options.max_updates:
            updates = min(updates, self.options.max_updates)
        return self.options.further_count("max-update", updates)

    @cached_property
    def settings(self) -> Settings:
        """fairseq's options without learning rate and seed.

        Dropout, Adam and the shape of the schedule are those of RoBERTa (Liu et al. 2019, arXiv 1907.11692, Table 10;
        fairseq's examples/roberta/README.glue.md): the first 6 % of the updates warm up.
        """
        start = self.start
        recipe = self.setup.recipe
        network = {"max_positions": start.config.max_positions, "dropout": 0.1, "attention_dropout": 0.1}
        weights = {"finetune_from_model": start.path} if start.path else {}
        shared: Settings = {
            "model": network_options(start) | network,
            "dataset": {"batch_size": recipe.batch_size, "batch_size_valid": 64, "num_workers": 0},
            "checkpoint": {**weights, "save_interval_updates": 2000, "keep_interval_updates": 1},
            "common": {"log_interval": 10},
        }
        optimisation = Optimisation(updates=self.updates, weight_decay=recipe.weight_decay, clip_norm=0.0)
        start_settings = merge(common_settings(), unattended_settings(), optimisation.settings())
        return merge(start_settings, shared, self.setup.settings)

    def runs(self) -> dict[float, list[Run]]:
        """Return one run for each seed, by learning rate."""
        rates = self.options.learning_rates or self.setup.recipe.learning_rates
        seeds = range(1, self.options.seeds + 1)
        return {lr: [self._run(lr, seed) for seed in seeds] for lr in rates}

    def _run(self, lr: float, seed: int) -> Run:
        extra = self.options.extra
        options = as_options(self.settings) | {"lr": lr, "seed": seed}
        inputs = {"finetune-from-model": self.start.sha256, "tokenizer": self.tokenizer.fingerprint}
        key = run_key(options, extra, self.options.threads, inputs | self.setup.inputs)

        name = f"lr{lr:g}-seed{seed}"
        directory = self.options.out.resolve() / "runs" / f"{name}-{key}"
        options["save-dir"] = directory / _CHECKPOINTS
        return Run(
            name,
            train_command(self.setup.data, options, extra),
            directory / "result.json",
            read_result=partial(_evaluate_best_checkpoint, self.setup.evaluate),
            updates=self.updates,
            clean_up=keep_best_checkpoint,
        )

    def run(self) -> Selection:
        """Run what is missing, and select.

        Raises:
            UserError: if a run fails.
        """
        runs = self.runs()
        every_run = itertools.chain.from_iterable(runs.values())
        results = run_all(list(every_run), jobs=self.options.jobs, threads=self.options.threads)
        return select(runs, results, self.setup.selection)

    def content(self, selection: Selection) -> dict[str, Any]:
        """Return the content of the result file about the sweep."""
        training = {"updates": self.updates, "batch_size": self.batch_size}
        max_tokens = self.batches * self.options.further_count("max-tokens", 0)
        if max_tokens:
            training["max_tokens"] = max_tokens
        task = self.settings["task"]
        for name in ("tokens_per_sample", "doc_stride"):
            if name in task:
                training[name] = task[name]
        return {
            "start": start_content(self.start),
            "settings": training,
            "options": list(self.options.extra),
            "learning_rate": selection.rate,
            "metrics": selection.grid[f"{selection.rate:g}"],
            "grid": selection.grid,
            "versions": versions(),
        }

    def write_model(self, selection: Selection, path: Path) -> None:
        """Write the bundle of the best run's best checkpoint, with its metrics."""
        start = self.start.path
        source = self.options.tokenizer
        if start and start.is_dir():
            source = start
        pretrained = read_checkpoint(best_checkpoint(selection.run), self.setup.data)
        about = replace(pretrained.about, development_set=selection.metrics)
        write_bundle(replace(pretrained, about=about, original=read_original(source)), path, add_tokenizer_and_card)
        print(f"model: {path}, by {selection.run.name}")


def select(runs: Mapping[float, Sequence[Run]], results: Sequence[dict[str, float]], metric: str) -> Selection:
    """Select the learning rate with the highest median of a metric over the seeds, and its best run.

    The lowest learning rate and the first seed of a tie are selected. ``results`` are in the order of the runs.
    """
    remaining = iter(results)
    medians = {}
    grid = {}
    scored_runs = {}
    for lr, runs_of_rate in runs.items():
        scored = [_ScoredRun(run, next(remaining)) for run in runs_of_rate]
        summaries = _over_seeds([run.metrics for run in scored])
        medians[lr] = summaries[metric]["median"]
        grid[f"{lr:g}"] = summaries
        scored_runs[lr] = scored

    rate = max(sorted(medians), key=medians.get)
    best = max(scored_runs[rate], key=lambda scored: scored.metrics[metric])
    return Selection(rate, best.run, best.metrics, grid)


class _ScoredRun(NamedTuple):
    run: Run
    metrics: dict[str, float]


def _over_seeds(results: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Return statistics by metric, given the metrics of each seed."""
    summaries = {}
    for name in results[0]:
        summaries[name] = summarise([metrics[name] for metrics in results])
    return summaries


def _evaluate_best_checkpoint(evaluate: Callable[[Path, Path], dict[str, float]], run: Run) -> dict[str, float]:
    return evaluate(best_checkpoint(run), run.result.parent)


def best_checkpoint(run: Run) -> Path:
    """Return the best checkpoint of a run, or the last one if the run was not validated."""
    directory = run.result.parent / _CHECKPOINTS
    best = directory / _BEST
    return best if best.exists() else directory / _LAST


def keep_best_checkpoint(run: Run) -> None:
    """Keep only the best checkpoint of a finished run, without optimizer state."""
    kept = best_checkpoint(run)
    if not kept.exists():
        return  # removed by the user, to save space: only the best run's is needed again
    state = load_as_data(kept, mapped=True)
    for other in kept.parent.glob("*.pt"):  # first, as the disk may be full
        if other != kept:
            remove(other, below=run.result.parent.parent)
    if state.pop("last_optimizer_state", None) is not None:
        save_checkpoint(state, kept)

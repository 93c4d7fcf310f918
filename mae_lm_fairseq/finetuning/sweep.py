"""Fine-tuning sweeps for any task: runs over learning rates and seeds, and the bundle of the best one."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import TaskSetup
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.results import summarise
from mae_lm_fairseq.finetuning.start import network_settings, summary
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, save_checkpoint
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.trained.original import read_original
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.training.command import (
    COMMON,
    Optimisation,
    Settings,
    as_options,
    merge,
    train_command,
    unattended_settings,
)
from mae_lm_fairseq.training.keys import run_key, values_of_words
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.utils.versions import versions
from mae_lm_fairseq.utils.writing import remove

_BEST, _LAST = "checkpoint_best.pt", "checkpoint_last.pt"


@dataclass(frozen=True)
class Sweep:
    """A sweep over learning rates and seeds, each run in a directory that is named by the key of what it depends on."""

    options: FinetuningOptions
    start: Description
    tokenizer: Tokenizer
    setup: TaskSetup

    @cached_property
    def batch_size(self) -> int:
        """Sequences per update: the recipe's, unless options after ``--`` change it."""
        given = {"batch-size": [self.setup.recipe.batch_size], "update-freq": [1]} | values_of_words(self.options.extra)
        return int(given["batch-size"][0]) * int(given["update-freq"][0])

    @cached_property
    def updates(self) -> int:
        """Updates of the recipe's epochs, at most ``--max-updates``, unless ``--max-update`` comes after ``--``."""
        if given := values_of_words(self.options.extra).get("max-update"):
            return int(given[0])
        updates = self.setup.recipe.epochs * math.ceil(self.setup.sequences / self.batch_size)
        return min(updates, self.options.max_updates or updates)

    @cached_property
    def settings(self) -> Settings:
        """fairseq's options without learning rate and seed.

        Dropout, Adam and the shape of the schedule are those of RoBERTa (Liu et al. 2019, arXiv 1907.11692, Table 10;
        fairseq's examples/roberta/README.glue.md): the first 6 % of the updates warm up.
        """
        start, recipe = self.start, self.setup.recipe
        network = {"max_positions": start.config.max_positions, "dropout": 0.1, "attention_dropout": 0.1}
        weights = {"finetune_from_model": start.path} if start.path else {}
        shared: Settings = {
            "model": network_settings(start) | network,
            "dataset": {"batch_size": recipe.batch_size, "batch_size_valid": 64, "num_workers": 0},
            "checkpoint": {**weights, "save_interval_updates": 2000, "keep_interval_updates": 1},
            "common": {"log_interval": 10},
        }
        optimisation = Optimisation(updates=self.updates, weight_decay=recipe.weight_decay, clip_norm=0.0)
        return merge(COMMON, unattended_settings(), optimisation.settings(), shared, self.setup.settings)

    def runs(self) -> dict[float, list[Run]]:
        """Return one run for each seed, by learning rate."""
        rates = self.options.learning_rates or self.setup.recipe.learning_rates
        return {lr: [self._run(lr, seed + 1) for seed in range(self.options.seeds)] for lr in rates}

    def _run(self, lr: float, seed: int) -> Run:
        name, extra = f"lr{lr:g}-seed{seed}", self.options.extra
        options = as_options(merge(self.settings, {"optimization": {"lr": [lr]}, "common": {"seed": seed}}))
        start = {"finetune-from-model": self.start.sha256, "tokenizer": self.tokenizer.fingerprint}
        key = run_key(options, extra, self.options.threads, start | self.setup.inputs)
        folder = self.options.out.resolve() / "runs" / f"{name}-{key}"
        return Run(
            name,
            train_command(self.setup.data, options | {"save-dir": folder / "checkpoints"}, extra),
            folder / "result.json",
            read_result=partial(_evaluate, self.setup.evaluate),
            updates=(0, self.updates),
            clean_up=keep_best_checkpoint,
        )

    def run(self) -> tuple[dict[str, Any], Run, dict[str, float]]:
        """Run what is missing.

        Returns:
            The content for a result file, the best run, and its metrics.

        Raises:
            UserError: if a run fails.
        """
        runs, task = self.runs(), self.settings["task"]
        results = run_all([*itertools.chain(*runs.values())], jobs=self.options.jobs, threads=self.options.threads)
        rate, best, metrics, grid = select(runs, results, self.setup.selection)
        content = {
            "start": summary(self.start),
            "settings": {
                "updates": self.updates,
                "batch_size": self.batch_size,
                **{name: task[name] for name in ("tokens_per_sample", "doc_stride") if name in task},
            },
            "options": list(self.options.extra),
            "learning_rate": rate,
            "metrics": grid[f"{rate:g}"],
            "grid": grid,
            "versions": versions(),
        }
        return content, best, metrics

    def write_model(self, best: Run, metrics: dict[str, float], path: Path) -> None:
        """Write the bundle of a run's best checkpoint, with its metrics."""
        start = self.start.path
        source = start if start is not None and start.is_dir() else self.options.tokenizer
        pretrained = read_checkpoint(best_checkpoint(best), self.setup.data)
        about = replace(pretrained.about, development_set=metrics)
        write_bundle(replace(pretrained, about=about, original=read_original(source)), path, add_tokenizer_and_card)
        print(f"model: {path}, by {best.name}")


def select(
    runs: Mapping[float, Sequence[Run]], results: Sequence[dict[str, float]], selection: str
) -> tuple[float, Run, dict[str, float], dict[str, dict[str, dict[str, Any]]]]:
    """Select the learning rate with the highest median of a metric over the seeds, and its best run.

    The lowest learning rate and the first seed of a tie are selected. ``results`` are in the order of the runs.

    Returns:
        The learning rate; the run; its metrics; and statistics over the seeds, by learning rate and metric.
    """
    remaining = iter(results)
    found = {lr: [next(remaining) for _ in of_lr] for lr, of_lr in runs.items()}
    summaries = {
        lr: {name: summarise([one[name] for one in of_lr]) for name in of_lr[0]} for lr, of_lr in found.items()
    }
    rate = max(sorted(summaries), key=lambda lr: summaries[lr][selection]["median"])
    run, metrics = max(zip(runs[rate], found[rate], strict=True), key=lambda pair: pair[1][selection])
    return rate, run, metrics, {f"{lr:g}": of_lr for lr, of_lr in summaries.items()}


def _evaluate(evaluate: Callable[[Path], dict[str, float]], run: Run) -> dict[str, float]:
    return evaluate(best_checkpoint(run))


def best_checkpoint(run: Run) -> Path:
    """Return the best checkpoint of a run, or the last one if the run was not validated."""
    folder = run.result.parent / "checkpoints"
    return folder / (_BEST if (folder / _BEST).exists() else _LAST)


def keep_best_checkpoint(run: Run):
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

"""Fine-tuning on a GLUE task: data, runs, evaluation, report and test predictions; used by ``mae-lm finetune glue``."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from mae_lm_fairseq.finetuning import prediction
from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.glue.files import fingerprints
from mae_lm_fairseq.finetuning.glue.preparation import prepare
from mae_lm_fairseq.finetuning.glue.tasks import FROM_MNLI, Task, further_metrics, predictions, score, submission
from mae_lm_fairseq.finetuning.options import FinetuningOptions, value_of
from mae_lm_fairseq.finetuning.sweep import (
    OWNED,
    Origin,
    Sweep,
    best_checkpoint,
    report,
    run_sweep,
    settings_for,
)
from mae_lm_fairseq.text.data_bin import TASK
from mae_lm_fairseq.text.pretrained_tokenizer import open_tokenizer
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.training.command import Settings
from mae_lm_fairseq.training.runner import Run, reserve
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_results, write_text

# Metrics that fairseq's criterion computes in validation, and that select the best checkpoint of a run.
SELECTION = {
    ("accuracy",): ("accuracy", {}),
    ("matthews",): ("mcc", {"report_mcc": True}),
    ("f1", "accuracy"): ("acc_and_f1", {"report_acc_and_f1": True}),
    ("pearson", "spearman"): ("pearson_and_spearman", {"report_pearson_and_spearman": True}),
}


@dataclass(frozen=True, kw_only=True)
class Options(FinetuningOptions):
    """Options of fine-tuning on GLUE, in addition to those of all tasks.

    Attributes:
        task: the GLUE task.
        glue_dir: the local copy of GLUE.
        from_mnli: whether the checkpoint was fine-tuned on MNLI.
        skip_malformed: see :func:`~mae_lm_fairseq.finetuning.glue.preparation.prepare`.
    """

    task: Task
    glue_dir: Path
    from_mnli: bool = False
    skip_malformed: bool = False


def finetune(options: Options) -> dict:
    """Fine-tune, or resume an unfinished sweep, and return the content of ``results.json``.

    Raises:
        UserError: if options, data or checkpoint are invalid; existing results are kept.
    """
    task, out = options.task, options.out
    origin = find_origin(options)
    tokenizer = open_tokenizer(options.tokenizer, options.checkpoint, origin.dictionary)
    reserve(
        out,
        {
            "task": task.name,
            "files": fingerprints(task, options.glue_dir),
            "checkpoint": origin.described(),
            "tokenizer": tokenizer.fingerprint,
            "updates": options.max_updates,
        },
        owned=("data-bin", *OWNED, *(task.submission_file(split) for split in task.splits if split.startswith("test"))),
    )
    data, statistics = prepared(options, tokenizer, origin.max_positions)
    content, chosen = run_task(task, options, origin, data, statistics)
    content["test_predictions_by"] = chosen.name
    write_predictions(task, chosen, data, out)
    write_results(out, content, report_of(content, f"Test predictions: {chosen.name}."))
    return content


def run_task(task: Task, options: FinetuningOptions, origin: Origin, data: Path, statistics: dict) -> tuple[dict, Run]:
    """Fine-tune on the data-bin of a task.

    Returns:
        For a result file: the task, its data, where the training started, and what :func:`run_sweep` returns; and the
        best run.
    """
    sweep = make_sweep(task, options, origin, data, statistics)
    ran, chosen = run_sweep(sweep, options.jobs, options.threads)
    content = {
        "task": task.name,
        "start": {"from": origin.kind, **origin.described()},
        "data": statistics["splits"],
        "settings": {"updates": sweep.settings["optimization"]["max_update"], "batch_size": task.batch_size},
        **ran,
    }
    return content, chosen


def find_origin(options: Options) -> Origin:
    """Return the starting point of fine-tuning.

    Raises:
        UserError: if options contradict each other or the checkpoint.
    """
    if options.checkpoint is None and options.from_mnli:
        raise UserError("--from-mnli contradicts --checkpoint none: give the checkpoint fine-tuned on MNLI")
    origin = finetuning.find_origin(options.checkpoint, options.arch)
    if options.from_mnli:
        if options.task.name not in FROM_MNLI:
            raise UserError(f"--from-mnli is for {', '.join(FROM_MNLI)}, not for {options.task.name}")
        if origin.heads != ("MNLI",):
            raise UserError(f"--from-mnli: {options.checkpoint} was not fine-tuned on MNLI by mae-lm finetune glue")
    elif origin.heads:
        raise UserError(
            f"--checkpoint {options.checkpoint} has already been fine-tuned on {', '.join(origin.heads)}; use the "
            "pretrained model, or add --from-mnli"
        )
    return origin


def prepared(options: Options, tokenizer: Tokenizer, max_positions: int) -> tuple[Path, dict]:
    """Return the path and the statistics of the task's data-bin, which the first call creates."""

    def make(data: Path) -> dict:
        return prepare(options.task, options.glue_dir, tokenizer, data, max_positions, options.skip_malformed)

    return prepare_once(options.out / "data-bin", make)


def prepare_once(data: Path, make: Callable[[Path], dict]) -> tuple[Path, dict]:
    """Return a data-bin and its statistics; ``make`` is called with its directory if it does not exist yet."""
    if (data / TASK).exists():
        print(f"data: done before, reusing {data}")
        return data, json.loads((data / TASK).read_text(encoding="utf-8"))
    statistics = make(data)
    for split, counts in statistics["splits"].items():
        print(f"{split}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return data, statistics


def make_sweep(task: Task, options: FinetuningOptions, origin: Origin, data: Path, statistics: dict) -> Sweep:
    """Return the sweep over learning rates and seeds."""
    updates = task.epochs * math.ceil(statistics["splits"]["train"]["rows"] / task.batch_size)
    metric, reports = SELECTION[task.metrics]
    chosen: Settings = settings_for(origin, min(updates, options.max_updates or updates), task.batch_size)
    metric = value_of("--best-checkpoint-metric", options.extra) or metric
    chosen["checkpoint"]["best_checkpoint_metric"] = metric
    if not metric.endswith("loss"):
        chosen["checkpoint"]["maximize_best_checkpoint_metric"] = True
    chosen["task"] |= {"_name": "sentence_prediction", "num_classes": task.num_classes}
    chosen["task"] |= {"init_token": 0, "separator_token": 2}
    chosen["criterion"] |= {"_name": "sentence_prediction", "classification_head_name": task.head, **reports}
    if task.is_regression:
        chosen["criterion"]["regression_target"] = True
    return Sweep(
        options.out.resolve(),
        data.resolve(),
        chosen,
        options.learning_rates or task.learning_rates,
        range(1, options.seeds + 1),
        partial(evaluate, task, data=data),
        "score",
        options.extra,
    )


def evaluate(task: Task, checkpoint: Path, data: Path) -> dict[str, float]:
    """Return the metrics on the development sets in per cent, and ``score``, their mean.

    For MNLI the metrics are ``accuracy`` (matched) and ``accuracy_mismatched``.
    """
    model, fairseq_task = prediction.load(checkpoint, data)
    metrics, further = {}, {}
    for split, official in task.splits.items():
        if split.startswith("valid"):
            predicted = predictions(task, prediction.logits(model, fairseq_task, split))
            true = prediction.targets(fairseq_task, split)
            true = task.from_unit(true) if task.is_regression else true
            suffix = "_mismatched" if official.endswith("mismatched") else ""
            metrics |= {name + suffix: value for name, value in score(task, predicted, true).items()}
            further |= further_metrics(task, predicted, true)
    return {**metrics, **further, "score": fmean(metrics.values())}


def write_predictions(task: Task, run: Run, data: Path, out: Path):
    """Write the test set predictions of a run's best checkpoint in the format of the GLUE server."""
    model, fairseq_task = prediction.load(best_checkpoint(run), data)
    for split in task.splits:
        if split.startswith("test"):
            predicted = predictions(task, prediction.logits(model, fairseq_task, split))
            write_text(out / task.submission_file(split), submission(task, predicted))


def report_of(content: dict, *remarks: str) -> str:
    """Return the text of ``report.md``."""
    settings = f"{content['settings']['updates']:,} updates of {content['settings']['batch_size']} sequences"
    sets = "; ".join(
        f"{split} {counts['rows']:,} rows, {counts['truncated']:,} truncated, {counts['malformed']:,} dropped"
        for split, counts in content["data"].items()
    )
    *metrics, task_score = content["metrics"].values()
    hidden = ("score",) if task_score in metrics else ()  # the mean of a single metric
    return report(content, settings, "score", hidden, " ".join([f"Data: {sets}.", *remarks]))

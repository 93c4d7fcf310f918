"""Fine-tuning on a sentence task: data, runs, evaluation, predictions and report.

Used by ``mae-lm finetune glue`` and ``mae-lm finetune classification``.
"""

from functools import partial
from pathlib import Path
from statistics import fmean

from mae_lm_fairseq.finetuning.models import load
from mae_lm_fairseq.finetuning.options import ClassificationOptions, FinetuningOptions, GlueOptions, value_of
from mae_lm_fairseq.finetuning.origin import Origin, find_origin
from mae_lm_fairseq.finetuning.results import report
from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
from mae_lm_fairseq.finetuning.sentences.own_files import OwnFiles
from mae_lm_fairseq.finetuning.sentences.prediction import data_bin_logits, targets
from mae_lm_fairseq.finetuning.sentences.preparation import Sets, prepare
from mae_lm_fairseq.finetuning.sentences.tasks import FROM_MNLI, SELECTIONS, Task, find_task, measure, predictions
from mae_lm_fairseq.finetuning.sweep import Sweep, claim, inputs_of, number_of_updates, run_sweep, settings_for
from mae_lm_fairseq.text.data_bin import TASK, check_data_bin
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.settings import Settings
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, write_results
from mae_lm_fairseq.utils.locks import directory_lock

DATA_BIN = "data-bin"


def finetune(options: GlueOptions | ClassificationOptions) -> dict:
    """Fine-tune, or resume an unfinished sweep, and return the content of ``results.json``.

    Raises:
        UserError: if options, data or model are invalid; existing results are kept.
    """
    with directory_lock(options.out):
        if isinstance(options, ClassificationOptions):
            return _finetune(options, OwnFiles(options))
        task = find_task(options.task)
        if options.from_mnli and task.name not in FROM_MNLI:
            raise UserError(f"--from-mnli is for {', '.join(FROM_MNLI)}, not for {task.name}")
        heads = ("MNLI",) if options.from_mnli else ()
        return _finetune(options, GlueFiles(task, options.glue_dir, options.skip_malformed), heads)


def _finetune(
    options: GlueOptions | ClassificationOptions, sets: GlueFiles | OwnFiles, heads: tuple[str, ...] = ()
) -> dict:
    """Fine-tune a model with certain heads on the sets of a task."""
    task, out = sets.task, options.out
    origin = find_origin(options, heads)
    tokenizer = open_tokenizer(options.tokenizer, options.model, origin.dictionary)
    inputs = inputs_of(origin, tokenizer, sets=sets.settings())
    products = claim(out, DATA_BIN, *sets.outputs)
    print(f"{'scores' if task.is_regression else 'labels'}: {task.describe()}")
    data, statistics = prepared(products, sets, tokenizer, origin.max_positions)
    sweep = make_sweep(task, options, origin, data, statistics)
    ran, chosen = run_sweep(sweep, inputs)
    content = {
        "task": task.name,
        "data": statistics["splits"],
        **ran,
        **sets.described,
        **sets.predict(chosen, data, out),
    }
    write_results(out, content, report_of(task, content))
    return content


def prepared(products: Products, sets: Sets, tokenizer: Tokenizer, max_positions: int) -> tuple[Path, dict]:
    """Return the path and the statistics of the task's data-bin, which is made for these sets and this tokenizer."""

    def make(path: Path) -> None:
        for split, counts in prepare(sets, tokenizer, path, max_positions)["splits"].items():
            print(f"{split}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))

    made_from = {"sets": sets.settings(), "tokenizer": tokenizer.fingerprint, "max_positions": max_positions}
    data = products.make(DATA_BIN, made_from, make)
    for path in sorted({path.with_suffix("") for name in ("*/*.bin", "*/*.idx") for path in data.glob(name)}):
        check_data_bin(path)
    return data, read_json(data / TASK, _statistics, f"remove {data}, and run the command again")


def _statistics(content: dict) -> dict:
    """Return the content of ``task.json``, with the counts that :func:`prepare` writes."""
    names = ("rows", "tokens", "truncated", "malformed")
    splits = {split: {name: int(counts[name]) for name in names} for split, counts in content["splits"].items()}
    return content | {"splits": splits | {"train": splits["train"]}}


def make_sweep(task: Task, options: FinetuningOptions, origin: Origin, data: Path, statistics: dict) -> Sweep:
    """Return the sweep over learning rates and seeds."""
    updates = number_of_updates(options, statistics["splits"]["train"]["rows"], task.epochs, task.batch_size)
    chosen: Settings = settings_for(origin, updates, task.batch_size)
    metric = value_of("--best-checkpoint-metric", options.extra) or task.selection
    chosen["checkpoint"]["best_checkpoint_metric"] = metric
    if not metric.endswith("loss"):
        chosen["checkpoint"]["maximize_best_checkpoint_metric"] = True
    chosen["task"] |= {"_name": "sentence_prediction", "num_classes": task.num_classes}
    chosen["task"] |= {"init_token": 0, "separator_token": 2}
    chosen["criterion"] |= {"_name": "sentence_prediction", "classification_head_name": task.head}
    chosen["criterion"] |= SELECTIONS[task.selection] | SELECTIONS.get(metric, {})
    if task.is_regression:
        chosen["criterion"]["regression_target"] = True
    rates = options.learning_rates or task.learning_rates
    return Sweep(options, origin, data.resolve(), chosen, rates, partial(evaluate, task, data=data), "score")


def evaluate(task: Task, checkpoint: Path, data: Path) -> dict[str, float]:
    """Return the metrics on the development sets in per cent, and ``score``, their mean.

    The metrics of further development sets have endings: for MNLI they are ``accuracy`` and ``accuracy_mismatched``.
    """
    model, fairseq_task = load(checkpoint, data)
    metrics, further = {}, {}
    for number, suffix in enumerate(task.dev_suffixes):
        split = f"valid{number or ''}"
        predicted = predictions(task, data_bin_logits(model, fairseq_task, split))
        true = targets(fairseq_task, split)
        true = task.from_unit(true) if task.is_regression else true
        for found, names in ((metrics, task.metrics), (further, task.also_reported)):
            found |= {name + suffix: value for name, value in measure(names, predicted, true).items()}
    return {**metrics, **further, "score": fmean(metrics.values())}


def report_of(task: Task, content: dict) -> str:
    """Return the text of ``report.md``."""
    settings = f"{content['settings']['updates']:,} updates of {content['settings']['batch_size']} sequences"
    sets = "; ".join(
        f"{split} {counts['rows']:,} rows, {counts['truncated']:,} truncated, {counts['malformed']:,} dropped"
        for split, counts in content["data"].items()
    )
    ending = [f"Data: {sets}."]
    if "f1" in task.also_reported:
        ending.append(f"`f1` refers to the label {task.labels[1]}.")
    if "test_predictions_by" in content:
        found = ", ".join(f"{name} {value:.1f}" for name, value in content.get("test_metrics", {}).items())
        ending.append(f"Test predictions: {content['test_predictions_by']}" + (f" ({found})." if found else "."))
    *metrics, score = content["metrics"].values()
    hidden = ("score",) if score in metrics else ()  # the mean of a single metric
    return report(content, settings, "score", hidden, " ".join(ending))

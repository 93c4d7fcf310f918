"""Fine-tuning on a sentence task: GLUE's, or one of the user's own files."""

from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from mae_lm_fairseq.finetuning.adapter import Adapter, TaskSetup, on_test_file
from mae_lm_fairseq.finetuning.options import ClassificationOptions, GlueOptions
from mae_lm_fairseq.finetuning.results import report
from mae_lm_fairseq.finetuning.sentences.data_bin import DataBinSets
from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
from mae_lm_fairseq.finetuning.sentences.metrics import measure
from mae_lm_fairseq.finetuning.sentences.own_files import OwnFiles
from mae_lm_fairseq.finetuning.sentences.preparation import DATA_BIN, prepare
from mae_lm_fairseq.finetuning.sentences.tasks import SELECTIONS, Task, find_task, predictions, set_name
from mae_lm_fairseq.text.data_bin import TASK, check_data_bin
from mae_lm_fairseq.text.tokenizer import BOS, EOS, Tokenizer
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.command import Settings
from mae_lm_fairseq.training.keys import Products, values_of_words
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hashes import check_hashes
from mae_lm_fairseq.utils.output import escaped
from mae_lm_fairseq.wrapped.heads import SENTENCES


class SentenceAdapter(Adapter):
    """A task of GLUE, or the task that the user's own files define."""

    kind = SENTENCES

    def __init__(self, options: GlueOptions | ClassificationOptions):
        self.options = options
        self.sets: GlueFiles | OwnFiles
        if isinstance(options, ClassificationOptions):
            self.sets = OwnFiles(options)
        else:
            self.heads = ("MNLI",) if options.from_mnli else ()
            self.sets = GlueFiles(find_task(options.task), options.glue_dir, options.skip_malformed)
        self.task = self.sets.task
        self.outputs = (DATA_BIN, *self.sets.outputs)

    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        task, sets = self.task, self.sets
        print(f"{'scores' if task.is_regression else 'labels'}: {task.describe()}")
        data, splits = prepared(products, sets, tokenizer, start.config.max_positions)
        metrics = values_of_words(self.options.extra).get("best-checkpoint-metric") or [task.selection]
        return TaskSetup(
            content={"task": task.name, "data": splits},
            data=data.resolve(),
            sequences=splits["train"]["rows"],
            recipe=task.recipe,
            settings=settings_of(task, metrics[0]),
            inputs={"sets": sets.settings()},
            evaluate=partial(evaluate, task, data=data, is_test_scored=sets.is_test_scored),
            selection="score",
        )

    def predict(self, best: Run, made: Path) -> dict[str, Any]:
        return self.sets.predict(best, self.options.out, made)

    def report(self, content: dict[str, Any]) -> str:
        sentences = []
        if "f1" in self.task.also_reported:
            sentences.append(f"`f1` refers to the label {escaped(self.task.labels[1])}.")
        if "test_predictions_by" in content:
            metrics = [f"{name} {value:.1f}" for name, value in content.get("test_metrics", {}).items()]
            in_brackets = f" ({', '.join(metrics)})" if metrics else ""
            sentences.append(f"Test predictions: {content['test_predictions_by']}{in_brackets}.")
        *summaries, score = content["metrics"].values()
        hidden = ("score",) if score in summaries else ()  # the mean of a single metric
        return report(content, "score", hidden=hidden, ending=" ".join(sentences))


def prepared(
    products: Products, sets: GlueFiles | OwnFiles, tokenizer: Tokenizer, max_positions: int
) -> tuple[Path, dict]:
    """Return the task's data-bin, which is made for these sets and this tokenizer, and the counts of each set."""

    def make(path: Path) -> None:
        rows = {split: sets.read(split) for split in sets.splits}
        prepare(sets.task, rows, tokenizer, path, max_positions)

    made_from = {"sets": sets.settings(), "tokenizer": tokenizer.fingerprint, "max_positions": max_positions}
    data = products.make(DATA_BIN, made_from, make)
    check_hashes(data)
    files = [*data.glob("*/*.bin"), *data.glob("*/*.idx")]
    for prefix in sorted({path.with_suffix("") for path in files}):
        check_data_bin(prefix)
    counts = read_json(data / TASK, itemgetter("splits"), f"remove {data}, and run the command again")
    return data, counts


def settings_of(task: Task, metric: str) -> Settings:
    """Return fairseq's options of a task, given the metric of its validation that selects checkpoints."""
    criterion = {
        "_name": SENTENCES.task,
        "classification_head_name": task.head,
        **SELECTIONS[task.selection],
        **SELECTIONS.get(metric, {}),
    }
    if task.is_regression:
        criterion["regression_target"] = True
    checkpoint: dict[str, Any] = {"best_checkpoint_metric": metric}
    if not metric.endswith("loss"):
        checkpoint["maximize_best_checkpoint_metric"] = True
    return {
        "task": {
            "_name": SENTENCES.task,
            "num_classes": task.num_classes,
            "init_token": BOS,
            "separator_token": EOS,
        },
        "criterion": criterion,
        "checkpoint": checkpoint,
    }


def evaluate(task: Task, checkpoint: Path, data: Path, is_test_scored: bool = False) -> dict[str, float]:
    """Return the metrics on the development sets in per cent, and ``score``, their mean.

    The metrics of further development sets have endings: for MNLI they are ``accuracy`` and ``accuracy_mismatched``.

    Args:
        is_test_scored: also return the metrics on the labelled test set, as ``test_accuracy``; they are no part of
            ``score``, which selects.
    """
    sets = DataBinSets(checkpoint, data)
    metrics, further = {}, {}
    for number, suffix in enumerate(task.dev_suffixes):
        for name, value in split_metrics(task, sets, set_name("valid", number)).items():
            part = metrics if name in task.metrics else further
            part[name + suffix] = value
    score = fmean(metrics.values())
    if is_test_scored:
        further |= on_test_file(split_metrics(task, sets, "test"))
    return {**metrics, **further, "score": score}


def split_metrics(task: Task, sets: DataBinSets, split: str) -> dict[str, float]:
    """Return the task's metrics on a set of its data-bin, in per cent."""
    predicted = predictions(task, sets.logits(split))
    true = sets.targets(split)
    if task.is_regression:
        true = task.from_unit(true)
    return measure(task.all_metrics, predicted, true)

"""Fine-tuning on a sentence task: GLUE's, or one of the user's own files."""

from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import Adapter, TaskSetup
from mae_lm_fairseq.finetuning.options import ClassificationOptions, FinetuningOptions, GlueOptions
from mae_lm_fairseq.finetuning.results import report_text
from mae_lm_fairseq.finetuning.sentences.data_bin import DATA_BIN, write_data_bin
from mae_lm_fairseq.finetuning.sentences.evaluation import evaluate_sentences
from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles
from mae_lm_fairseq.finetuning.sentences.own_files import OwnFiles
from mae_lm_fairseq.finetuning.sentences.task_files import TaskFiles
from mae_lm_fairseq.finetuning.sentences.tasks import SELECTIONS, Task, find_task
from mae_lm_fairseq.text.data_bin import TASK, check_data_bin
from mae_lm_fairseq.text.tokenizer import BOS, EOS, Tokenizer
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.command import Settings
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hashes import check_hashes
from mae_lm_fairseq.utils.output import escaped
from mae_lm_fairseq.wrapped.heads import SENTENCES


class SentenceAdapter(Adapter):
    """Base of sentence tasks, whose files define the task."""

    kind = SENTENCES

    def __init__(self, options: FinetuningOptions, files: TaskFiles):
        self.options = options
        self.files = files
        self.task = files.task
        self.outputs = (DATA_BIN, *files.outputs)

    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        task = self.task
        files = self.files
        kind = "scores" if task.is_regression else "labels"
        print(f"{kind}: {task.describe()}")
        data, counts = make_data_bin(products, files, tokenizer, start.config.max_positions)
        metric = self.options.further_option("best-checkpoint-metric") or task.selection
        return TaskSetup(
            content={"task": task.name, "data": counts},
            data=data.resolve(),
            sequences=counts["train"]["rows"],
            recipe=task.recipe,
            settings=task_settings(task, metric),
            inputs={"sets": files.made_from()},
            evaluate=partial(evaluate_sentences, task, data=data, is_test_scored=files.is_test_scored),
            selection="score",
        )

    def write_predictions(self, best: Run, directory: Path) -> dict[str, Any]:
        return self.files.write_predictions(best, self.options.out, directory)

    def report(self, content: dict[str, Any]) -> str:
        remarks = []
        if "f1" in self.task.also_reported:
            remarks.append(f"`f1` refers to the label {escaped(self.task.labels[1])}.")
        if "test_predictions_by" in content:
            remark = f"Test predictions: {content['test_predictions_by']}"
            test_metrics = content.get("test_metrics", {})
            test_scores = [f"{name} {value:.1f}" for name, value in test_metrics.items()]
            if test_scores:
                remark += f" ({', '.join(test_scores)})"
            remarks.append(f"{remark}.")

        metrics_in_score = len(self.task.metrics) * len(self.task.dev_suffixes)
        hidden_suffixes = ["score"] if metrics_in_score == 1 else []  # their mean, the score, is this metric
        return report_text(content, "score", hidden_suffixes=hidden_suffixes, ending=" ".join(remarks))


class GlueAdapter(SentenceAdapter):
    """A task of GLUE."""

    def __init__(self, options: GlueOptions):
        super().__init__(options, GlueFiles(find_task(options.task), options.glue_dir, options.skip_malformed))
        if options.from_mnli:
            self.heads = ("MNLI",)


class ClassificationAdapter(SentenceAdapter):
    """The task that the user's own files define."""

    def __init__(self, options: ClassificationOptions):
        super().__init__(options, OwnFiles(options))


def make_data_bin(
    products: Products, files: TaskFiles, tokenizer: Tokenizer, max_positions: int
) -> tuple[Path, dict[str, dict[str, int]]]:
    """Make the data-bin of a task, or find it again; return its path, and counts of each set.

    Raises:
        UserError: if a set is malformed, or an existing data-bin damaged.
    """
    made_from = {"sets": files.made_from(), "tokenizer": tokenizer.fingerprint, "max_positions": max_positions}
    data = products.make(DATA_BIN, made_from, partial(write_data_bin, files, tokenizer, max_positions))
    check_hashes(data)
    paths = [*data.glob("*/*.bin"), *data.glob("*/*.idx")]
    for prefix in sorted({path.with_suffix("") for path in paths}):
        check_data_bin(prefix)
    counts = read_json(data / TASK, itemgetter("splits"), f"remove {data}, and run the command again")
    return data, counts


def task_settings(task: Task, metric: str) -> Settings:
    """Return fairseq's options of a task, given the metric of its validation that selects checkpoints."""
    criterion = {"_name": SENTENCES.task, "classification_head_name": task.head}
    criterion |= SELECTIONS[task.selection]
    criterion |= SELECTIONS.get(metric, {})
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

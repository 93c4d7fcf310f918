"""Fine-tuning on labelled words."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import (
    MODEL,
    Adapter,
    TaskSetup,
    on_test_file,
    window_inputs,
    window_settings,
)
from mae_lm_fairseq.finetuning.options import TaggingOptions
from mae_lm_fairseq.finetuning.recipes import Recipe
from mae_lm_fairseq.finetuning.results import end_of_path, report_text
from mae_lm_fairseq.finetuning.start import recipe_for
from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR, in_per_cent, ratios, with_intervals
from mae_lm_fairseq.tasks.tagging import TOKENS_PER_SAMPLE
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.word_files import WordFile, column_of, plain_name, read_words
from mae_lm_fairseq.text.word_labels import learn_labels
from mae_lm_fairseq.text.word_windows import WordWindows
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.trained.tags import Tagger
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_text
from mae_lm_fairseq.utils.output import markdown_table
from mae_lm_fairseq.wrapped.heads import WORDS

BERT = Recipe((2e-5, 3e-5, 5e-5), batch_size=32, weight_decay=0.01, epochs=4)
"""For base and large: Appendix A.3 of Devlin et al. (2019, arXiv 1810.04805), which RoBERTa does not change."""


class TaggingAdapter(Adapter):
    """Labels of words: part-of-speech tags, named entities and others.

    Raises:
        UserError: if a file is malformed, or has labels that do not fit the training file's.
    """

    kind = WORDS
    outputs = ("dev_predictions", "dev_predictions.*", "test_predictions", "test_predictions.*")

    def __init__(self, options: TaggingOptions):
        self.train = read_words(options.train, options.column)
        column = column_of(self.train, options.column)
        self.options = replace(options, column=column)

        dev = read_words(options.dev, column)
        self.labels = learn_labels(self.train)
        self.labels.check_known(dev)
        self.predicted_files = {"dev": dev}
        self.scored_test = None
        if options.test:
            test = read_words(options.test, column, is_labelled=options.score_runs)
            self.predicted_files["test"] = test
            if options.score_runs:
                self.scored_test = test
                if not test.kinds:
                    raise UserError(f"{options.test}: --score-runs needs labels in column {column}")
        for file in self.predicted_files.values():
            file.check_labels(self.labels.names)

    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        options = self.options
        labels = self.labels
        length = min(TOKENS_PER_SAMPLE, start.config.max_positions)
        training_windows = WordWindows(self.train.words, tokenizer, length, targets=labels.targets(self.train))
        files = {"train": end_of_path(self.train.path.resolve())}
        counts = {"train": training_windows.counts}
        for name, file in self.predicted_files.items():
            files[name] = end_of_path(file.path.resolve())
            counts[name] = WordWindows(file.words, tokenizer, length).counts
        print(f"labels: {', '.join(labels.names)}")

        task = {"_name": WORDS.task, "column": options.column, "tokens_per_sample": length}
        inputs = window_inputs(options.train, options.dev)
        if self.scored_test:  # one that is not scored is no input: if it is corrected, the finished models label it
            inputs["test-file"] = file_sha256(self.scored_test.path)
        return TaskSetup(
            content={
                "task": self._task_name(),
                "files": files,
                "data": counts,
                "labels": list(labels.names),
                "scheme": labels.scheme,
            },
            data=options.tokenizer.resolve(),
            sequences=len(training_windows.order),
            recipe=recipe_for(start, BERT),
            settings=window_settings(task, options.train, options.dev),
            inputs=inputs,
            evaluate=partial(
                evaluate_words, data=options.tokenizer, dev=self.predicted_files["dev"], test=self.scored_test
            ),
            selection="f1" if labels.kinds else "accuracy",
        )

    def _task_name(self) -> str:
        """Return the end of the training file's path, with the column if it has a name."""
        name = end_of_path(plain_name(self.options.train.resolve()).with_suffix(""))
        return name if self.options.column.isdecimal() else f"{name} {self.options.column}"

    def write_predictions(self, best: Run, directory: Path) -> dict[str, Any]:
        """Write the best model's labels of the files, and return the metrics of labelled ones, with intervals."""
        tagger = Tagger(open_finetuned(self.options.out / MODEL))
        metrics = {}
        for name, file in self.predicted_files.items():
            predicted, text = tagger.with_predictions(file)
            write_text(directory / f"{name}_predictions{file.suffix}", text)
            if file.kinds:
                metrics[name] = with_intervals(ratios(self.labels, predicted, file.labels))
        return {"predictions_by": best.name, "best_model": metrics}

    def report(self, content: dict[str, Any]) -> str:
        title = f"The best model, {content['predictions_by']}, with 95 % intervals from resampling sentences:"
        table = _interval_table(content["best_model"])
        files = ", ".join(f"`{name}_predictions`" for name in self.predicted_files)
        ending = f"{title}\n\n{table}\n\nIts labels: {files}."
        selection = "F1" if self.labels.kinds else "accuracy"
        of_types = [f"{SEPARATOR}{metric}" for metric in ("precision", "recall", "f1")]
        return report_text(content, selection, hidden_suffixes=of_types, ending=ending)


def _interval_table(metrics_of_files: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return a table with a column for each file, given its metrics as :func:`with_intervals` returns them."""
    names = dict.fromkeys(itertools.chain(*metrics_of_files.values()))
    rows = []
    for name in names:
        row = [name]
        for metrics in metrics_of_files.values():
            cell = "-"
            if name in metrics:
                cell = "{value:.1f} [{low:.1f}, {high:.1f}]".format(**metrics[name])
            row.append(cell)
        rows.append(row)
    return markdown_table(["metric", *metrics_of_files], rows)


def evaluate_words(
    checkpoint: Path, directory: Path, data: Path, dev: WordFile, test: WordFile | None
) -> dict[str, float]:
    """Return the metrics of a checkpoint on the development file in per cent, and on a test file, as ``test_f1``.

    Nothing is written into ``directory``, that of the run.
    """
    tagger = Tagger(open_finetuned(checkpoint, data))
    metrics = file_metrics(tagger, dev)
    if test is not None:
        metrics |= on_test_file(file_metrics(tagger, test))
    return metrics


def file_metrics(tagger: Tagger, file: WordFile) -> dict[str, float]:
    """Return the metrics of a model on a labelled file, in per cent."""
    predicted = [tagger.labels.best(logits) for logits in tagger.logits(file.words)]
    return in_per_cent(ratios(tagger.labels, predicted, file.labels))

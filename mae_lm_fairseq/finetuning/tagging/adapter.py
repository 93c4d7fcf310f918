"""Fine-tuning on labelled words."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import TEST, Adapter, TaskSetup
from mae_lm_fairseq.finetuning.options import Recipe, TaggingOptions, for_size
from mae_lm_fairseq.finetuning.results import MODEL, report
from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR, ratios, values, with_intervals
from mae_lm_fairseq.tasks.tagging import TOKENS_PER_SAMPLE
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.word_files import WordFile, column_of, plain_name, read_words
from mae_lm_fairseq.text.word_labels import learn_labels
from mae_lm_fairseq.text.word_windows import WordWindows
from mae_lm_fairseq.trained.conversion import architecture_of
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.trained.tags import Tagger
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_text
from mae_lm_fairseq.utils.output import markdown_table

BERT = Recipe((2e-5, 3e-5, 5e-5), batch_size=32, weight_decay=0.01, epochs=4)
"""For base and large: Appendix A.3 of Devlin et al. (2019, arXiv 1810.04805), which RoBERTa does not change."""
OURS = Recipe((5e-4,), batch_size=16, weight_decay=0.01, epochs=10)
"""For tiny and small models."""


class TaggingAdapter(Adapter):
    """Labels of words: part-of-speech tags, named entities and others.

    Raises:
        UserError: if a file is malformed, or has labels that do not fit the training file's.
    """

    outputs = tuple(f"{name}_predictions{end}" for name in ("dev", "test") for end in ("", ".*"))

    def __init__(self, options: TaggingOptions):
        self.files = files = {"train": read_words(options.train, options.column)}
        self.options = options = replace(options, column=column_of(files["train"], options.column))
        files["dev"] = read_words(options.dev, options.column)
        self.labels = learn_labels(files["train"])
        self.labels.targets(files["dev"])  # refuses labels that the training file lacks
        if options.test:
            files["test"] = read_words(options.test, options.column, is_labelled=options.score_runs)
            if options.score_runs and not files["test"].kinds:
                raise UserError(f"{options.test}: --score-runs needs labels in column {options.column}")
        self.scored_test = files["test"] if options.score_runs else None

    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        options, labels, length = self.options, self.labels, min(TOKENS_PER_SAMPLE, start.config.max_positions)
        targets = {"train": labels.targets(self.files["train"])}
        windows = {
            name: WordWindows(file.words, tokenizer, length, 0, targets.get(name)) for name, file in self.files.items()
        }
        print(f"labels: {', '.join(labels.names)}")
        name = "/".join(plain_name(options.train.resolve()).with_suffix("").parts[-2:])
        task = {"_name": "token_classification", "column": options.column, "tokens_per_sample": length}
        scored = {"test-file": file_sha256(self.scored_test.path)} if self.scored_test else {}
        # Otherwise without the test file: a corrected one is labelled by the finished models.
        return TaskSetup.of_windows(
            options,
            task,
            also_read=scored,
            content={
                # The end of the training file's path, with the column if it has a name.
                "task": name if options.column.isdecimal() else f"{name} {options.column}",
                "files": {name: "/".join(file.path.resolve().parts[-2:]) for name, file in self.files.items()},
                "data": {name: each.counts for name, each in windows.items()},
                "labels": list(labels.names),
                "scheme": labels.scheme,
            },
            sequences=len(windows["train"].order),
            recipe=for_size(architecture_of(start), BERT, OURS),
            evaluate=partial(evaluate, data=options.tokenizer, dev=self.files["dev"], test=self.scored_test),
            selection="f1" if labels.kinds else "accuracy",
        )

    def predict(self, best: Run, made: Path) -> dict[str, Any]:
        """Write the best model's labels of the files, and return the metrics of labelled ones, with intervals."""
        metrics, tagger = {}, Tagger(open_finetuned(self.options.out / MODEL))
        for name, file in ((name, file) for name, file in self.files.items() if name != "train"):
            predicted, text = tagger.with_predictions(file)
            write_text(made / f"{name}_predictions{file.suffix}", text)
            if file.kinds:
                metrics[name] = with_intervals(ratios(self.labels, predicted, file.labels))
        return {"predictions_by": best.name, "best_model": metrics}

    def report(self, content: dict[str, Any]) -> str:
        best = content["best_model"]
        names = dict.fromkeys(name for of_file in best.values() for name in of_file)
        interval = "{value:.1f} [{low:.1f}, {high:.1f}]".format
        found = ((name, [of_file.get(name) for of_file in best.values()]) for name in names)
        rows = [[name, *(interval(**metric) if metric else "-" for metric in metrics)] for name, metrics in found]
        ending = "\n".join(
            [
                f"The best model, {content['predictions_by']}, with 95 % intervals from resampling sentences:",
                "",
                markdown_table(["metric", *best], rows),
                "",
                f"Its labels: {', '.join(f'`{name}_predictions`' for name in content['data'] if name != 'train')}.",
            ]
        )
        selection = "accuracy" if content["scheme"] is None else "F1"
        by_type = tuple(f"{SEPARATOR}{metric}" for metric in ("precision", "recall", "f1"))
        return report(content, selection, hidden=by_type, ending=ending)


def evaluate(checkpoint: Path, data: Path, dev: WordFile, test: WordFile | None = None) -> dict[str, float]:
    """Return the metrics of a checkpoint on the development file in per cent, and on a test file, as ``test_f1``."""
    tagger = Tagger(open_finetuned(checkpoint, data))
    metrics = file_metrics(tagger, dev)
    if test is not None:
        metrics |= {f"{TEST}{name}": value for name, value in file_metrics(tagger, test).items()}
    return metrics


def file_metrics(tagger: Tagger, file: WordFile) -> dict[str, float]:
    """Return the metrics of a model on a labelled file, in per cent."""
    predicted = [tagger.labels.best(logits) for logits in tagger.logits(file.words)]
    return values(ratios(tagger.labels, predicted, file.labels))

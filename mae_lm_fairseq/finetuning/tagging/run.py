"""Fine-tuning on labelled words: runs, metrics, predictions and report; used by ``mae-lm finetune tagging``."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from mae_lm_fairseq.finetuning.models import load, open_finetuned
from mae_lm_fairseq.finetuning.options import TaggingOptions
from mae_lm_fairseq.finetuning.origin import Origin, find_origin
from mae_lm_fairseq.finetuning.results import MODEL, report
from mae_lm_fairseq.finetuning.sweep import (
    Recipe,
    Sweep,
    claim,
    for_size,
    inputs_of,
    prediction_names,
    remove_predictions,
    run_sweep,
    window_sweep,
)
from mae_lm_fairseq.finetuning.tagging.files import WordFile, column_of, plain_name, read_words
from mae_lm_fairseq.finetuning.tagging.labels import OUTSIDE, LabelSet, learn_labels, scheme_of
from mae_lm_fairseq.finetuning.tagging.metrics import SEPARATOR, ratios, values, with_intervals
from mae_lm_fairseq.finetuning.tagging.prediction import Tagger
from mae_lm_fairseq.finetuning.tagging.task import TOKENS_PER_SAMPLE
from mae_lm_fairseq.finetuning.tagging.windows import WordWindows, word_logits
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_results, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.output import markdown_table

BERT = Recipe((2e-5, 3e-5, 5e-5), batch_size=32, weight_decay=0.01, epochs=4)
"""For base and large: Appendix A.3 of Devlin et al. (2019, arXiv 1810.04805), which RoBERTa does not change."""
OURS = Recipe((5e-4,), batch_size=16, weight_decay=0.01, epochs=10)
"""For tiny and small models."""


def finetune(options: TaggingOptions) -> dict:
    """Fine-tune, or resume an unfinished sweep, and return the content of ``results.json``.

    Raises:
        UserError: if options, data or model are invalid; existing results are kept.
    """
    with directory_lock(options.out):
        return _finetune(options)


def _finetune(options: TaggingOptions) -> dict:
    out, files = options.out, {"train": read_words(options.train, options.column)}
    options = replace(options, column=column_of(files["train"], options.column))
    files["dev"] = read_words(options.dev, options.column)
    labels = learn_labels(files["train"])
    labels.targets(files["dev"])  # refuses labels that the training file lacks
    if options.test:
        files["test"] = read_words(options.test, options.column, needs_labels=False)
        if scheme_of(files["test"]) != labels.scheme and files["test"].kinds - {OUTSIDE}:
            raise UserError(
                f"{options.test}: only one of it and {options.train} has labels of entities in BIO; convert it"
            )
    origin = find_origin(options)
    tokenizer = open_tokenizer(options.tokenizer, options.model, origin.dictionary)
    length = min(TOKENS_PER_SAMPLE, origin.max_positions)
    targets = {"train": labels.targets(files["train"])}
    windows = {name: WordWindows(file.words, tokenizer, length, 0, targets.get(name)) for name, file in files.items()}
    # Not the test file: one that is added or corrected later is labelled by the models of the finished runs.
    hashes = {"train-file": file_sha256(options.train), "valid-file": file_sha256(options.dev)}
    claim(out, *prediction_names("dev"), *prediction_names("test"))
    print(f"labels: {', '.join(labels.names)}")
    sweep = make_sweep(options, origin, length, len(windows["train"].order), files["dev"], labels)
    ran, chosen = run_sweep(sweep, inputs_of(origin, tokenizer, **hashes))
    content = {
        "task": task_name(options),
        "files": {name: "/".join(file.path.resolve().parts[-2:]) for name, file in files.items()},
        "data": {name: each.counts for name, each in windows.items()},
        "labels": list(labels.names),
        "scheme": labels.scheme,
        **ran,
        "predictions_by": chosen.name,
    }
    del files["train"]
    content["best_model"] = write_predictions(out, labels, files)
    write_results(out, content, report_of(content))
    return content


def task_name(options: TaggingOptions) -> str:
    """Return the end of the training file's path, with the column if it has a name."""
    name = "/".join(plain_name(options.train.resolve()).with_suffix("").parts[-2:])
    return name if options.column.isdecimal() else f"{name} {options.column}"


def make_sweep(
    options: TaggingOptions, origin: Origin, length: int, windows: int, dev: WordFile, labels: LabelSet
) -> Sweep:
    """Return the sweep over learning rates and seeds, with ``windows`` sequences per epoch."""
    task = {
        "_name": "token_classification",
        "train_file": options.train.resolve(),
        "valid_file": options.dev.resolve(),
        "column": options.column,
        "tokens_per_sample": length,
    }
    usual, selection = for_size(origin.model["_name"], BERT, OURS), "f1" if labels.kinds else "accuracy"
    evaluation = partial(evaluate, data=options.tokenizer, dev=dev)
    return window_sweep(options, origin, usual, windows, task, evaluation, selection)


def evaluate(checkpoint: Path, data: Path, dev: WordFile) -> dict[str, float]:
    """Return the metrics of a checkpoint on the development file, in per cent."""
    model, task = load(checkpoint, data)
    windows = WordWindows(dev.words, task.tokenizer, task.cfg.tokens_per_sample)
    labels: LabelSet = task.labels
    predicted = [labels.best(logits) for logits in word_logits(model, windows)]
    return values(ratios(labels, predicted, dev.labels))


def write_predictions(out: Path, labels: LabelSet, files: dict[str, WordFile]) -> dict[str, dict]:
    """Write the best model's labels of files, each in its own format, in place of those of an earlier run.

    Returns:
        The metrics of labelled files, with intervals.
    """
    tagger = Tagger(open_finetuned(out / MODEL))
    if "test" not in files:
        remove_predictions(out, "test", None)
    found = {}
    for name, file in files.items():
        predicted, text = tagger.relabel(file)
        path = out / f"{name}_predictions{file.suffix}"
        write_text(path, text)
        remove_predictions(out, name, path)
        if file.is_labelled:
            found[name] = with_intervals(ratios(labels, predicted, file.labels))
    return found


def report_of(content: dict) -> str:
    """Return the text of ``report.md``."""
    settings = "{updates:,} updates of {batch_size} sequences of up to {tokens_per_sample} tokens"
    data = "; ".join(
        "{0} {words:,} words in {sentences:,} sentences, {split_sentences:,} of them split".format(name, **counts)
        for name, counts in content["data"].items()
    )
    best = content["best_model"]
    names = dict.fromkeys(name for of_file in best.values() for name in of_file)
    rows = [[name, *(_with_interval(of_file.get(name)) for of_file in best.values())] for name in names]
    ending = "\n".join(
        [
            f"Data: {data}.",
            "",
            f"The best model, {content['predictions_by']}, with 95 % intervals from resampling sentences:",
            "",
            markdown_table(["metric", *best], rows),
            "",
            f"Its labels: {', '.join(f'`{name}_predictions`' for name in content['data'] if name != 'train')}.",
        ]
    )
    selection = "accuracy" if content["scheme"] is None else "F1"
    by_type = tuple(f"{SEPARATOR}{metric}" for metric in ("precision", "recall", "f1"))
    return report(content, settings.format(**content["settings"]), selection, by_type, ending)


def _with_interval(metric: dict[str, float] | None) -> str:
    return "{value:.1f} [{low:.1f}, {high:.1f}]".format(**metric) if metric else "-"

"""Adaptation of a pretrained model to a text: further pretraining, measured before and after.

``mae-lm adapt`` uses this module. Every step leaves its result in the output directory and is skipped if that exists.
"""

import shutil
import tempfile
from dataclasses import asdict, replace
from typing import Any

import torch

from mae_lm_fairseq.adapt_training import PRESET_OF, TRAINED, as_objective, objective_of, training_run
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.presets import predicts
from mae_lm_fairseq.checkpoints.reading import Pretrained, read, read_checkpoint, transformers_type
from mae_lm_fairseq.huggingface.exporter import check_exportable, export_stock
from mae_lm_fairseq.huggingface.importer import import_foreign
from mae_lm_fairseq.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.huggingface.stock import counterpart
from mae_lm_fairseq.measures.evaluation import Evaluation, measure, perplexity_cell, table
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.study.options import AdaptOptions
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.text.corpus import Reading, sample_corpus
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, splits_table
from mae_lm_fairseq.text.preparation import PreparationOptions
from mae_lm_fairseq.training.runner import reserve, run_all
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, write_json, write_results, write_text
from mae_lm_fairseq.utils.output import markdown_table, step
from mae_lm_fairseq.utils.versions import machine, versions

HELD_OUT_BYTES = 200_000
"""Size of the sample of the held-out text that is measured, some 50,000 tokens."""
MEASUREMENT = {"tokens": 50_000, "pseudo_tokens": 2_000, "mask_prob": 0.15, "seed": 1}
"""Options of ``mae-lm evaluate``, for a training of :data:`FULLY_MEASURED` tokens or more."""
FULLY_MEASURED = 2_000_000
"""Number of training tokens whose computation is about ten times that of the two measurements."""
LEAST_MEASURED = 1 / 40
"""Fraction of the measurement for the shortest trainings."""
OWNED = ("data-bin", "held-out.txt", "start", "start.json", "training", *TRAINED, "results.json", "report.md")


def adapt(options: AdaptOptions) -> dict[str, Any]:
    """Run, or resume, all steps, and return the content of ``results.json``.

    Raises:
        UserError: if the model or the text cannot be used, training fails, or the directory has other results.
    """
    # Options of fairseq-train may change until the first checkpoint, see run_all.
    reserve(options.out, options.recorded(), may_change=("extra",), owned=OWNED)
    with step(1, 5, f"Text and model: {options.model}"):
        start = make_start(options)
        model = as_objective(start, options)
        text = Manifest.read(options.out / "data-bin" / MANIFEST)
    with step(2, 5, "Held-out loss before"):
        before = measured(options, "start", start) if predicts(start) else None
        print_measurement(before)
    tokens = trained_tokens(options)
    passes = tokens / text.splits["train"].tokens_out
    with step(3, 5, f"Training: up to {tokens:,} tokens, at most {passes:.1f} times the text, on {machine()}"):
        run = training_run(model, options)
        [training] = run_all([run], threads=torch.get_num_threads())
    with step(4, 5, "Model"):
        stock_class = write_models(start, options)
    with step(5, 5, "Held-out loss after"):
        after = measured(options, "model", model)
        print_measurement(after)
    content = {
        "options": options.described(),
        "objective": objective_of(model),
        "start": start.about,
        "stock_class": stock_class,
        "text": {name: asdict(split) for name, split in text.splits.items()},
        "training": training,
        "measurement": measurement(options),
        "before": before,
        "after": after,
        "machine": machine(),
        "versions": versions(),
    }
    write_results(options.out, content, report(content))
    return content


def make_start(options: AdaptOptions) -> Pretrained:
    """Return the model to start from, after making ``data-bin``, ``held-out.txt`` and ``start``, a bundle of it.

    Nothing is written if the model or the text cannot be used, so that a corrected command can have the same directory.

    Raises:
        UserError: if they cannot.
    """
    out = options.out
    if (out / "start").exists():
        print(f"done before, reusing {out / 'start'}")
        return read(out / "start")
    texts = _preparation(options)
    files = preparation.find_splits(texts)
    start = read_model(options)
    try:
        check_exportable(as_objective(start, options))
    except UserError as problem:
        raise UserError(f"{options.model} cannot be adapted, because it cannot be exported: {problem}") from None
    if not (out / "data-bin" / MANIFEST).exists():
        shutil.rmtree(out / "data-bin", ignore_errors=True)  # what a killed preparation left
        with tempfile.TemporaryDirectory() as tokenizer:  # the one of the import, whatever else the directory has
            start.tokenizer.save(tokenizer)
            preparation.prepare(replace(texts, tokenizer=tokenizer))
    sample = sample_corpus(files["valid"], Reading(options.text_field), HELD_OUT_BYTES)
    write_text(out / "held-out.txt", "".join(f"{line}\n" for line in sample))
    write_bundle(start, out / "start", add_tokenizer_and_card)
    return start


def read_model(options: AdaptOptions) -> Pretrained:
    """Read the model of the command line: a directory of ``transformers`` is imported.

    Raises:
        UserError: if a file is missing or damaged, the model cannot be imported, or it has no tokenizer.
    """
    path = options.model
    if not path.exists():
        raise UserError(f"{path} does not exist; a model of the Hugging Face hub must be downloaded first")
    if transformers_type(path):
        model = import_foreign(path, PRESET_OF["mlm"], options.data_bin, options.seed)
    else:
        model = read(path, options.data_bin)
    if model.tokenizer is None:
        raise UserError(f"{path} has no tokenizer that this package reads; add its tokenizer.json")
    return model


def _preparation(options: AdaptOptions) -> PreparationOptions:
    return PreparationOptions(
        train=options.train,
        valid=options.valid,
        destdir=options.out / "data-bin",
        max_unk_rate=1.0,  # the tokenizer is what it is; the report has the rate
        workers=max(1, torch.get_num_threads()),
        text_field=options.text_field,
    )


def trained_tokens(options: AdaptOptions) -> int:
    """Return the largest number of tokens that training can see."""
    return options.updates * options.batch_size


def measurement(options: AdaptOptions) -> dict[str, Any]:
    """Return the options of ``mae-lm evaluate``: fewer tokens for a short training."""
    share = min(1, max(LEAST_MEASURED, trained_tokens(options) / FULLY_MEASURED))
    return MEASUREMENT | {name: round(share * MEASUREMENT[name]) for name in ("tokens", "pseudo_tokens")}


def measured(options: AdaptOptions, name: str, model: Pretrained) -> dict[str, Any]:
    """Return the measurements of a bundle in the output directory, of ``model``, on the held-out text."""
    path = options.out / f"{name}.json"
    if path.exists():
        return read_json(path)
    length = min(128, model.config.max_positions)
    evaluation = Evaluation(text=options.out / "held-out.txt", tokens_per_sample=length, **measurement(options))
    numbers = measure(open_model(options.out / name, None, with_head=True), name, evaluation)
    write_json(path, numbers)
    return numbers


def print_measurement(numbers: dict[str, Any] | None) -> None:
    """Print the most important numbers of a measurement."""
    if numbers is None:
        print("      the model lacks a trained head or decoder, and cannot be measured")
    else:
        perplexity = perplexity_cell(numbers["pseudo_perplexity_per_token"])
        print(f"      {numbers['loss']:.3f} nats per masked token, pseudo-perplexity {perplexity} per token")


def write_models(start: Pretrained, options: AdaptOptions) -> str:
    """Write ``model``, a bundle, and ``stock``, a directory of ``transformers``; return the class of the latter."""
    out = options.out
    adapted = read_checkpoint(out / "training" / "checkpoints" / "checkpoint_last.pt", out / "start")
    splits = Manifest.read(out / "data-bin" / MANIFEST).splits
    adapted.about["trained_on"] = {name: vars(split) for name, split in splits.items()}
    if "imported_from" in start.about:
        adapted.about["imported_from"] = start.about["imported_from"]
    if not (out / "model").exists():
        write_bundle(adapted, out / "model", add_tokenizer_and_card)
    if not (out / "stock").exists():
        export_stock(adapted, out / "stock")
    return counterpart(adapted).architecture


_NAMES = {
    "mlm": "masked language modelling (MLM)",
    "mae_lm": "MAE-LM",
    "3ml": "3ML",
    "mask_later": "masks that join later",
    "exlm": "ExLM",
}
_REPORT = """\
# Adapted model

`{model}`, trained further with {objective} for {updates:,} updates of up to {batch:,} tokens (at most {passes:.1f}
times the training text), which took {seconds:,.0f} s on {machine}.

## Held-out text

{measurements}

- Loss: cross-entropy at masked positions in {tokens:,} tokens, the same ones in both rows.
- Pseudo-perplexity of {pseudo_tokens:,} tokens: each token, or each word, is masked on its own.
- Before: {before}
- Unigram entropy: {unigram}

## Text

{text}

{unknown}

## Use

- `stock/`: `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` of transformers load it (`{stock_class}`).
- `model/`: a bundle with the whole network, for `mae-lm` and `MAELMModel.from_pretrained`.
- `training/result.json` has the training command and `training/result.log` its output.

## Options

{options}

## Versions

{versions}
"""


def report(content: dict[str, Any]) -> str:
    """Return the text of ``report.md`` for the content of ``results.json``."""
    options, text = content["options"], content["text"]
    measured = {name: content[name] for name in ("before", "after") if content[name]}
    return _REPORT.format(
        model=options["model"],
        objective=_NAMES[content["objective"]],
        updates=options["updates"],
        batch=options["batch_size"],
        passes=options["updates"] * options["batch_size"] / text["train"]["tokens_out"],
        tokens=content["measurement"]["tokens"],
        pseudo_tokens=content["measurement"]["pseudo_tokens"],
        seconds=content["training"]["seconds"],
        machine=content["machine"],
        measurements=table(measured, content["measurement"]["mask_prob"]),
        before="predicted by the model's own head, through its decoder if it had one."
        if content["before"]
        else "the model lacked a trained head or decoder, so there is nothing to compare with.",
        unigram=_unigram(content["after"]),
        text=splits_table(text),
        unknown=_unknown(text),
        stock_class=content["stock_class"],
        options=markdown_table(["option", "value"], [[f"`{name}`", _shown(value)] for name, value in options.items()]),
        versions=markdown_table(["package", "version"], list(content["versions"].items())),
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return "" if value is None else str(value)


def _unigram(after: dict[str, Any]) -> str:
    entropy = f"{after['unigram_entropy']:.3f} nats, the lowest loss with the same prediction at every position."
    if after["loss"] < after["unigram_entropy"]:
        return entropy
    return f"{entropy} **The loss after is not below it**: train for more updates."


def _unknown(splits: dict[str, dict[str, Any]]) -> str:
    rate = max(split["unk_rate"] for split in splits.values())
    if rate < 0.01:
        return "The model's tokenizer fits the text."
    return f"**The model's tokenizer does not know {rate:.1%} of the tokens of a split**; the model cannot learn them."

"""Adapt a pretrained model to your text: pretrain it further with its own tokenizer, and measure the difference.

MODEL is a directory of Hugging Face's transformers, a bundle, or a checkpoint with its --data-bin. Writes
OUT/report.md, OUT/results.json, OUT/stock (for AutoModel and AutoTokenizer) and OUT/model (a bundle, with decoder and
head). Started again with the same options, it resumes. Arguments after -- are passed to fairseq-train and override its
options.

Example:
    mae-lm adapt ./roberta-base --train notes/*.txt --valid held-out.txt --out adapted
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.study.adapt_options import Options, check_options, is_sentence_encoder, with_defaults
from mae_lm_fairseq.study.adapt_plan import DATA, HELD_OUT, INITIAL, START, evaluation_options, measures_of, plan_of
from mae_lm_fairseq.study.adapt_report import harm, passes, report
from mae_lm_fairseq.study.engine import collect_training, complete
from mae_lm_fairseq.study.objectives import OBJECTIVES, objective_of
from mae_lm_fairseq.study.run_files import Training
from mae_lm_fairseq.study.runs import Workspace, fingerprints
from mae_lm_fairseq.text.corpus import RecordOptions, sample_corpus
from mae_lm_fairseq.text.manifest import describe_splits
from mae_lm_fairseq.text.moving import PARTS
from mae_lm_fairseq.text.preparation import find_splits, prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, missing_tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import preset_of, with_preset
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import lost_of_sentences
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.huggingface.stock import counterpart
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.original import MODULES
from mae_lm_fairseq.trained.reading import Pretrained, check_model_exists, read_bundle, read_checkpoint
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.training_log import loss_curve
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, retract, temporary_directory, write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.output import step
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.utils.versions import machine, versions

logger = logging.getLogger(__name__)


HELD_OUT_BYTES = 200_000
"""Size of the sample of the held-out text that is measured, some 50,000 tokens."""
OWNED = (START, INITIAL, DATA, HELD_OUT, "runs", "model", "stock", RESULTS, REPORT)


def main(options: Options) -> None:
    """Run the command."""
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()  # about weights that other classes have
    named = options.model
    data_bin = options.data_bin.resolve() if options.data_bin else None
    options = with_defaults(replace(options, model=named.resolve(), out=options.out.resolve(), data_bin=data_bin))
    with signals_as_errors(), directory_lock(options.out), Products(options.out, "mae-lm adapt", OWNED) as products:
        check_model_exists(named)  # not the absolute path, which is no name of the hub
        adapt(options, products)
    print(f"Report: {options.out / 'report.md'}   Model for transformers: {options.out / 'stock'}")


def adapt(options: Options, products: Products) -> None:
    """Run, or resume, everything, and write ``results.json`` and the report.

    An adaptation is a study of one model with a start, which is measured at 0 updates.

    Raises:
        UserError: if the model or the text cannot be used, or training fails.
    """
    check_options(options)
    warn_of_losses(options)
    with step(1, 3, f"Text and model: {options.model}"):
        start = make_inputs(products, options)
        model = make_initial(products, start, options)
        text = describe_splits(options.out / DATA)

    plan = plan_of(model, options, measures_of(start, model, options))
    workspace = Workspace(plan, options.out, torch.get_num_threads(), fingerprints(plan))
    tokens = options.updates * options.batch_size
    most_passes = passes(vars(options), text)
    with step(2, 3, f"Training: up to {tokens:,} tokens, at most {most_passes:.2g} times the text, on {machine()}"):
        complete(workspace)

    training = workspace.training(plan.models[0], None, options.seed)
    with step(3, 3, "Model"):
        adapted = read_adapted(training, start, text, options)
        write_models(products, adapted, training.folder.name)

    content = {
        "options": options.described(),
        "objective": objective_of(model),
        "start": start.about.to_json(),
        "sentence_encoder": is_sentence_encoder(options),
        "stock_class": counterpart(adapted).architecture,
        "text": text,
        **collect_measurements(workspace, training, options),
        "machine": machine(),
        "versions": versions(),
    }
    write_results(options.out, content, report(content))


def warn_of_losses(options: Options) -> None:
    """Warn of what the training does to sentence vectors, and of what is not imported of the model."""
    if is_sentence_encoder(options):
        logger.warning("%s is a sentence encoder (%s). %s", options.model, MODULES, harm(vars(options)))
    for line in lost_of_sentences(options.model):
        logger.warning("%s", line)


def make_inputs(products: Products, options: Options) -> Pretrained:
    """Make ``start``, a bundle of the model, and of the texts ``data-bin`` and ``held-out.txt``; return the model.

    Raises:
        UserError: if the model or the text cannot be used.
    """
    texts = PreparationOptions(
        train=options.train,
        valid=options.valid,
        destdir=options.out / DATA,
        max_unk_rate=1.0,  # the tokenizer is what it is; the report has the rate
        workers=max(1, torch.get_num_threads()),
        text_field=options.text_field,
    )
    files = find_splits(texts)  # before the model, which takes longer, is read
    start = make_start(products, options)
    check_start(start, options)
    make_texts(products, start, texts, files)
    return start


def make_start(products: Products, options: Options) -> Pretrained:
    """Make ``start``, and return the model."""
    tokenizer = find_tokenizer(options.data_bin) if options.data_bin else None
    fingerprint = tokenizer.fingerprint if tokenizer else None
    made_from = [directory_sha256(options.model), fingerprint, options.seed]
    path = products.make(START, made_from, lambda path: write_bundle(read_model(options), path, add_tokenizer_and_card))
    return read_bundle(path)


def read_model(options: Options) -> Pretrained:
    """Read the model of the command line.

    Raises:
        UserError: if it cannot be opened, or has no tokenizer.
    """
    model = open_pretrained(options.model, options.data_bin, seed=options.seed)
    if model.tokenizer is None:
        raise missing_tokenizer(options.data_bin or options.model)
    return model


def check_start(start: Pretrained, options: Options) -> None:
    """Check before the work that the model takes sequences of that length, and can be exported in the end.

    Raises:
        UserError: if not, or if the objective does not fit the model.
    """
    longest = start.config.max_positions
    if options.tokens_per_sample and options.tokens_per_sample > longest:
        raise UserError(f"--tokens-per-sample {options.tokens_per_sample}: the model takes at most {longest} tokens")
    with temporary_directory(options.out / ".trial") as directory:
        export_stock(as_objective(start, options), directory / "model")


def as_objective(start: Pretrained, options: Options) -> Pretrained:
    """Return the model to train: the start with decoder and head of the objective.

    Raises:
        UserError: if the objective does not fit the model.
    """
    objective = options.objective or objective_of(start)
    preset = preset_of(start)
    if objective != objective_of(start):
        preset = OBJECTIVES[objective].presets[0]
    try:
        return with_preset(start, preset, options.seed)
    except ValueError as problem:
        raise UserError(f"--objective {objective} does not fit {options.model}: {problem}") from None


def make_texts(
    products: Products, start: Pretrained, texts: PreparationOptions, files: Mapping[str, Sequence[Path]]
) -> None:
    """Make ``data-bin`` with the tokenizer of the start, and ``held-out.txt``.

    Args:
        texts: the options of ``mae-lm prepare`` but for the tokenizer.
        files: the files of each split.
    """

    def prepare_data(path: Path) -> None:
        with tempfile.TemporaryDirectory() as directory:  # the one of the import, whatever else the directory has
            start.tokenizer.save(directory)
            prepare(replace(texts, tokenizer=directory))

    def sample(path: Path) -> None:
        lines = sample_corpus(files["valid"], RecordOptions(texts.text_field), HELD_OUT_BYTES)
        write_text(path, "".join(f"{line}\n" for line in lines))

    hashes = {split: [directory_sha256(path) for path in paths] for split, paths in files.items()}
    made_from = {"files": hashes, "field": texts.text_field}
    products.make(DATA, made_from | {"tokenizer": start.tokenizer.fingerprint}, prepare_data, kept=PARTS)
    products.make(HELD_OUT, made_from, sample)


def make_initial(products: Products, start: Pretrained, options: Options) -> Pretrained:
    """Make ``initial``, the start with the objective's decoder, and return this model."""
    model = as_objective(start, options)
    made_from = {"start": directory_sha256(options.out / START), "preset": preset_of(model), "seed": options.seed}
    products.make(INITIAL, made_from, lambda path: write_bundle(model, path))
    return model


def read_adapted(training: Training, start: Pretrained, text: Mapping[str, Any], options: Options) -> Pretrained:
    """Return the trained model, with what it was trained on and imported from."""
    adapted = read_checkpoint(training.checkpoint(options.updates), options.out / START)
    about = replace(adapted.about, trained_on=text, imported_from=start.about.imported_from)
    return replace(adapted, about=about)


def write_models(products: Products, adapted: Pretrained, run: str) -> None:
    """Make ``model``, a bundle, and ``stock``, for transformers.

    Args:
        run: name of the directory of the training, from which they are made.
    """
    if not (products.has("model", run) and products.has("stock", run)):  # results would be those of other models
        retract(products.out, RESULTS, REPORT)
    products.make("model", run, lambda path: write_bundle(adapted, path, add_tokenizer_and_card))
    products.make("stock", run, lambda path: export_stock(adapted, path))


def collect_measurements(workspace: Workspace, training: Training, options: Options) -> dict[str, Any]:
    """Return what ``results.json`` has of the training, and of the measurements before and after it."""
    before_and_after = {}
    for planned in workspace.plan.measures:
        values = workspace.values(training, planned)
        before_and_after[planned.name] = {"before": values.get(0), "after": values[options.updates]}
    return {
        "training": {
            "loss_of_last_tenth": loss_of_last_tenth(training.result(options.updates).with_suffix(".log")),
            "seconds": collect_training(workspace, training).seconds["training"],
            "directory": training.folder.name,
        },
        "measurement": evaluation_options(options),
        **before_and_after["evaluation"],
        "retrieval": before_and_after.get("retrieval"),
    }


def loss_of_last_tenth(log: Path) -> float | None:
    """Return the mean training loss of the last tenth of the updates in nats; None if the log has none."""
    numbers, losses = loss_curve(log, "train_inner")
    last = losses[numbers > 0.9 * numbers.max(initial=0)]
    return float(last.mean()) if len(last) else None

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from mae_lm_fairseq.measures.evaluation import Evaluate
from mae_lm_fairseq.measures.measure import Data
from mae_lm_fairseq.measures.retrieval import Retrieval
from mae_lm_fairseq.study.adapt_report import harm, report
from mae_lm_fairseq.study.engine import collect_training, complete
from mae_lm_fairseq.study.objectives import OBJECTIVES, objective_of
from mae_lm_fairseq.study.plan import Model, Plan, PlannedMeasure, Train
from mae_lm_fairseq.study.run_files import Training
from mae_lm_fairseq.study.runs import RESERVED_OPTIONS, Workspace, fingerprints
from mae_lm_fairseq.text.corpus import RecordOptions, sample_corpus
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.moving import PARTS
from mae_lm_fairseq.text.preparation import find_splits, prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, missing_tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import predicts, preset_of, with_preset
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import lost_of_sentences, network_options
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.huggingface.stock import counterpart
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.original import MODULES, ORIGINAL
from mae_lm_fairseq.trained.reading import Pretrained, check_model_exists, read_bundle, read_checkpoint
from mae_lm_fairseq.training.command import (
    Optimisation,
    Settings,
    as_options,
    check_further_options,
    common_settings,
    merge,
    warmup_updates,
)
from mae_lm_fairseq.training.keys import Products, values_of_words
from mae_lm_fairseq.training.settings import settings
from mae_lm_fairseq.training.training_log import loss_curve
from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    Fraction,
    LearningRate,
    Model as ModelPath,
    Natural,
    Options as Base,
    Probability,
    Rest,
)
from mae_lm_fairseq.utils.directories import REPORT, RESULTS, retract, temporary_directory, write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256, write_text
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.output import step
from mae_lm_fairseq.utils.signals import signals_as_errors
from mae_lm_fairseq.utils.typed import Document
from mae_lm_fairseq.utils.versions import machine, versions

logger = logging.getLogger(__name__)


LONGEST = 512
"""Maximum of the default of ``--tokens-per-sample``."""
HELD_OUT_BYTES = 200_000
"""Size of the sample of the held-out text that is measured, some 50,000 tokens."""
MEASUREMENT = {"tokens": 50_000, "pseudo_tokens": 2_000, "mask_prob": 0.15, "seed": 1}
"""Options of ``mae-lm evaluate``, for a training of :data:`FULLY_MEASURED` tokens or more."""
FULLY_MEASURED = 2_000_000
"""Number of training tokens whose computation is about ten times that of the two measurements."""
LEAST_MEASURED = 1 / 40
"""Fraction of the measurement for the shortest trainings."""
START, INITIAL, DATA, HELD_OUT = "start", "initial", "data-bin", "held-out.txt"
OWNED = (START, INITIAL, DATA, HELD_OUT, "runs", "model", "stock", RESULTS, REPORT)


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of an adaptation.

    Attributes:
        model: the model to start from.
        data_bin: for a checkpoint, data-bin with its dictionary and tokenizer.
        train: text to train on: files, globs and directories, of all formats of mae-lm prepare.
        valid: held-out text to measure on, in other files.
        text_field: field of records with the text.
        questions: questions to measure retrieval with, before and after: SQuAD's JSON, or with --passages a table, see
            mae-lm retrieval.
        passages: table of the passages that answer the questions.
        relevance: table of which passage answers which question.
        out: output directory.
        objective: mlm: [MASK] enters the encoder; mae_lm, 3ml: a decoder predicts (default: the model's own, and mlm
            for models of transformers).
        updates: number of updates.
        learning_rate: maximum learning rate (default: 1e-4, and 3e-5 for sentence encoders); it rises for 6 % of the
            updates, then falls to 0.
        batch_size: tokens per update.
        tokens_per_sample: maximum length of a sequence (default: the model's, at most 512).
        mask_prob: fraction of the tokens to predict (default: 0.15, and 0.5 for 3ml).
        freeze_encoder_updates: train only decoder and head in the first N updates (default: 0, and half of the updates
            for sentence encoders).
        layer_lr_decay: factor between the learning rate of an encoder layer and that of the layer above it.
        seed: seed of new weights, masks, dropout and order.
        extra: further options of fairseq-train.
    """

    model: ModelPath
    data_bin: Directory | None = None
    train: Annotated[tuple[str, ...], Argument("PATH")]
    valid: Annotated[tuple[str, ...], Argument("PATH")]
    text_field: Annotated[str, Argument("NAME")] = "text"
    questions: File | None = None
    passages: File | None = None
    relevance: File | None = None
    out: Directory
    objective: Literal["mlm", "mae_lm", "3ml"] | None = None
    updates: Count = 1000
    learning_rate: LearningRate | None = None
    batch_size: Count = 8192
    tokens_per_sample: Annotated[int, Argument("N", at_least=4)] | None = None
    mask_prob: Probability | None = None
    freeze_encoder_updates: Natural | None = None
    layer_lr_decay: Fraction = 1.0
    seed: Count = 1
    extra: Rest = ()

    def described(self) -> dict[str, Any]:
        """Return the options that determine the result, as JSON, with the last part of each path only."""
        described = {
            "model": self.model.name,
            "data_bin": self.data_bin.name if self.data_bin else None,
            "train": [Path(path).name for path in self.train],
            "valid": [Path(path).name for path in self.valid],
        }
        for name in ("questions", "passages", "relevance"):
            path = getattr(self, name)
            described[name] = path.name if path else None
        values = vars(self) | described
        del values["out"]
        return values


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


def with_defaults(options: Options) -> Options:
    """Return the options with the defaults that depend on the model; docs/adapting.md has their reasons."""
    rate, frozen = 1e-4, 0
    if is_sentence_encoder(options):
        rate, frozen = 3e-5, options.updates // 2
    if options.learning_rate is not None:
        rate = options.learning_rate
    if options.freeze_encoder_updates is not None:
        frozen = options.freeze_encoder_updates
    return replace(options, learning_rate=rate, freeze_encoder_updates=frozen)


def adapt(options: Options, products: Products) -> None:
    """Run, or resume, everything, and write ``results.json`` and the report.

    An adaptation is a study of one model with a start, which is measured at 0 updates.

    Raises:
        UserError: if the model or the text cannot be used, or training fails.
    """
    out = options.out
    check_options(options)
    if is_sentence_encoder(options):
        logger.warning("%s is a sentence encoder (%s). %s", options.model, MODULES, harm(vars(options)))
    for line in lost_of_sentences(options.model):
        logger.warning("%s", line)

    with step(1, 3, f"Text and model: {options.model}"):
        start = make_inputs(products, options)
        model = as_objective(start, options)  # the start, with the objective's decoder
        made_from = {"start": directory_sha256(out / START), "preset": preset_of(model), "seed": options.seed}
        products.make(INITIAL, made_from, lambda path: write_bundle(model, path))
        splits = Manifest.read(out / DATA / MANIFEST).splits
        text = {name: asdict(split) for name, split in splits.items()}

    evaluate = Evaluate(tokens_per_sample=min(128, model.config.max_positions), **measurement(options))
    measures = [PlannedMeasure("evaluation", "all" if predicts(start) else "last", evaluate)]
    if options.questions:
        length = min(LONGEST, model.config.max_positions)  # the same before and after, whatever training's length
        measures.append(PlannedMeasure("retrieval", "all", replace(retrieval(options), tokens_per_sample=length)))
    plan = plan_of(model, options, measures)
    workspace = Workspace(plan, out, torch.get_num_threads(), fingerprints(plan))
    training = workspace.training(plan.models[0], None, options.seed)
    tokens = options.updates * options.batch_size
    passes = tokens / text["train"]["tokens_out"]
    with step(2, 3, f"Training: up to {tokens:,} tokens, at most {passes:.2g} times the text, on {machine()}"):
        complete(workspace)

    run = training.folder.name
    with step(3, 3, "Model"):
        adapted = read_checkpoint(training.checkpoint(options.updates), out / START)
        about = replace(adapted.about, trained_on=text, imported_from=start.about.imported_from)
        adapted = replace(adapted, about=about)
        if not (products.has("model", run) and products.has("stock", run)):  # results would be those of other models
            retract(out, RESULTS, REPORT)
        products.make("model", run, lambda path: write_bundle(adapted, path, add_tokenizer_and_card))
        products.make("stock", run, lambda path: export_stock(adapted, path))

    content = {
        "options": options.described(),
        "objective": objective_of(model),
        "start": start.about.to_json(),
        "sentence_encoder": is_sentence_encoder(options),
        "stock_class": counterpart(adapted).architecture,
        "text": text,
        **_measured(workspace, training, options),
        "machine": machine(),
        "versions": versions(),
    }
    write_results(out, content, report(content))


def _measured(workspace: Workspace, training: Training, options: Options) -> dict[str, Any]:
    """Return what ``results.json`` has of the training, and of the measurements before and after it."""
    measured = {planned.name: workspace.values(training, planned) for planned in workspace.plan.measures}
    before_and_after = {}
    for name, values in measured.items():
        before_and_after[name] = {"before": values.get(0), "after": values[options.updates]}
    return {
        "training": {
            "loss_of_last_tenth": loss_of_last_tenth(training.result(options.updates).with_suffix(".log")),
            "seconds": collect_training(workspace, training).seconds["training"],
            "directory": training.folder.name,
        },
        "measurement": measurement(options),
        **before_and_after["evaluation"],
        "retrieval": before_and_after.get("retrieval"),
    }


def check_options(options: Options) -> None:
    """Check options before any work.

    Raises:
        UserError: if one is decided by the command, the encoder would never be trained, or questions cannot be read.
    """
    decided = values_of_words(options.extra).keys() & (RESERVED_OPTIONS | {"max-epoch"})
    if decided:
        raise UserError(f"--{min(decided)} after --: mae-lm adapt decides on it; remove it")
    if options.freeze_encoder_updates >= options.updates:
        raise UserError("--freeze-encoder-updates: the encoder would never be trained; give fewer than --updates")
    check_further_options("masked_autoencoder_lm", options.extra)
    if options.questions:
        retrieval(options).collection()
    elif options.passages or options.relevance:
        raise UserError("--passages and --relevance need --questions")


def retrieval(options: Options) -> Retrieval:
    """Return the measure of ``--questions``."""
    return Retrieval(questions=options.questions, passages=options.passages, relevance=options.relevance)


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
    files = find_splits(texts)
    start = read_bundle(_make_bundle_of_start(products, options))
    longest = start.config.max_positions
    if options.tokens_per_sample and options.tokens_per_sample > longest:
        raise UserError(f"--tokens-per-sample {options.tokens_per_sample}: the model takes at most {longest} tokens")
    with temporary_directory(options.out / ".trial") as directory:  # before the work, what it would end with
        export_stock(as_objective(start, options), directory / "model")

    def prepare_data(path: Path) -> None:
        with tempfile.TemporaryDirectory() as directory:  # the one of the import, whatever else the directory has
            start.tokenizer.save(directory)
            prepare(replace(texts, tokenizer=directory))

    def sample(path: Path) -> None:
        lines = sample_corpus(files["valid"], RecordOptions(options.text_field), HELD_OUT_BYTES)
        write_text(path, "".join(f"{line}\n" for line in lines))

    hashes = {split: [directory_sha256(path) for path in paths] for split, paths in files.items()}
    text = {"files": hashes, "field": options.text_field}
    products.make(DATA, text | {"tokenizer": start.tokenizer.fingerprint}, prepare_data, kept=PARTS)
    products.make(HELD_OUT, text, sample)
    return start


def _make_bundle_of_start(products: Products, options: Options) -> Path:
    tokenizer = find_tokenizer(options.data_bin) if options.data_bin else None
    fingerprint = tokenizer.fingerprint if tokenizer else None
    made_from = [directory_sha256(options.model), fingerprint, options.seed]
    return products.make(START, made_from, lambda path: write_bundle(read_model(options), path, add_tokenizer_and_card))


def is_sentence_encoder(options: Options) -> bool:
    """Return whether the model, or what a bundle was imported from, is one of ``sentence-transformers``."""
    paths = [options.model / MODULES, options.model / ORIGINAL / MODULES]
    if options.data_bin is not None:
        paths += [options.data_bin / MODULES, options.data_bin / ORIGINAL / MODULES]
    return any(path.exists() for path in paths)


def read_model(options: Options) -> Pretrained:
    """Read the model of the command line.

    Raises:
        UserError: if it cannot be opened, or has no tokenizer.
    """
    model = open_pretrained(options.model, options.data_bin, seed=options.seed)
    if model.tokenizer is None:
        raise missing_tokenizer(options.data_bin or options.model)
    return model


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


def batch_tokens() -> int:
    """Return how many tokens may be in memory; a larger batch is accumulated. Encoders of base size fit with it."""
    return 16_384 if torch.cuda.is_available() else 2_048


def measurement(options: Options) -> dict[str, Any]:
    """Return the options of ``mae-lm evaluate``: fewer tokens for a short training."""
    tokens = options.updates * options.batch_size
    fraction = min(1, max(LEAST_MEASURED, tokens / FULLY_MEASURED))
    return MEASUREMENT | {name: round(fraction * MEASUREMENT[name]) for name in ("tokens", "pseudo_tokens")}


def plan_of(model: Pretrained, options: Options, measures: list[PlannedMeasure]) -> Plan:
    """Return the plan of a training that starts from ``initial``, and of its measures.

    Args:
        measures: what is measured of ``start`` and of the trained model.
    """
    network = _as_in_plans(network_options(model))
    chosen = as_options(training_settings(model, options)) | network
    # The recipe is for pretraining from random weights: here, what is not chosen is fairseq's default.
    recipe = as_options(settings(network["arch"]))
    unset = dict.fromkeys(recipe.keys() - chosen.keys(), False)

    is_start_measured = any(planned.at == "all" for planned in measures)
    return Plan(
        document=Document("", "adapt"),
        title="Adaptation",
        data=Data(options.out / DATA, options.out / HELD_OUT),
        train=Train(options.updates, warmup_updates(options.updates), (0,) if is_start_measured else ()),
        options=unset | chosen | _as_in_plans(options.extra),
        models=(Model("adapted", network["arch"], seeds=(options.seed,), start=options.out / START),),
        measures=tuple(measures),
        contrasts=(),
        rates=None,
    )


def _as_in_plans(words: Sequence[str]) -> dict[str, str | bool]:
    """Return the options of a command line as a plan states them: a flag is true."""
    return {name: " ".join(values) or True for name, values in values_of_words(words).items()}


def training_settings(model: Pretrained, options: Options) -> Settings:
    """Return fairseq's settings but those of the network and those that every study decides on.

    Adam, weight decay and the shape of the schedule are those of task-adaptive pretraining (Gururangan et al., 2020,
    arXiv 2004.10964, Table 14).
    """
    length = options.tokens_per_sample or min(model.config.max_positions, LONGEST)
    accumulated = -(-options.batch_size // max(batch_tokens(), length))
    masking = OBJECTIVES[objective_of(model)].masking
    if options.mask_prob:
        masking = masking | {"mask_prob": options.mask_prob}
    chosen: Settings = {
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": length,
            "sample_break_mode": "complete_doc",
            "mask_in_encoder": model.mask_in_encoder,
            "freeze_encoder_updates": options.freeze_encoder_updates,
            **masking,
        },
        "criterion": {"_name": "masked_autoencoder_lm"},
        "optimizer": {"layer_lr_decay": options.layer_lr_decay},
        "optimization": {"lr": [options.learning_rate], "update_freq": [accumulated]},
        "dataset": {"max_tokens": max(length, -(-options.batch_size // accumulated)), "num_workers": 1},
        "checkpoint": {
            "finetune_from_model": options.out / INITIAL,
            "save_interval": options.updates + 1,  # a small text has hundreds of epochs
        },
        "common": {"log_interval": max(1, options.updates // 1000)},  # an update can take a minute on a CPU
    }
    if torch.cuda.is_available():
        chosen["model"] = {"autocast": "bf16"}
    optimisation = Optimisation(updates=options.updates, weight_decay=0.01, clip_norm=1.0)
    return merge(common_settings(), optimisation.settings(), chosen)


def loss_of_last_tenth(log: Path) -> float | None:
    """Return the mean training loss of the last tenth of the updates in nats; None if the log has none."""
    numbers, losses = loss_curve(log, "train_inner")
    last = losses[numbers > 0.9 * numbers.max(initial=0)]
    return float(last.mean()) if len(last) else None

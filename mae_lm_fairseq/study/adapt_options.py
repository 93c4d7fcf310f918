"""The options of ``mae-lm adapt``, their defaults, and which of them contradict each other."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from mae_lm_fairseq.measures.retrieval import Retrieval
from mae_lm_fairseq.study.runs import RESERVED_OPTIONS
from mae_lm_fairseq.trained.original import MODULES, ORIGINAL
from mae_lm_fairseq.training.command import check_further_options
from mae_lm_fairseq.training.keys import values_of_words
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
from mae_lm_fairseq.utils.errors import UserError


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
        values = {}
        for name, value in vars(self).items():
            values[name] = value.name if isinstance(value, Path) else value
        for name in ("train", "valid"):
            values[name] = [Path(path).name for path in values[name]]
        del values["out"]
        return values


def with_defaults(options: Options) -> Options:
    """Return the options with the defaults that depend on the model; docs/adapting.md has their reasons."""
    defaults = {"learning_rate": 1e-4, "freeze_encoder_updates": 0}
    if is_sentence_encoder(options):
        defaults = {"learning_rate": 3e-5, "freeze_encoder_updates": options.updates // 2}
    lacking = {name: value for name, value in defaults.items() if getattr(options, name) is None}
    return replace(options, **lacking)


def is_sentence_encoder(options: Options) -> bool:
    """Return whether the model, or what a bundle was imported from, is one of ``sentence-transformers``."""
    for directory in filter(None, (options.model, options.data_bin)):
        if (directory / MODULES).exists() or (directory / ORIGINAL / MODULES).exists():
            return True
    return False


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

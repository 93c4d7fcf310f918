"""Options of the commands that measure trained models, and of the same measures in a study."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mae_lm_fairseq.statistics.rank_settings import RankSettings
from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    Natural,
    Options,
    OutputFile,
    Probability,
)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Trained models to measure.

    Attributes:
        models: a bundle, a checkpoint (with ``--data-bin``), or the local directory of any encoder that the
            ``AutoModel`` of ``transformers`` loads, with its tokenizer.
        data_bin: data-bin with the checkpoints' tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        labels: names of the models, in their order.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    data_bin: Directory | None = None
    ema: bool = False
    labels: Annotated[tuple[str, ...], Argument("NAME")] = ()


@dataclass(frozen=True, kw_only=True)
class MaskedText(Options):
    """A sample of a text, some of whose tokens are masked.

    Attributes:
        tokens: number of tokens to read, evenly spaced in the text.
        tokens_per_sample: maximum sequence length in tokens.
        mask_prob: fraction of the tokens to mask.
        seed: seed of the masked positions.
    """

    tokens: Count = 50_000
    tokens_per_sample: Annotated[int, Argument("N", at_least=4)] = 128
    mask_prob: Probability = 0.15
    seed: Natural = 1


@dataclass(frozen=True, kw_only=True)
class RankOptions(ModelOptions, RankSettings, MaskedText):
    """Models and text to measure effective ranks on.

    Attributes:
        text: UTF-8 text that is new to the models, plain or compressed.
        out: output directory.
    """

    text: File
    out: Directory


@dataclass(frozen=True, kw_only=True)
class Evaluation(MaskedText):
    """Text to predict, and how much of it.

    Attributes:
        text: UTF-8 text, plain or compressed.
        tokens: tokens of the text to use for loss and accuracy.
        pseudo_tokens: tokens to use for pseudo-perplexity, which predicts each of them twice.
        mask_prob: fraction of the tokens to mask for loss and accuracy.
    """

    text: File
    pseudo_tokens: Count = 5_000


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ModelOptions, Evaluation):
    """Models to evaluate.

    Attributes:
        out: also write the numbers to this JSON file.
    """

    out: OutputFile | None = None


@dataclass(frozen=True, kw_only=True)
class WordLabels(Options):
    """Labels of words for linear probes.

    Attributes:
        column: the column to predict.
        limit: train on N sentences, evenly spaced (default: all).
    """

    column: Literal["UPOS", "XPOS", "FEATS", "DEPREL"] = "UPOS"
    limit: Count | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(ModelOptions, WordLabels):
    """Models and data of linear probes.

    Attributes:
        train: CoNLL-U, plain or compressed, to train on.
        test: CoNLL-U, plain or compressed, to test on.
        dev: CoNLL-U to choose the best layer on (default: ``--test``).
        out: output directory.
    """

    train: File
    test: File
    dev: File | None = None
    out: Directory


@dataclass(frozen=True, kw_only=True)
class Scoring(Options):
    """Scores of minimal pairs.

    Attributes:
        limit: use N pairs of each file, evenly spaced (default: all).
        mask_words: mask each token together with the later subwords of its word.
    """

    limit: Count | None = None
    mask_words: bool = False


@dataclass(frozen=True, kw_only=True)
class MinimalPairsOptions(ModelOptions, Scoring):
    """Models and minimal pairs.

    Attributes:
        pairs: BLiMP's files (``*.jsonl``) or Zorro's (``*.txt``).
        unigram: text to count tokens in for the frequency control (default: for a checkpoint the training data, as
            counted in the data-bin's dict.txt; for other models the control is left out).
        out: output directory.
    """

    pairs: Directory
    unigram: File | None = None
    out: Directory

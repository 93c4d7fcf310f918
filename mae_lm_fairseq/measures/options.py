"""Options of the commands that measure trained models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mae_lm_fairseq.utils.options import Argument, Count, Directory, File, Options

STOCK = ("bert", "roberta", "mpnet")
"""Supported model types of Hugging Face."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Trained models to measure.

    Attributes:
        models: a bundle, a checkpoint (with ``--data-bin``), or the directory of a Hugging Face model with its
            tokenizer.
        data_bin: data-bin with the checkpoints' tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        labels: names of the models, in their order.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    data_bin: Directory | None = None
    ema: bool = False
    labels: Annotated[tuple[str, ...], Argument("NAME")] = ()


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(ModelOptions):
    """Models and data of linear probes.

    Attributes:
        train: CoNLL-U, plain or compressed, to train on.
        test: CoNLL-U, plain or compressed, to test on.
        dev: CoNLL-U to choose the best layer on (default: ``--test``).
        column: the column to predict.
        limit: train on N sentences, evenly spaced (default: all).
        out: output directory.
    """

    train: File
    test: File
    dev: File | None = None
    column: Literal["UPOS", "XPOS", "FEATS", "DEPREL"]
    limit: Count | None = None
    out: Directory

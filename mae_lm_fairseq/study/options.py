"""Options of the commands that join several steps: adapt, quickstart."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    Fraction,
    LearningRate,
    Model,
    Natural,
    Options,
    Probability,
    Rest,
)


@dataclass(frozen=True, kw_only=True)
class AdaptOptions(Options):
    """Options of an adaptation.

    Attributes:
        model: the model to start from.
        data_bin: for a checkpoint, data-bin with its dictionary and tokenizer.
        train: text to train on: files, globs and directories, of all formats of mae-lm prepare.
        valid: held-out text to measure on, in other files.
        text_field: field of records with the text.
        out: output directory.
        objective: mlm predicts in the encoder, mae_lm and 3ml in a decoder (default: the model's own, for models of
            transformers mlm).
        updates: number of updates.
        learning_rate: maximum learning rate; it rises for 6 % of the updates, then falls to 0.
        batch_size: tokens per update.
        tokens_per_sample: maximum length of a sequence (default: the model's, at most 512).
        mask_prob: fraction of the tokens to predict (default: 0.15, and 0.5 for 3ml).
        freeze_encoder_updates: train only decoder and head in the first N updates.
        layer_lr_decay: factor between the learning rate of an encoder layer and that of the layer above it.
        seed: seed of new weights, masks, dropout and order.
        extra: further options of fairseq-train.
    """

    model: Model
    data_bin: Directory | None = None
    train: Annotated[tuple[str, ...], Argument("PATH")]
    valid: Annotated[tuple[str, ...], Argument("PATH")]
    text_field: Annotated[str, Argument("NAME")] = "text"
    out: Directory
    objective: Literal["mlm", "mae_lm", "3ml"] | None = None
    updates: Count = 1000
    learning_rate: LearningRate = 1e-4
    batch_size: Count = 8192
    tokens_per_sample: Annotated[int, Argument("N", at_least=4)] | None = None
    mask_prob: Probability | None = None
    freeze_encoder_updates: Natural = 0
    layer_lr_decay: Fraction = 1.0
    seed: Count = 1
    extra: Rest = ()

    def described(self) -> dict[str, Any]:
        """Return the options that determine the result, as JSON, with the last part of each path only."""
        values = {name: value for name, value in vars(self).items() if name != "out"}
        for name in ("train", "valid"):
            values[name] = [Path(path).name for path in values[name]]
        for name in ("model", "data_bin"):
            values[name] = values[name] and values[name].name
        return values | {"extra": [*self.extra]}


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions(Options):
    """Options of the quickstart.

    Attributes:
        smoke: run all steps in less than 2 minutes; the models learn next to nothing.
        corpus: text file (also .gz, .xz, .bz2, .zst) to use instead of the docstrings of the installed Python packages:
            at least 300,000 characters in 100 documents (separated by blank lines; with fewer of these, 20 lines each).
        out: output directory (default: quickstart/NAME).
    """

    smoke: bool = False
    corpus: File | None = None
    out: Directory | None = None

    @property
    def directory(self) -> Path:
        """The output directory; by default one that is named after the text."""
        name = self.corpus.name.partition(".")[0] if self.corpus else "docstrings"
        return self.out or Path("quickstart") / (f"{name}-smoke" if self.smoke else name)

"""Options of the commands that write models: export, import, bundle and average."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.utils.options import Argument, Count, Directory, File, Options, OutputFile

Model = Annotated[Path, Argument("MODEL", positional=True)]


@dataclass(frozen=True, kw_only=True)
class BundleOptions(Options):
    """A checkpoint and its bundle.

    Attributes:
        model: checkpoint of fairseq-train.
        data_bin: data-bin with dictionary and tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        out: directory of the bundle, which must not exist.
    """

    model: Model
    data_bin: Directory
    ema: bool = False
    out: Directory


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """A model to export to ``transformers``.

    Attributes:
        model: bundle, or checkpoint of fairseq-train.
        data_bin: data-bin of a checkpoint, with dictionary and tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        out: output directory, which must not exist.
        head: head to export, if the model has several.
        text: text file whose lines are also compared.
    """

    model: Model
    data_bin: Directory | None = None
    ema: bool = False
    out: Directory
    head: Annotated[str | None, Argument("NAME")] = None
    text: File | None = None


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """An encoder to import.

    Attributes:
        model: directory of ``transformers``, or checkpoint of fairseq's RoBERTa.
        out: output directory, which must not exist.
        preset: preset of the network; ``mae_lm_roberta`` predicts as the original does, and the decoder of others
            starts from random weights.
        data_bin: directory of dict.txt, for a checkpoint (default: the checkpoint's).
        seed: seed of the decoder's weights.
    """

    model: Model
    out: Directory
    preset: Literal[tuple(PRESETS)] = "mae_lm_roberta"
    data_bin: Directory | None = None
    seed: Annotated[int, Argument("N")] = 1


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """Checkpoints to average.

    Attributes:
        models: checkpoints; with ``--last``, their directory.
        last: average the N checkpoints with most updates in the directory.
        out: checkpoint to write.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    last: Count | None = None
    out: OutputFile

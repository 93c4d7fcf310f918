"""Options of fine-tuning and of predictions by fine-tuned models; recipes, for what the options leave open."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.training.command import check_option_names
from mae_lm_fairseq.training.settings import DEVELOPMENT, RECIPE_OF_SIZE
from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    LearningRate,
    Model,
    Options,
    OutputFile,
    Rest,
)

Column = Annotated[str, Argument("COLUMN")]
NumberedColumn = Annotated[str, Argument("NAME|N")]

_SET_BY_SWEEP = {"--lr", "--seed", "--finetune-from-model", "--restore-file"}
"""Options of fairseq-train after ``--`` under which results would be reported as those of another setting."""


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning; a batch is the sequences of an update."""

    learning_rates: tuple[float, ...]
    batch_size: int
    weight_decay: float
    epochs: int


def for_size(architecture: str, published: Recipe, ours: Recipe) -> Recipe:
    """Return the published recipe for base and large, and our own for tiny and small."""
    _, size = ARCHITECTURES[architecture]
    return ours if RECIPE_OF_SIZE[size] == DEVELOPMENT else published


@dataclass(frozen=True, kw_only=True)
class FinetuningOptions(Options):
    """Options shared by all fine-tuning tasks.

    Attributes:
        model: checkpoint or bundle to start from, or an architecture, such as mae_lm_tiny, for random weights.
        data_bin: data-bin of the pretraining run (default: the bundle).
        ema: use the checkpoint's EMA weights (``--store-ema``).
        out: output directory.
        seeds: train with seeds 1 to N.
        learning_rates: learning rates to try (default: RoBERTa's, 1e-5 2e-5 3e-5).
        max_updates: stop after N updates, if the usual epochs are longer.
        jobs: number of parallel runs.
        threads: number of threads per run.
        extra: further options of fairseq-train, which override the recipe's.

    Raises:
        ValueError: if an option of fairseq-train contradicts the sweep.
    """

    model: Model
    data_bin: Directory | None = None
    ema: bool = False
    out: Directory
    seeds: Count = 5
    learning_rates: tuple[LearningRate, ...] | None = None
    max_updates: Count | None = None
    jobs: Count = 1
    threads: Count = 1
    extra: Rest = ()

    def __post_init__(self):
        super().__post_init__()
        if twice := _SET_BY_SWEEP & {word.partition("=")[0] for word in self.extra}:
            raise ValueError(f"{min(twice)} after -- contradicts the sweep's own; see --learning-rates, --seeds, MODEL")
        check_option_names(self.extra)

    @property
    def tokenizer(self) -> Path:
        """Directory of the tokenizer: the data-bin, or the bundle to start from."""
        return self.data_bin or self.model


@dataclass(frozen=True, kw_only=True)
class _TaskOptions(Options):
    """The task, whose position is before MODEL.

    Attributes:
        task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI.
    """

    task: Annotated[str, Argument("TASK", positional=True)]


@dataclass(frozen=True, kw_only=True)
class GlueOptions(FinetuningOptions, _TaskOptions):
    """Options of fine-tuning on GLUE.

    Attributes:
        glue_dir: local copy of GLUE, in the official or the hub's layout.
        from_mnli: start from a model fine-tuned on MNLI, as the papers do for MRPC, RTE and STS-B.
        skip_malformed: drop malformed rows, except from test sets.
    """

    glue_dir: Directory
    from_mnli: bool = False
    skip_malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions(FinetuningOptions):
    """Options of fine-tuning on the user's own files, see :mod:`~mae_lm_fairseq.text.tables`.

    Attributes:
        train: training file.
        dev: development file, which chooses the model.
        test: file to predict with the best model, and to evaluate if labelled.
        text: column of the text, or of the first text of a pair.
        text_pair: column of the second text of a pair.
        label: column of the label or score.
        regression: predict scores, even if all labels are integers.
        skip_malformed: drop malformed rows from training and development files.
    """

    train: File
    dev: File
    test: File | None = None
    text: Column
    text_pair: Column | None = None
    label: Column
    regression: bool = False
    skip_malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class SquadOptions(FinetuningOptions):
    """Options of fine-tuning on SQuAD.

    Attributes:
        train: training questions in SQuAD's JSON.
        dev: development questions in SQuAD's JSON.
        version_2: SQuAD 2.0, where questions may have no answer.
        skip_malformed: drop malformed questions, such as those whose answer is not where the file says.
        tokens_per_sample: maximum sequence length (default: 384, or the model's if that is smaller).
        doc_stride: tokens between the starts of two windows of a long context.
        learning_rates: learning rates to try (default: RoBERTa's, 1.5e-5; ours, 5e-4, for tiny and small).
    """

    train: File
    dev: File
    version_2: bool = False
    skip_malformed: bool = False
    tokens_per_sample: Count | None = None
    doc_stride: Count = 128


@dataclass(frozen=True, kw_only=True)
class TaggingOptions(FinetuningOptions):
    """Options of fine-tuning on labelled words, see :mod:`~mae_lm_fairseq.finetuning.tagging.files`.

    Attributes:
        train: training file.
        dev: development file, which chooses the model.
        test: file to label with the best model, and to evaluate if it is labelled.
        column: column of the labels: its name in CoNLL-U, such as UPOS; otherwise its number, from 1 (the last of the
            training file is -1).
        learning_rates: learning rates to try (default: BERT's, 2e-5 3e-5 5e-5; ours, 5e-4, for tiny and small).
    """

    train: File
    dev: File
    test: File | None = None
    column: NumberedColumn


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """Options of predictions.

    Attributes:
        model: bundle or checkpoint of a fine-tuned model.
        data_bin: for a checkpoint, data-bin/ in the ``--out`` of its fine-tuning; for SQuAD and words its
            ``--data-bin``.
        input: texts, words or questions.
        out: file to write; an existing one is replaced.
        text: column of the text (default: that of the training file).
        text_pair: column of the second text of a pair (default: that of the training file).
        column: column of the labels of words (default: that of the training file).
        skip_malformed: leave the predictions of rows with an empty text empty instead of stopping.
    """

    model: Model
    data_bin: Directory | None = None
    input: File
    out: OutputFile
    text: Column | None = None
    text_pair: Column | None = None
    column: NumberedColumn | None = None
    skip_malformed: bool = False

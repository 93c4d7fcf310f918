"""Options of fine-tuning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.training.keys import values_of_words
from mae_lm_fairseq.utils.command_line import (
    Argument,
    Count,
    Directory,
    File,
    LearningRate,
    Model,
    Options,
    Rest,
)

Column = Annotated[str, Argument("COLUMN")]
NumberedColumn = Annotated[str, Argument("NAME|N")]

_SET_BY_SWEEP = {
    # Results would be reported as those of another setting.
    "lr",
    "seed",
    "finetune-from-model",
    "restore-file",
    "user-dir",
    "arch",
    "task",
    "criterion",
    "train-file",
    "valid-file",
    "column",
    "tokens-per-sample",
    "doc-stride",
    "version-2",
    "num-classes",
    "regression-target",
    # Batches would be smaller than the option says, and the end of an epoch left out.
    "required-batch-size-multiple",
    # The checkpoint of a run would not be found after it.
    "save-dir",
    "checkpoint-suffix",
    "no-save",
    "no-last-checkpoints",
}
"""Options of fairseq-train that are refused after ``--``."""
_COUNTS = ("batch-size", "max-tokens", "update-freq", "distributed-world-size", "max-update")
"""Options of fairseq-train that decide on the number of updates or on their size."""


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
        ValueError: if an option of fairseq-train contradicts the sweep, or leaves its number of updates unknown.
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
        contradicting = _SET_BY_SWEEP & values_of_words(self.extra).keys()
        if contradicting:
            option = f"--{min(contradicting)}"
            raise ValueError(f"{option} after -- contradicts what the sweep decides on; see the options before --")
        for option in _COUNTS:
            value = self.further_option(option) or "1"
            if not value.isdecimal() or int(value) == 0:
                raise ValueError(f"--{option} {value} after -- must be one number of at least 1")

    def further_option(self, name: str) -> str | None:
        """Return the value of an option of fairseq-train after ``--``, given its first name without dashes, or None."""
        values = values_of_words(self.extra).get(name)
        return values[0] if values else None

    def further_count(self, name: str, default: int) -> int:
        """Return the number that an option of fairseq-train after ``--`` states, or a default."""
        return int(self.further_option(name) or default)

    @property
    def tokenizer(self) -> Path:
        """Directory of the tokenizer: the data-bin, or the bundle to start from."""
        return self.data_bin or self.model


@dataclass(frozen=True, kw_only=True)
class GlueOptions(FinetuningOptions):
    """Fine-tune on a task of GLUE, from a model to the number in the table: learning rates x seeds.

    Started again with the same directory, it resumes. It writes results.json, report.md, the predictions on the
    test sets in the format of the GLUE server, and model/, a bundle of the best run. Arguments after -- are passed
    to fairseq-train and override its options.

    The copy of GLUE has the official files (GLUE/RTE/train.tsv) or those of the Hugging Face hub
    (GLUE/rte/train.parquet, .jsonl or .json).

    Example:
        mae-lm finetune glue MNLI checkpoints/mae_lm/checkpoint_last.pt --glue-dir GLUE --data-bin data-bin --out mnli
        mae-lm finetune glue RTE mnli/model --from-mnli --glue-dir GLUE --out rte

    Attributes:
        task: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE or WNLI.
        glue_dir: local copy of GLUE, in the official or the hub's layout.
        from_mnli: start from a model fine-tuned on MNLI, as the papers do for MRPC, RTE and STS-B.
        skip_malformed: drop malformed rows, except from test sets.
    """

    task: Annotated[str, Argument("TASK", positional=True, is_first=True)]
    glue_dir: Directory
    from_mnli: bool = False
    skip_malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class LabelledFilesOptions(FinetuningOptions):
    """Options shared by the tasks of the user's own files.

    Attributes:
        train: training file.
        dev: development file, which chooses the model.
        test: file to predict with the best model, and to score if it is labelled.
        score_runs: score the test file with the model of every run, not with the best one alone.

    Raises:
        ValueError: if there is no test file to score.
    """

    train: File
    dev: File
    test: File | None = None
    score_runs: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.score_runs and self.test is None:
            raise ValueError("--score-runs needs a labelled --test file")


@dataclass(frozen=True, kw_only=True)
class ClassificationOptions(LabelledFilesOptions):
    """Fine-tune a classifier or regressor of texts, or of pairs of texts, on your own files: learning rates x seeds.

    Files end in .tsv (a tab between cells, no quoting, as in GLUE), .csv (quoted where needed) or .jsonl (one
    object per line), and name their columns. The labels are those of the training file. If they are numbers, not
    all of them integers, or with --regression, scores are predicted, and the metrics are Pearson and Spearman
    correlation. Otherwise the metrics are accuracy, which chooses the model, F1 (of the last of two labels in
    sorted order; macro for three or more) and Matthews correlation.

    Started again with the same directory, it resumes. It writes results.json, report.md and model/, the best model,
    which mae-lm predict takes. Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune classification checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin \\
            --out results/reviews --train reviews/train.tsv --dev reviews/dev.tsv --text sentence --label sentiment

    Attributes:
        text: column of the text, or of the first text of a pair.
        text_pair: column of the second text of a pair.
        label: column of the label or score.
        regression: predict scores, even if all labels are integers.
        skip_malformed: drop malformed rows from training and development files.
    """

    text: Column
    text_pair: Column | None = None
    label: Column
    regression: bool = False
    skip_malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class SquadOptions(FinetuningOptions):
    """Fine-tune on SQuAD 1.1 or 2.0, from a model to exact match and F1: learning rates x seeds.

    Started again with the same directory, it resumes. It writes results.json, report.md, and of the best run
    predictions.json in the format of the official script, na_prob.json (the probabilities of no answer), and
    model/, a bundle.

    Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune squad checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train-v1.1.json \\
            --dev dev-v1.1.json --out squad

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
class TaggingOptions(LabelledFilesOptions):
    """Fine-tune a model that labels words, such as part-of-speech tags or named entities: learning rates x seeds.

    Files are CoNLL-U, if their names end in .conllu (or .conllu.gz), or have one word per line: the word in the
    first column, its label in another, with tabs or white space between them, and empty lines between sentences.
    The metrics of entities (BIO, IOB1 or BIOES) are precision, recall and F1, over all types and by type. For other
    labels it is accuracy.

    Started again with the same directory, it resumes. It writes results.json, report.md, the development and test
    files with predicted labels in a new last column, and model/, the best model, which mae-lm predict takes.
    Arguments after -- are passed to fairseq-train and override its options.

    Example:
        mae-lm finetune tagging checkpoints/mae_lm/checkpoint_last.pt --data-bin data-bin --train train.conll \\
            --dev dev.conll --column 2 --out results/entities

    Attributes:
        column: column of the labels: its name in CoNLL-U, such as UPOS; otherwise its number, from 1 (the last of the
            training file is -1).
        learning_rates: learning rates to try (default: BERT's, 2e-5 3e-5 5e-5; ours, 5e-4, for tiny and small).
    """

    column: NumberedColumn

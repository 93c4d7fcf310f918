"""Predict with a fine-tuned model: labels or scores for the rows of a file, labels of words, or answers to questions.

MODEL is the model/ in the --out of mae-lm finetune, another bundle, or a checkpoint with --data-bin. After fine-tuning
on GLUE or on your own files the input is .tsv, .csv or .jsonl with the columns of the training files, or .txt with one
text per line; the output has the same rows with the columns "prediction" and, for each label, "probability_LABEL", in
the format of its ending. After fine-tuning on SQuAD the input is SQuAD's JSON, and the output is the JSON of answers
that the official scripts read. After token classification the input is CoNLL-U or columns of words, and the output is
the same file with the labels in a new last column. A .txt file is text unless --column is given: for each of its lines,
the output has one row per word.

Example:
    mae-lm predict results/reviews/model --input new.csv --out predicted.csv
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mae_lm_fairseq.finetuning.options import Column, NumberedColumn
from mae_lm_fairseq.finetuning.sentences.prediction import predict_file
from mae_lm_fairseq.trained.answers import answer_file
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.tags import label_file
from mae_lm_fairseq.utils.command_line import Directory, File, Model, Options as Base, OutputFile
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.heads import ANSWERS, SENTENCES, WORDS


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """A fine-tuned model, and the file to predict.

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


class Predictor(NamedTuple):
    """How models with a kind of head predict.

    Attributes:
        write: writes the predictions of a model for a file to another file.
        options: the options that other kinds do not take.
    """

    write: Callable[..., None]
    options: tuple[str, ...] = ()


PREDICTORS = {
    SENTENCES.task: Predictor(predict_file, ("text", "text_pair", "skip_malformed")),
    WORDS.task: Predictor(label_file, ("column",)),
    ANSWERS.task: Predictor(answer_file),
}
"""The predictors by the task that trains the head."""


def main(options: Options) -> None:
    """Run the command."""
    if options.out.resolve() == options.input.resolve():
        raise UserError(f"--out {options.out} is the input; choose another file")
    model = open_finetuned(options.model, options.data_bin)
    # Imports of a sentence classifier may not know their task.
    task = model.about.task if model.about.task in PREDICTORS else SENTENCES.task
    predictor = PREDICTORS[task]
    for other in PREDICTORS.values():
        for name in other.options:
            if getattr(options, name) and name not in predictor.options:
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} does not apply to a model that was fine-tuned on {task}; leave it out")
    own_options = {name: getattr(options, name) for name in predictor.options}
    predictor.write(model, options.input, options.out, **own_options)
    print(f"predictions: {options.out}")

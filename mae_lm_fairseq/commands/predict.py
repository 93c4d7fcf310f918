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

from mae_lm_fairseq.finetuning.options import PredictOptions as Options
from mae_lm_fairseq.finetuning.sentences.prediction import predict_file
from mae_lm_fairseq.trained.answers import answer_file
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.tags import label_file
from mae_lm_fairseq.utils.errors import UserError


def main(options: Options) -> None:
    """Run the command."""
    if options.out.resolve() == options.input.resolve():
        raise UserError(f"--out {options.out} is the input; choose another file")
    model = open_finetuned(options.model, options.data_bin)
    task = model.about.task
    answers = task == "question_answering"
    labels_words = task == "token_classification"
    is_of_sentences = options.text or options.text_pair or options.skip_malformed
    if is_of_sentences and (answers or labels_words):
        does = "answers questions" if answers else "labels words"
        raise UserError(f"--text, --text-pair and --skip-malformed are for sentence tasks; this model {does}")
    if options.column and not labels_words:
        raise UserError("--column is for models that label words; leave it out")
    if answers:
        answer_file(model, options.input, options.out)
    elif labels_words:
        label_file(model, options.input, options.out, options.column)
    else:
        predict_file(model, options)
    print(f"predictions: {options.out}")

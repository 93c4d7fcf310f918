"""Exact match and F1, bit for bit as in SQuAD's evaluation scripts (Rajpurkar et al., 2016 and 2018).

``python -m mae_lm_fairseq.finetuning.squad.metrics DATASET PREDICTIONS`` prints the JSON of the script for SQuAD 1.1,
or of the one for 2.0 if the dataset marks questions as answerable or not.
"""

import argparse
import json
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.squad.questions import Paragraph, read_json
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program

GoldAnswers = list[tuple[str, list[str]]]
"""(id, answers) of each question, in dataset order; an unanswerable question has no answers."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(answer: str) -> str:
    """Lower-case an answer, remove ASCII punctuation and English articles, and collapse whitespace."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> bool:
    """Return whether two answers are equal after normalisation."""
    return normalise(prediction) == normalise(answer)


def f1(prediction: str, answer: str) -> float:
    """Return the F1 of the words of two answers, as multisets; 0 if either has no words."""
    predicted, expected = normalise(prediction).split(), normalise(answer).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def f1_or_no_answer(prediction: str, answer: str) -> float:
    """Return :func:`f1`, or 1 if neither answer has words, as in SQuAD 2.0, where "no answer" is an answer."""
    if not normalise(prediction) and not normalise(answer):
        return 1.0
    return f1(prediction, answer)


def evaluate_1_1(gold: GoldAnswers, predictions: dict[str, str]) -> dict[str, float]:
    """Compute the metrics of the SQuAD 1.1 script.

    Args:
        gold: the questions.
        predictions: the answer to each question, by id; a missing prediction scores 0.

    Returns:
        ``exact_match`` and ``f1`` in per cent.
    """

    def mean(metric: Callable[[str, str], float]) -> float:
        answered = ((predictions[name], answers) for name, answers in gold if name in predictions)
        return 100.0 * sum(_best(metric, prediction, answers) for prediction, answers in answered) / len(gold)

    return {"exact_match": mean(exact_match), "f1": mean(f1)}


def evaluate_2_0(
    gold: GoldAnswers,
    predictions: dict[str, str],
    na_probs: dict[str, float] | None = None,
    na_prob_thresh: float = 1.0,
) -> dict[str, float | int]:
    """Compute the metrics of the SQuAD 2.0 script.

    Args:
        gold: the questions.
        predictions: the answer to each question, by id; empty for "no answer".
        na_probs: the probability that a question has no answer, by id. If given, the result includes the best scores
            over all thresholds, and these thresholds.
        na_prob_thresh: questions with a higher probability count as answered with "no answer".

    Returns:
        ``exact`` and ``f1`` in per cent and ``total``, the number of questions; the same with the prefixes ``HasAns_``
        and ``NoAns_`` for the answerable and the unanswerable questions, if any; with ``na_probs``, also
        ``best_exact``, ``best_exact_thresh``, ``best_f1`` and ``best_f1_thresh``.

    Raises:
        UserError: if a question has no prediction or no probability.
    """
    questions = dict(gold)
    _require_all(questions, predictions, "prediction")
    scores = {
        "exact": _scores_2_0(exact_match, questions, predictions),
        "f1": _scores_2_0(f1_or_no_answer, questions, predictions),
    }
    at_threshold = scores
    if na_probs is not None:
        _require_all(questions, na_probs, "probability of no answer")
        at_threshold = {
            metric: {
                name: float(not questions[name]) if na_probs[name] > na_prob_thresh else score
                for name, score in of_metric.items()
            }
            for metric, of_metric in scores.items()
        }
    result = _means(at_threshold, list(questions), "")
    result |= _means(at_threshold, [name for name, answers in questions.items() if answers], "HasAns_")
    result |= _means(at_threshold, [name for name, answers in questions.items() if not answers], "NoAns_")
    if na_probs is not None:
        for metric, of_metric in scores.items():
            best, threshold = best_threshold(questions, predictions, of_metric, na_probs)
            result |= {f"best_{metric}": best, f"best_{metric}_thresh": threshold}
    return result


def best_threshold(
    questions: dict[str, list[str]], predictions: dict[str, str], scores: dict[str, float], na_probs: dict[str, float]
) -> tuple[float, float]:
    """Return the best mean score in per cent, and its threshold.

    A question counts as answered if its no-answer probability does not exceed the threshold. The search starts with no
    question answered and adds them in order of this probability. The first of equally good thresholds is returned, or 0
    if answering never beats answering nothing.
    """
    score = best = sum(not answers for answers in questions.values())
    threshold = 0.0
    for name in sorted((name for name in na_probs if name in scores), key=na_probs.get):
        if questions[name]:
            score += scores[name]
        elif predictions[name]:
            score -= 1
        if score > best:
            best, threshold = score, na_probs[name]
    return 100.0 * best / len(scores), threshold


def _best(metric: Callable[[str, str], float], prediction: str, answers: list[str]) -> float:
    return max(metric(prediction, answer) for answer in answers)


def _scores_2_0(metric: Callable, questions: dict[str, list[str]], predictions: dict[str, str]) -> dict[str, float]:
    """Return the score of each question; answers that are empty after normalisation are ignored."""
    return {
        name: _best(metric, predictions[name], [answer for answer in answers if normalise(answer)] or [""])
        for name, answers in questions.items()
    }


def _means(scores: dict[str, dict[str, float]], names: list[str], prefix: str) -> dict[str, float | int]:
    if not names:
        return {}
    means = {
        f"{prefix}{metric}": 100.0 * sum(of_metric[name] for name in names) / len(names)
        for metric, of_metric in scores.items()
    }
    return {**means, f"{prefix}total": len(names)}


def _require_all(questions: dict[str, list[str]], values: dict, kind: str):
    missing = [name for name in questions if name not in values]
    if missing:
        raise UserError(f"no {kind} for {len(missing)} of {len(questions)} questions, such as {missing[0]}")


def gold_answers(paragraphs: Sequence[Paragraph]) -> GoldAnswers:
    """Return the answers to the questions of paragraphs."""
    questions = [question for paragraph in paragraphs for question in paragraph.questions]
    return [(question.id, [answer.text for answer in question.answers]) for question in questions]


def read_gold(path: str | Path) -> tuple[GoldAnswers, bool]:
    """Read the questions of a dataset in SQuAD's JSON, and whether it is version 2.0.

    Raises:
        UserError: if the file cannot be read or is not in SQuAD's format.
    """
    content = read_json(path)
    try:
        questions = [
            question
            for article in content["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        gold = [(str(question["id"]), [_text(answer) for answer in question["answers"]]) for question in questions]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not a dataset in SQuAD's format ({type(error).__name__}: {error})") from None
    if not gold:
        raise UserError(f"{path}: has no questions")
    version_2 = any("is_impossible" in question for question in questions)
    unanswerable = [name for name, answers in gold if not answers]
    if unanswerable and not version_2:
        raise UserError(f"{path}: question {unanswerable[0]} has no answers but is not marked as unanswerable")
    return gold, version_2


def _text(answer: dict) -> str:
    if not isinstance(answer["text"], str):
        raise TypeError("the text of an answer is not a string")
    return answer["text"]


def _read_by_id(path: str | Path, is_right: Callable[[Any], bool], what: str) -> dict:
    """Read a JSON object that maps ids to values of one type."""
    values = read_json(path)
    if not isinstance(values, dict) or not all(map(is_right, values.values())):
        raise UserError(f"{path}: must be a JSON object that maps each question's id to {what}")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < float("inf")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", metavar="DATASET", help="questions in the JSON format of SQuAD 1.1 or 2.0")
    parser.add_argument(
        "predictions", metavar="PREDICTIONS", help="JSON object that maps each question's id to an answer"
    )
    parser.add_argument(
        "--na-prob-file",
        "-n",
        metavar="FILE",
        help="JSON object that maps each question's id to the probability that it has no answer",
    )
    parser.add_argument(
        "--na-prob-thresh",
        "-t",
        type=float,
        default=1.0,
        metavar="P",
        help="questions with a higher probability than this have no answer (default: %(default)s)",
    )
    return parser


def main(arguments: list[str]):
    """Run the command line."""
    options = parser().parse_args(arguments)
    gold, version_2 = read_gold(options.dataset)
    predictions = _read_by_id(options.predictions, lambda value: isinstance(value, str), "an answer")
    if not version_2:
        if options.na_prob_file:
            raise UserError(f"--na-prob-file is for SQuAD 2.0; {options.dataset} is a dataset of 1.1")
        missing = sum(name not in predictions for name, _ in gold)
        if missing:
            print(f"{missing} of {len(gold)} questions have no prediction and score 0", file=sys.stderr)
        print(json.dumps(evaluate_1_1(gold, predictions)))
        return
    na_probs = _read_by_id(options.na_prob_file, _is_number, "a number") if options.na_prob_file else None
    print(json.dumps(evaluate_2_0(gold, predictions, na_probs, options.na_prob_thresh), indent=2))


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])

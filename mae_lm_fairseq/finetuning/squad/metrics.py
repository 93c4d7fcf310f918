"""Exact match and F1, bit for bit as in SQuAD's evaluation scripts (Rajpurkar et al., 2016 and 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from mae_lm_fairseq.text.squad import Paragraph

GoldAnswers = dict[str, list[str]]
"""Answers to each question by id, in dataset order; an unanswerable question has none."""

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
    predicted = normalise(prediction).split()
    expected = normalise(answer).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if common == 0:
        return 0.0
    precision = common / len(predicted)
    recall = common / len(expected)
    return 2 * precision * recall / (precision + recall)


def f1_or_no_answer(prediction: str, answer: str) -> float:
    """Return :func:`f1`, or 1 if neither answer has words, as in SQuAD 2.0, where "no answer" is an answer."""
    if not normalise(prediction) and not normalise(answer):
        return 1.0
    return f1(prediction, answer)


def evaluate_1_1(gold: GoldAnswers, predictions: dict[str, str]) -> dict[str, float]:
    """Return the metrics of the SQuAD 1.1 script, ``exact_match`` and ``f1`` in per cent.

    Predictions are by id; a missing one scores 0.
    """

    def mean(metric: Callable[[str, str], float]) -> float:
        scores = []
        for name, answers in gold.items():
            if name in predictions:
                scores.append(max(metric(predictions[name], answer) for answer in answers))
        return 100.0 * sum(scores) / len(gold)

    return {"exact_match": mean(exact_match), "f1": mean(f1)}


def evaluate_2_0(gold: GoldAnswers, predictions: dict[str, str]) -> dict[str, float | int]:
    """Return the metrics of the SQuAD 2.0 script.

    Args:
        predictions: the answer to each question, by id; empty for "no answer".

    Returns:
        ``exact`` and ``f1`` in per cent and ``total``, the number of questions; the same with the prefixes ``HasAns_``
        and ``NoAns_`` for the answerable and the unanswerable questions, if any.
    """
    answerable = [name for name, answers in gold.items() if answers]
    unanswerable = [name for name, answers in gold.items() if not answers]
    scores = _scores(gold, predictions)
    result = {}
    for prefix, names in {"": [*gold], "HasAns_": answerable, "NoAns_": unanswerable}.items():
        if not names:
            continue
        for metric, score_of in scores.items():
            total = sum(score_of[name] for name in names)
            result[f"{prefix}{metric}"] = 100.0 * total / len(names)
        result[f"{prefix}total"] = len(names)
    return result


def best_2_0(gold: GoldAnswers, predictions: dict[str, str], na_probs: dict[str, float]) -> dict[str, float]:
    """Return the best scores of the SQuAD 2.0 script over all thresholds for no answer.

    Args:
        na_probs: the probability that each question has no answer, by id.

    Returns:
        ``best_exact`` and ``best_f1`` in per cent, and their thresholds with the suffix ``_thresh``.
    """
    result = {}
    for metric, scores in _scores(gold, predictions).items():
        best, threshold = best_threshold(gold, predictions, scores, na_probs)
        result |= {f"best_{metric}": best, f"best_{metric}_thresh": threshold}
    return result


def _scores(gold: GoldAnswers, predictions: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return the score of each question by the best of its answers, by metric and id."""
    scores = {"exact": {}, "f1": {}}
    for name, answers in gold.items():
        prediction = predictions[name]
        accepted = [*filter(normalise, answers)] or [""]
        scores["exact"][name] = max(exact_match(prediction, answer) for answer in accepted)
        scores["f1"][name] = max(f1_or_no_answer(prediction, answer) for answer in accepted)
    return scores


def best_threshold(
    gold: GoldAnswers, predictions: dict[str, str], scores: dict[str, float], na_probs: dict[str, float]
) -> tuple[float, float]:
    """Return the best mean score in per cent, and its threshold.

    A question counts as answered if its no-answer probability does not exceed the threshold. The search starts with no
    question answered and adds them in order of this probability. The first of equally good thresholds is returned, or 0
    if answering never beats answering nothing.
    """
    score = sum(not answers for answers in gold.values())
    best = score
    threshold = 0.0
    for name in sorted(na_probs, key=na_probs.get):
        if gold[name]:
            score += scores[name]
        elif predictions[name]:
            score -= 1
        if score > best:
            best = score
            threshold = na_probs[name]
    return 100.0 * best / len(scores), threshold


def gold_answers(paragraphs: Sequence[Paragraph]) -> GoldAnswers:
    """Return the answers to the questions of paragraphs."""
    gold = {}
    for paragraph in paragraphs:
        for question in paragraph.questions:
            gold[question.id] = [answer.text for answer in question.answers]
    return gold

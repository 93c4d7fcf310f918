import pytest
from hypothesis import given, settings, strategies as st
from torchmetrics.functional.text import squad

from mae_lm_fairseq.finetuning.squad.metrics import best_2_0, evaluate_1_1, evaluate_2_0, f1, f1_or_no_answer, normalise

GOLD = {
    "article": ["the Eiffel Tower", "Eiffel"],
    "punctuation": ["U.S.A."],
    "half": ["5½ sacks in 9 starts"],
    "japanese": ["東京 タワー"],
    "accent": ["l'Été à la mer"],
    "empty": ["1776"],
    "only articles": ["The"],
    "right none": [],
    "wrong some": [],
    "right article": [],
}
PREDICTIONS = {
    "article": "Eiffel  tower!",
    "punctuation": "USA",
    "half": "the 5½ sacks",
    "japanese": "東京",
    "accent": "été à la mer",
    "empty": "",
    "only articles": "",
    "right none": "",
    "wrong some": "Paris",
    "right article": "an",
}
NA_PROBS = dict(zip(PREDICTIONS, (0.1, 0.2, 0.3, 0.6, 0.05, 0.9, 0.8, 0.7, 0.4, 0.75), strict=True))

# Output of the official SQuAD evaluation scripts, 1.1 (first seven questions) and 2.0, for these
# answers; the best scores are those for NA_PROBS.
OFFICIAL_1_1 = {"exact_match": 42.857142857142854, "f1": 56.97278911564626}
OFFICIAL_2_0 = {
    "exact": 50.0,
    "f1": 69.88095238095238,
    "total": 10,
    "HasAns_exact": 42.857142857142854,
    "HasAns_f1": 71.25850340136054,
    "HasAns_total": 7,
    "NoAns_exact": 66.66666666666667,
    "NoAns_f1": 66.66666666666667,
    "NoAns_total": 3,
}
OFFICIAL_BEST = {
    "best_exact": 50.0,
    "best_exact_thresh": 0.2,
    "best_f1": 63.21428571428571,
    "best_f1_thresh": 0.3,
}

words = st.sampled_from(["the", "An", "a", "cat", "Cat.", "l'été", "½", "日本", "İ", "--", "1,000", "\u00a0", ""])
answers = st.lists(words, max_size=4).map(" ".join)


def test_metrics_equal_the_official_script_1_1():
    assert evaluate_1_1(dict([*GOLD.items()][:7]), PREDICTIONS) == OFFICIAL_1_1


def test_metrics_equal_the_official_script_2_0():
    assert evaluate_2_0(GOLD, PREDICTIONS) == OFFICIAL_2_0
    assert best_2_0(GOLD, PREDICTIONS, NA_PROBS) == OFFICIAL_BEST


def test_normalisation():
    assert normalise(" The  cat's\tA-team, an\u00a0été — “½”! ") == "cats ateam été — “½”"
    assert normalise("Theatre a.n. other") == "theatre other"  # without its dots, "a.n." is the article "an"


def test_empty_answers_match_only_in_squad_2_0():
    assert (f1("", "the"), f1_or_no_answer("", "the")) == (0.0, 1.0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(answers, st.lists(answers, min_size=1, max_size=3)), min_size=1, max_size=6))
def test_random_answers_score_as_in_torchmetrics(pairs):
    """torchmetrics scores answers without words as SQuAD 2.0 does, and computes in float32."""
    predictions = {str(index): prediction for index, (prediction, _) in enumerate(pairs)}
    gold = {str(index): texts for index, (_, texts) in enumerate(pairs)}
    theirs = squad(
        [{"id": name, "prediction_text": text} for name, text in predictions.items()],
        [{"id": name, "answers": {"text": texts, "answer_start": [0] * len(texts)}} for name, texts in gold.items()],
    )
    ours = evaluate_1_1(gold, predictions)
    assert ours["exact_match"] == pytest.approx(theirs["exact_match"].item(), rel=1e-6)
    best = [max(f1_or_no_answer(prediction, text) for text in texts) for prediction, texts in pairs]
    assert 100 * sum(best) / len(best) == pytest.approx(theirs["f1"].item(), rel=1e-6)


def unanswered_above(threshold, predictions, na_probs):
    return {name: "" if na_probs[name] > threshold else answer for name, answer in predictions.items()}


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.integers(1, 99).map(lambda percent: percent / 100)),
        min_size=1,
        max_size=8,
        unique_by=lambda question: question[2],
    )
)
def test_the_best_threshold_is_the_best_of_all(questions):
    gold = {str(index): ["yes"] if answerable else [] for index, (answerable, _, _) in enumerate(questions)}
    predictions = {str(index): "yes" if right else "no" for index, (_, right, _) in enumerate(questions)}
    na_probs = {str(index): probability for index, (_, _, probability) in enumerate(questions)}
    best = best_2_0(gold, predictions, na_probs)
    at = {
        threshold: evaluate_2_0(gold, unanswered_above(threshold, predictions, na_probs))["exact"]
        for threshold in (0.0, *na_probs.values())
    }
    assert best["best_exact"] == pytest.approx(max(at.values()), rel=1e-12)
    assert at[best["best_exact_thresh"]] == pytest.approx(best["best_exact"], rel=1e-12)

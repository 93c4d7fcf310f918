"""Empty answers to questions that have none: leaving such a question unanswered costs nothing at any threshold."""

from mae_lm_fairseq.finetuning.squad.metrics import best_2_0, evaluate_1_1, evaluate_2_0


def test_an_empty_answer_to_an_unanswerable_question_stays_right():
    """The question without an answer is the first that the search for the threshold adds."""
    gold, predictions = {"none": [], "some": ["x"]}, {"none": "", "some": "x"}
    scores = evaluate_2_0(gold, predictions)
    assert (scores["exact"], scores["NoAns_exact"], scores["HasAns_exact"]) == (100.0, 100.0, 100.0)
    best = best_2_0(gold, predictions, {"none": 0.1, "some": 0.2})
    assert (best["best_exact"], best["best_exact_thresh"]) == (100.0, 0.2)
    assert (best["best_f1"], best["best_f1_thresh"]) == (100.0, 0.2)


def test_an_empty_answer_to_an_answerable_question_is_wrong():
    gold, predictions = {"a": ["x"], "b": ["y"]}, {"a": "", "b": "y"}
    assert evaluate_1_1(gold, predictions) == {"exact_match": 50.0, "f1": 50.0}
    scores = evaluate_2_0(gold, predictions)
    best = best_2_0(gold, predictions, {"a": 0.1, "b": 0.2})
    assert (scores["exact"], scores["f1"], best["best_exact"]) == (50.0, 50.0, 50.0)

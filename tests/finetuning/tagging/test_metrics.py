"""Metrics of labelled words, compared with seqeval."""

import random
import warnings

import pytest
import seqeval.metrics

from mae_lm_fairseq.finetuning.tagging.metrics import in_per_cent, ratios, with_intervals
from mae_lm_fairseq.text.word_labels import BIO, LabelSet, valid_bio

KINDS = ("person", "creative-work", "x")


def random_labels(generator, length):
    """Return labels in BIO; about half of the sequences are valid."""
    options = ["O", "O", *(f"{prefix}-{kind}" for prefix in "BI" for kind in KINDS)]
    labels = generator.choices(options, k=length)
    return valid_bio(labels) if generator.random() < 0.5 else labels


def test_entity_metrics_are_those_of_seqeval():
    generator = random.Random(1)
    names = LabelSet(tuple(f"B-{kind}" for kind in KINDS), BIO)
    invalid = 0
    for _ in range(1000):
        true = [random_labels(generator, generator.randint(1, 12)) for _ in range(generator.randint(1, 3))]
        predicted = []
        for labels in true:  # partly right, as those of a model are
            others = random_labels(generator, len(labels))
            predicted.append([generator.choices(pair, (7, 3))[0] for pair in zip(labels, others, strict=True)])
        invalid += any(valid_bio(labels) != labels for labels in (*true, *predicted))
        metrics = in_per_cent(ratios(names, predicted, true))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of types that do not occur
            assert metrics["accuracy"] == pytest.approx(100 * seqeval.metrics.accuracy_score(true, predicted))
            report = seqeval.metrics.classification_report(true, predicted, output_dict=True)
        for prefix, kind in {"": "micro avg", **{f"{kind}: ": kind for kind in KINDS}}.items():
            for metric in ("precision", "recall", "f1"):
                expected = report.get(kind, {}).get("f1-score" if metric == "f1" else metric, 0)
                assert metrics[prefix + metric] == pytest.approx(100 * expected), (true, predicted)
    assert 200 < invalid < 1000


def test_accuracy_leaves_out_words_without_a_label():
    found = ratios(LabelSet(("A", "B"), None), [["A", "B"], ["B"]], [["A", None], ["A"]])
    assert in_per_cent(found) == {"accuracy": 50.0}


def test_entities_leave_out_words_without_a_label():
    names = LabelSet(("B-x", "I-x", "O"), BIO)
    predicted = [["B-x", "O", "B-x"], ["B-x", "I-x", "O"]]
    found = in_per_cent(ratios(names, predicted, [["B-x", "O", None], ["O", None, "O"]]))
    assert found["precision"] == found["recall"] == found["f1"] == found["x: f1"] == 100
    found = in_per_cent(ratios(names, predicted, [["B-x", "O", None], ["B-x", "O", "O"]]))
    assert (found["precision"], found["recall"]) == (50, 50)


def test_intervals_contain_the_value_and_narrow_with_more_sentences():
    names = LabelSet(("B-x",), BIO)
    predicted, true = [["B-x", "O"], ["O", "O"], ["B-x", "B-x"]], [["B-x", "O"], ["B-x", "O"], ["B-x", "O"]]
    few, many = (with_intervals(ratios(names, predicted * times, true * times)) for times in (5, 100))
    for name, metric in few.items():
        assert metric["low"] <= metric["value"] <= metric["high"]
        assert many[name]["value"] == pytest.approx(metric["value"])
        assert many[name]["high"] - many[name]["low"] < metric["high"] - metric["low"]

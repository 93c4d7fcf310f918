"""Minimal pairs: BLiMP's and Zorro's layouts, scores of sentences, accuracies and their intervals."""

import json
import math

import numpy as np
import pytest
import torch

from mae_lm_fairseq.measures.minimal_pairs import (
    TIE,
    Pair,
    Paradigm,
    accuracies,
    negative_lengths,
    read_paradigms,
    unigram_log_likelihoods,
)
from mae_lm_fairseq.trained.masked_prediction import NEVER_MASKED, Words, pseudo_log_likelihoods
from mae_lm_fairseq.utils.errors import UserError

ROW = {"UID": "wh_island", "field": "syntax", "sentence_good": "Good.", "sentence_bad": "Bad.", "pairID": "0"}


def write_blimp(directory, *rows, name="file"):
    directory.joinpath(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_blimp(tmp_path):
    write_blimp(tmp_path, ROW, {**ROW, "sentence_good": "Fine."})
    write_blimp(tmp_path, {**ROW, "UID": "npi", "field": "a/b"}, name="z")
    assert read_paradigms(tmp_path) == [
        Paradigm("npi", "a_b", [Pair("Good.", "Bad.")]),
        Paradigm("wh_island", "syntax", [Pair("Good.", "Bad."), Pair("Fine.", "Bad.")]),
    ]


def test_zorro_has_the_ungrammatical_sentence_first(tmp_path):
    (tmp_path / "agreement-across_1_adjective.txt").write_text("bad one .\ngood one .\nbad two .\ngood two .\n")
    (tmp_path / "LICENSE").write_text("MIT")
    [paradigm] = read_paradigms(tmp_path)
    assert paradigm[:2] == ("agreement-across_1_adjective", "agreement")
    assert paradigm.pairs == [Pair("good one .", "bad one ."), Pair("good two .", "bad two .")]


def test_limit_is_of_each_file_and_evenly_spaced(tmp_path):
    write_blimp(tmp_path, *({**ROW, "sentence_good": str(number)} for number in range(5)))
    write_blimp(tmp_path, *[{**ROW, "UID": "b"}] * 2, name="b")
    few, many = read_paradigms(tmp_path, limit=3)
    assert len(few.pairs) == 2
    assert [pair.good for pair in many.pairs] == ["0", "1", "3"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "UID": "another"}), "line 3 .*another"),
        ("a.jsonl", json.dumps({name: ROW[name] for name in ROW if name != "field"}), "line 1 "),
        ("a.jsonl", json.dumps(ROW) + "\n" + json.dumps({**ROW, "sentence_bad": " "}), "line 2 "),
        ("a.jsonl", json.dumps({**ROW, "sentence_good": None}), "line 1"),
        ("a.txt", "one\ntwo\nthree\n", "line 4"),
        ("a.txt", "bad one\n\nbad two\ngood two\n\ngood three\n", "line 2"),
        ("a.txt", f"{json.dumps(ROW)}\n" * 2, "is JSON"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_line(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=problem):
        read_paradigms(tmp_path)
    (tmp_path / ("b.txt" if name == "a.jsonl" else "b.jsonl")).write_text("bad\ngood\n")
    with pytest.raises(UserError, match="--pairs"):  # of two layouts
        read_paradigms(tmp_path)


class Constant:
    """A model for which all tokens are equally likely."""

    pad, mask = 1, 29

    def __call__(self, tokens, is_predicted):
        return torch.full((int(is_predicted.sum()), 30), 0.3)


def sentence(length: int, seed: int) -> Words:
    ids = np.random.default_rng(seed).integers(4, 29, length)
    return Words(np.array([0, *ids, 2]), np.array([NEVER_MASKED, *range(length), NEVER_MASKED]))


def test_constant_logits_give_the_length_baseline():
    """The baseline is computed here from the lengths alone."""
    lengths = np.random.default_rng(1).integers(3, 9, (40, 2))
    sentences = [sentence(length, seed) for seed, length in enumerate(lengths.reshape(-1).tolist())]
    good, bad = lengths.T
    expected = ((good < bad) + 0.5 * (good == bad)).mean()
    paradigm = Paradigm("a", "x", [Pair("", "")] * len(lengths))
    each_token = pseudo_log_likelihoods(Constant(), sentences)
    each_word = pseudo_log_likelihoods(Constant(), sentences, mask_words=True)
    for scores in (each_token, each_word, negative_lengths(sentences)):
        overall = accuracies([paradigm], scores.reshape(-1, 2))["overall"]
        assert (overall["accuracy"], overall["ties"]) == (expected, (good == bad).sum())


def test_unigram_log_likelihoods():
    text = Words(np.array([0, 5, 6, 5, 2]), np.array([NEVER_MASKED, 0, 1, 2, NEVER_MASKED]))
    [found] = unigram_log_likelihoods([text], {5: 7, 9: 2})
    assert math.isclose(found, 2 * math.log(8 / 12) + math.log(1 / 12))


def paradigm(name, field, count):
    return Paradigm(name, field, [Pair("good", "bad")] * count)


def test_ties_count_one_half():
    scores = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, TIE / 2], [TIE * 2, 0.0]])
    found = accuracies([paradigm("a", "x", 5)], scores)["overall"]
    assert (found["accuracy"], found["pairs"], found["ties"]) == (3 / 5, 5, 2)


def test_paradigms_count_the_same():
    paradigms = [paradigm("a", "x", 1), paradigm("b", "y", 3), paradigm("c", "y", 2)]
    scores = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [0, 0], [0, 0]], dtype=float)
    found = accuracies(paradigms, scores)
    of_paradigms, of_fields = ([row["accuracy"] for row in found[kind].values()] for kind in ("paradigms", "fields"))
    assert of_paradigms == pytest.approx([1, 1 / 3, 1 / 2])
    assert of_fields == pytest.approx([1, 5 / 12])
    assert found["overall"]["accuracy"] == pytest.approx(11 / 18)
    assert (found["fields"]["y"]["pairs"], found["fields"]["y"]["ties"]) == (5, 2)


def test_accuracies_by_phenomenon(tmp_path):
    """BLiMP's files name it; Zorro's and those of others may not, and have no such accuracies."""
    ellipsis, island = {"linguistics_term": "ellipsis"}, {"linguistics_term": "island_effects"}
    for name, term in {"a": island, "b": ellipsis, "c": island, "d": {}}.items():
        write_blimp(tmp_path, {**ROW, "UID": name, **term}, name=name)
    paradigms = read_paradigms(tmp_path)
    scores = np.array([[1, 0], [0, 0], [0, 1], [1, 0]], dtype=float)
    phenomena = accuracies(paradigms, scores)["phenomena"]
    assert {name: row["accuracy"] for name, row in phenomena.items()} == {"island_effects": 0.5, "ellipsis": 0.5}
    assert {name: row["pairs"] for name, row in phenomena.items()} == {"island_effects": 2, "ellipsis": 1}
    assert phenomena["ellipsis"]["ties"] == 1
    assert "phenomena" not in accuracies(paradigms[3:], scores[3:])


def test_intervals_are_those_of_resampled_pairs():
    """The standard error of a paradigm's accuracy is the binomial one."""
    rows = np.random.default_rng(0).random((2, 400)) < 0.7
    scores = np.stack([rows.reshape(-1), ~rows.reshape(-1)], 1).astype(float)
    found = accuracies([paradigm("a", "x", 400), paradigm("b", "x", 400)], scores)
    for row, count in ((found["paradigms"]["a"], 400), (found["overall"], 800)):
        error = (row["accuracy"] * (1 - row["accuracy"]) / count) ** 0.5
        assert row["low"] < row["accuracy"] < row["high"]
        assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert accuracies([paradigm("a", "x", 400), paradigm("b", "x", 400)], scores) == found

"""Labels of entities, and the labels that a model learns."""

import itertools

import pytest

from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.text.word_labels import (
    BIO,
    Entity,
    LabelSet,
    entities,
    learn_labels,
    scheme_of,
    valid_bio,
)
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("names", "scheme"),
    [("O B-x I-x", BIO), ("B-x E-x I-x O S-x", BIO), ("O", None), ("B-x I-x", BIO), ("NOUN O B-x", None), ("", None)],
)
def test_scheme_of_labels(names, scheme):
    assert scheme_of(names.split()) == scheme


def written(path, *sentences):
    text = "\n".join("".join(f"w {label}\n" for label in sentence.split()) for sentence in sentences)
    path.write_text(text)
    return read_words(path, "2")


@pytest.mark.parametrize(
    "labels",
    [
        "B-x O B-x I-x I-x B-x B-y-z O",
        "S-x O B-x I-x E-x S-x S-y-z O",
        "I-x O I-x I-x I-x B-x I-y-z O",
        "U-x O B-x I-x L-x U-x U-y-z O",
        "W-x O B-x M-x E-x W-x W-y-z O",
    ],
    ids=["BIO", "BIOES", "IOB1", "BILOU", "BMEWO"],
)
def test_entities_are_read_and_written_in_bio(labels):
    expected = [("x", 0, 1), ("x", 2, 5), ("x", 5, 6), ("y-z", 6, 7)]
    assert entities(labels.split()) == [Entity(*entity) for entity in expected]
    assert scheme_of(labels.split()) == BIO
    assert valid_bio(labels.split()) == ["B-x", "O", "B-x", "I-x", "I-x", "B-x", "B-y-z", "O"]


def test_every_set_of_entities_survives():
    for labels in itertools.product(["O", "B-x", "I-x", "B-y", "I-y"], repeat=4):
        assert entities(valid_bio(labels)) == entities(labels)


@pytest.mark.parametrize(
    ("sentences", "labels", "kinds", "targets"),
    [
        (
            ("B-x O B-x I-x I-x B-x B-y-z O", "O _"),
            LabelSet(("B-x", "B-y-z", "I-x", "O"), BIO),
            ["x", "y-z"],
            [[0, 3, 0, 2, 2, 0, 1, 3], [3, -100]],
        ),
        (("NOUN O _ VERB", "X"), LabelSet(("NOUN", "O", "VERB", "X"), None), [], [[0, 1, -100, 2], [3]]),
    ],
)
def test_labels_that_a_file_has(tmp_path, sentences, labels, kinds, targets):
    file = written(tmp_path / "a.conll", *sentences)
    assert learn_labels(file) == labels
    assert labels.kinds == kinds
    assert labels.targets(file) == targets


@pytest.mark.parametrize("labels", ["B_x I_x O", "b-x i-x o", "x-B x-I O", "B:x O"])
def test_entities_of_another_scheme_are_refused(labels, tmp_path):
    with refused(r"a\.conll.*BIO"):
        learn_labels(written(tmp_path / "a.conll", labels))

"""Schemes of entity labels, and the labels that a model learns."""

import itertools

import pytest

from mae_lm_fairseq.finetuning.tagging.files import read_words
from mae_lm_fairseq.finetuning.tagging.labels import LabelSet, learn_labels
from mae_lm_fairseq.finetuning.tagging.schemes import Entity, Scheme, converted, entities, labels_of, scheme_of
from mae_lm_fairseq.utils.errors import UserError

# One sentence in each scheme: entities of one and of three words, two of the same type and two types side by side.
SAME = {
    Scheme.BIO: "B-x O B-x I-x I-x B-x B-y-z O",
    Scheme.IOB1: "I-x O I-x I-x I-x B-x I-y-z O",
    Scheme.BIOES: "S-x O B-x I-x E-x S-x S-y-z O",
}
PAIRS = pytest.mark.parametrize(("first", "second"), list(itertools.product(Scheme, repeat=2)))


def written(path, *sentences):
    text = "\n".join("".join(f"w {label}\n" for label in sentence.split()) for sentence in sentences)
    path.write_text(text)
    return read_words(path, "2")


@PAIRS
def test_conversion(first, second):
    assert converted(SAME[first].split(), second) == SAME[second].split()
    expected = [("x", 0, 1), ("x", 2, 5), ("x", 5, 6), ("y-z", 6, 7)]
    assert entities(SAME[first].split()) == [Entity(*entity) for entity in expected]


@pytest.mark.parametrize("scheme", Scheme)
def test_every_set_of_entities_survives(scheme):
    for cuts in itertools.product([(1, "x"), (1, None), (2, "x"), (2, "y")], repeat=4):
        found, start = [], 0
        for length, kind in cuts:
            found += [Entity(kind, start, start + length)] * (kind is not None)
            start += length
        assert entities(labels_of(found, start, scheme)) == found


@PAIRS
def test_files_are_recognised_and_read_in_the_scheme_that_is_learnt(first, second, tmp_path):
    file = written(tmp_path / "a.conll", SAME[first], "O O")
    assert scheme_of(file) is first
    labels = learn_labels(written(tmp_path / "b.conll", SAME[second], "O"))
    assert labels.scheme is (Scheme.BIOES if second is Scheme.BIOES else Scheme.BIO)
    assert labels.labels_in(file) == [SAME[labels.scheme].split(), ["O", "O"]]
    assert labels.kinds == ["x", "y-z"]
    assert labels.written(SAME[labels.scheme].split(), first) == SAME[first].split()


def test_labels_that_are_not_of_entities(tmp_path):
    assert scheme_of(written(tmp_path / "a.conll", "NOUN O B-", "X")) is None
    labels = learn_labels(written(tmp_path / "a.conll", "NOUN O _ VERB", "X"))
    assert labels == LabelSet(("NOUN", "O", "VERB", "X"), None)
    assert labels.targets(written(tmp_path / "b.conll", "X _ O")) == [[3, -100, 1]]


INVALID = {
    "line 4: 'I-x' breaks the scheme BIO, in which 'B-x' would be valid": ("B-x I-x O I-x", "B-x"),
    "line 7: 'I-y' breaks the scheme BIO, in which 'B-y' would be valid": ("B-x I-x O B-y", "B-x I-y"),
    "line 3: 'B-x' breaks the scheme IOB1, in which 'I-x' would be valid": ("I-x O B-x", "I-x", "I-y I-y"),
    "line 2: 'I-x' breaks the scheme BIOES, in which 'E-x' would be valid": ("B-x I-x", "S-x O B-y E-y"),
    "line 3: the label 'location' is neither O nor B-TYPE": ("B-x O location",),
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_sequences_are_named_by_file_and_line(message, tmp_path):
    with pytest.raises(UserError, match=f"a.conll: {message}"):
        learn_labels(written(tmp_path / "a.conll", *INVALID[message]))


def test_labels_that_cannot_be_learnt(tmp_path):
    labels = learn_labels(written(tmp_path / "a.conll", "B-x O"))
    with pytest.raises(UserError, match=r"b.conll: line 3: the training file has no label 'I-x'"):
        labels.targets(written(tmp_path / "b.conll", "O B-x I-x"))
    with pytest.raises(UserError, match="has only the label 'NOUN'; training needs at least two"):
        learn_labels(written(tmp_path / "a.conll", "NOUN NOUN"))

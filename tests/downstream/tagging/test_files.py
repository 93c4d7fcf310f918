"""Reading and writing of files of labelled words."""

import lzma
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mae_lm_fairseq.downstream.tagging.files import read_words
from mae_lm_fairseq.downstream.tagging.labels import learn_labels
from mae_lm_fairseq.utils.errors import UserError

CONLLU = """\
# text = He can't go.
1\tHe\the\tPRON\t_\t_\t_\t_\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\t_\t_\t_\t_\t_\t_
3\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
3.1\tnever\t_\tADV\t_\t_\t_\t_\t_\t_
4\tgo\tgo\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
5\t.\t.\tPUNCT\t_\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_
"""
WNUT = "#Ulm\tB-location\nis\tO\n\t\n#\tO\nNew York\tO\n \t \n\n"
CONLL_2003 = """\
-DOCSTART- -X- -X- O

# sent_id = 1
EU NNP B-NP I-ORG
  rejects   VBZ B-VP O
# a comment of more than four words

. . O O
"""


@pytest.fixture
def write(tmp_path):
    def to(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return to


def content(file):
    return [list(zip(sentence.words, sentence.labels, strict=True)) for sentence in file.sentences]


def test_conllu_has_words_of_multiword_tokens_and_no_empty_nodes(write, tmp_path):
    file = read_words(write("a.conllu", CONLLU), "UPOS")
    first = [("He", "PRON"), ("ca", "AUX"), ("n't", "PART"), ("go", None), (".", "PUNCT")]
    assert content(file) == [first, [("Yes", "INTJ")]]
    assert file.sentences[0].lines == (2, 4, 5, 7, 8)
    (tmp_path / "b.conllu.xz").write_bytes(lzma.compress(CONLLU.encode()))
    compressed = read_words(tmp_path / "b.conllu.xz", "LEMMA")
    assert [sentence.labels for sentence in compressed.sentences] == [("he", "can", "not", "go", "."), ("yes",)]
    assert compressed.suffix == ".conllu"


def test_tabs_words_with_spaces_and_number_signs_and_lines_of_white_space(write):
    file = read_words(write("a.conll", WNUT), "2")
    assert content(file) == [[("#Ulm", "B-location"), ("is", "O")], [("#", "O"), ("New York", "O")]]


@pytest.mark.parametrize(("column", "labels"), [("4", "I-ORG O O"), ("-1", "I-ORG O O"), ("2", "NNP VBZ .")])
def test_white_space_documents_and_comments(write, column, labels):
    file = read_words(write("a.txt", CONLL_2003), column)
    assert [sentence.words for sentence in file.sentences] == [("EU", "rejects"), (".",)]
    assert [label for sentence in file.sentences for label in sentence.labels] == labels.split()


def test_named_columns_and_line_ends_of_windows(write):
    named = "# global.columns = ID FORM NER\r\n1\tAnna\tB-PER\r\n2\tleft\tO\r\n"
    file = read_words(write("a.conllup", named), "NER")
    assert content(file) == [[("Anna", "B-PER"), ("left", "O")]]


@pytest.mark.parametrize(
    ("name", "text", "column"), [("a.conllu", CONLLU, "UPOS"), ("a.conll", WNUT, "2"), ("a.txt", CONLL_2003, "4")]
)
def test_new_labels_change_nothing_else(write, name, text, column):
    file = read_words(write(name, text), column)
    old, new = text.splitlines(), file.with_labels([["NEW"] * len(words) for words in file.words]).splitlines()
    assert len(old) == len(new)
    changed = {number for number, lines in enumerate(zip(old, new, strict=True), 1) if lines[0] != lines[1]}
    assert changed == {line for sentence in file.sentences for line in sentence.lines}
    again = read_words(write(f"new_{name}", "\n".join(new) + "\n"), column)
    assert again.words == file.words
    assert {label for sentence in again.sentences for label in sentence.labels} == {"NEW"}


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("Anna\nleft\n", "2", "Anna\tX\nleft\tX\n"),
        ("Anna NNP\nleft VBD\n", "4", "Anna NNP X\nleft VBD X\n"),
        ("Anna\tNNP\n\nleft\tVBD\n", "NER", "Anna\tNNP\tX\n\nleft\tVBD\tX\n"),
    ],
)
def test_labels_become_the_last_column_of_a_file_without_them(write, text, column, expected):
    file = read_words(write("a.conll", text), column, needs_labels=False)
    assert not file.is_labelled
    assert file.with_labels([["X"] * len(words) for words in file.words]) == expected


REFUSED = {
    "has no words": ("a.conll", "", "2"),
    "has no words; it must have one word per line": ("a.conll", "\n \t\n", "2"),
    "line 2 has another number of columns than the first row, 3 instead of 2": ("a.conll", "a O\nb O O\n", "2"),
    "line 2 has no word": ("a.conll", "a\tO\n\tO\n", "2"),
    "has no column '3' of labels; it has 2, and .* words; choose one from 2 to 2": (
        "a.conll",
        "a O\n",
        "3",
    ),
    "has no column '1' of labels": ("a.conll", "a O\n", "1"),
    "has no column 'NER' of labels; it has 2": ("a.conll", "a O\n", "NER"),
    "it has 2, and the first has the words .columns: FORM, POS.; choose": (
        "a.conll",
        "# global.columns = FORM POS\na O\n",
        "NER",
    ),
    "has no column '2' .* words; labels need a second column": (
        "a.conll",
        "a\nb\n",
        "2",
    ),
    "column 2 labels no word": ("a.conll", "a _\n", "2"),
    "is CoNLL-U, which has no column 'NER'; choose one of ID, FORM": ("a.conllu", CONLLU, "NER"),
    "column XPOS labels no word": ("a.conllu", CONLLU, "XPOS"),
    "line 2 is not CoNLL-U": ("a.conllu", "# text\nHe PRON\n", "UPOS"),
    "no such file or directory": ("b.conll", None, "2"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors(write, tmp_path, message):
    name, text, column = REFUSED[message]
    path = tmp_path / name if text is None else write(name, text)
    with pytest.raises(UserError, match=message) as caught:
        read_words(path, column)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="is a directory; name a file"):
        read_words(tmp_path, column)


CELLS = st.sampled_from(
    ["a", "B-x", "I-x", "E-", "O", "_", "#", "# a = b", "-DOCSTART-", "1", "1-2", "\u200b", "\ufeff", ""]
)
LINES = st.lists(CELLS, max_size=11).flatmap(
    lambda cells: st.sampled_from(["\t", " ", "\t\t"]).map(lambda x: x.join(cells))
)


@pytest.mark.parametrize("suffix", [".conllu", ".conll"])
@given(st.binary(max_size=60) | st.lists(LINES, max_size=6).map(lambda lines: "\n".join(lines).encode()))
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    for column in ("UPOS", "2", "-1"):
        file, labels, message = read_and_learn(path, column)
        assert len(message.splitlines()) <= 1
        if labels is None:
            continue
        assert [len(targets) for targets in labels.targets(file)] == [len(words) for words in file.words]
        relabelled = file.with_labels([["NEW"] * len(words) for words in file.words])
        path.write_text(relabelled, encoding="utf-8")
        # The row of a word "#" before a column "=" turns into a comment: "# NEW = a".
        if not re.search(r"#\s*NEW\s*=", relabelled):
            assert read_words(path, column).words == file.words
        path.write_bytes(content)


def read_and_learn(path, column):
    """Return a file and its labels, or the error message."""
    try:
        file = read_words(path, column)
        return file, learn_labels(file), ""
    except UserError as error:
        return None, None, str(error)

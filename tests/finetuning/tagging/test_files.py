"""Reading and writing of files of labelled words."""

import bz2
import lzma
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mae_lm_fairseq.finetuning.tagging.files import read_words
from mae_lm_fairseq.finetuning.tagging.labels import learn_labels
from mae_lm_fairseq.utils.errors import UserError

CONLLU = """\
# text = He can't go.
1\tHe\the\tPRON\t_\tCase=Nom\t_\t_\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\t_\t_\t_\t_\t_\t_
3\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
3.1\tnever\t_\tADV\t_\t_\t_\t_\t_\t_
4\tgo\tgo\t_\t_\t_\t_\t_\t\t
5\t.\t.\tPUNCT\t_\t_\t_\t_\t_\t_

1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_

1\tYes\tyes\tINTJ\t_\t_\t_\t_\t_\t_
"""
WNUT = "#Ulm\tB-location\n# id = 1\nis\tO\n\t\n#\tO\nNew York\tO\n#a=b\tO\t \n \t \n\n"
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
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
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
    (tmp_path / "b.conllu.bz2").write_bytes(bz2.compress(CONLLU.encode()))
    assert read_words(tmp_path / "b.conllu.bz2", "UPOS").sentences == file.sentences


def test_tabs_words_with_spaces_and_number_signs_and_lines_of_white_space(write):
    file = read_words(write("a.conll", WNUT), "2")
    assert content(file) == [[("#Ulm", "B-location"), ("is", "O")], [("#", "O"), ("New York", "O"), ("#a=b", "O")]]


def test_rows_that_all_end_in_a_tab(write):
    """The number of columns is that of the row with most cells, although the first one has an empty label."""
    file = read_words(write("a.conll", "a\tX\t\t\nb\tX\tO\t\n"), "3")
    assert content(file) == [[("a", None), ("b", "O")]]


@pytest.mark.parametrize(("column", "labels"), [("4", "I-ORG O O"), ("-1", "I-ORG O O"), ("2", "NNP VBZ .")])
def test_white_space_documents_and_comments(write, column, labels):
    file = read_words(write("a.txt", CONLL_2003), column)
    assert [sentence.words for sentence in file.sentences] == [("EU", "rejects"), (".",)]
    assert [label for sentence in file.sentences for label in sentence.labels] == labels.split()


@pytest.mark.parametrize(
    ("text", "column", "relabelled"),
    [
        ("a\t\tX\nb\tO\tX\n", "2", "a\tN\tX\nb\tN\tX\n"),
        ("a\t\nb\tO\n", "2", "a\tN\nb\tN\n"),
        ("a\t\t\nb\tX\tO\t\n#\n\nc\tX\t_\n", "3", "a\t\tN\nb\tX\tN\t\n#\n\nc\tX\tN\n"),
        ("a \t \nb\tO \n", "2", "a \tN \nb\tN \n"),
    ],
)
def test_words_with_an_empty_label_have_none(write, text, column, relabelled):
    file = read_words(write("a.conll", text), column)
    assert [label for sentence in file.sentences for label in sentence.labels][:2] == [None, "O"]
    assert file.with_labels([["N"] * len(words) for words in file.words]) == relabelled


@pytest.mark.parametrize(
    ("name", "text", "column", "cell"),
    [
        ("a.conllu", CONLLU, "UPOS", 3),
        ("a.conllu", CONLLU.rstrip("\n"), "FEATS", 5),
        ("a.conll", WNUT, "2", 1),
        ("a.txt", CONLL_2003, "4", -1),
    ],
)
@pytest.mark.parametrize(("start", "end"), [("", "\n"), ("\ufeff", "\r\n")])
def test_new_labels_change_nothing_else(write, name, text, column, cell, start, end):
    text = start + text.replace("\n", end)
    file = read_words(write(name, text), column)
    relabelled = file.with_labels([["NEW"] * len(words) for words in file.words])
    expected = text.split(end)
    for line in (line for sentence in file.sentences for line in sentence.lines):
        before = expected[line - 1]
        cells = re.split("(\t)" if "\t" in text else "( +)", before)
        cells[2 * cell if cell > 0 else cell] = "NEW"
        expected[line - 1] = "".join(cells)
    assert relabelled == end.join(expected)
    again = read_words(write(f"new_{name}", relabelled), column)
    assert again.words == file.words
    assert {label for sentence in again.sentences for label in sentence.labels} == {"NEW"}


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("Anna\nleft\n", "2", "Anna\tX\nleft\tX\n"),
        ("Anna\r\n  left", None, "Anna\tX\r\nleft\tX"),
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
    "line 2 has another number of columns than other rows, 3 instead of 2": ("a.conll", "a O\nb O O\n", "2"),
    "line 2 has no word": ("a.conll", "a\tO\n\tO\n", "2"),
    "has no column '3' of labels; it has 2, and the words are in column 1; choose another one": (
        "a.conll",
        "a O\n",
        "3",
    ),
    "has no column '1' of labels": ("a.conll", "a O\n", "1"),
    "has no column 'NER' of labels; it has 2": ("a.conll", "a O\n", "NER"),
    "line 1 names the columns, which is read in .conllu only": ("a.conll", "# global.columns = FORM NER\na O\n", "2"),
    "has no column '2' of labels; it has 1, and .* column 1; labels need a second column": (
        "a.conll",
        "a\nb\n",
        "2",
    ),
    "column 2 labels no word": ("a.conll", "a _\n", "2"),
    "is CoNLL-U, so that --column must be one of LEMMA, .*, MISC, not 'NER'": ("a.conllu", CONLLU, "NER"),
    "must be one of LEMMA, .* MISC, not 'FORM'": ("a.conllu", CONLLU, "FORM"),
    "must be one of LEMMA, .* MISC$": ("a.conllu", CONLLU, None),
    "column XPOS labels no word": ("a.conllu", CONLLU, "XPOS"),
    "line 2 is not CoNLL-U": ("a.conllu", "# text\nHe PRON\n", "UPOS"),
    "line 1 is not UTF-8": ("a.conll", "a\udcff O\n", "2"),
    "no such file; name one file": ("b.conll", None, "2"),
    "part..conll: no such file": ("part*.conll", None, "2"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors(write, tmp_path, message):
    name, text, column = REFUSED[message]
    write("part1.conll", "a O\n")
    path = tmp_path / name if text is None else write(name, text)
    with pytest.raises(UserError, match=message) as caught:
        read_words(path, column)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="not a regular file; name one file"):
        read_words(tmp_path, column)


WORDS = st.sampled_from(["a", "B-", "_", "#", "# a = b", "-DOCSTART-", "\u200b", "\ufeff"])
LABELS = st.sampled_from(["NOUN", "VERB", "O", "B-x", "I-x", "_", ""])
IDS = st.sampled_from(["1", "2", "3", "1-2", "1.1"])
OTHERS = st.sampled_from(["", " \t", "# text = a", "# global.columns = ID FORM NER"])


def rows_of(width):
    return st.tuples(IDS, WORDS, *[LABELS] * (width - 2))


def files_of(widths, separators):
    """Return a strategy for the contents of files: arbitrary bytes, rows of any width, rows of one of the widths."""
    rows = [st.lists(IDS | WORDS | LABELS, max_size=11), *map(rows_of, widths)]
    lines = st.one_of(st.lists(OTHERS | st.builds(str.join, separators, row), max_size=8) for row in rows)
    starts, ends = st.sampled_from(["", "\ufeff"]), st.sampled_from(["\n", "\r\n"])
    texts = st.builds(lambda start, rows, end: start + end.join(rows), starts, lines, ends)
    return st.binary(max_size=60) | texts.map(str.encode)


@pytest.mark.parametrize(
    ("suffix", "columns", "files"),
    [
        (".conllu", ("UPOS", "MISC"), files_of([10], st.just("\t"))),
        (".conll", ("3", "-1", "NER"), files_of([2, 3], st.sampled_from(["\t", " "]))),
    ],
)
def test_any_file_is_read_or_refused(tmp_path, suffix, columns, files):
    path, sizes = tmp_path / f"a{suffix}", []

    @given(files)
    @settings(deadline=None, max_examples=200)
    def check(content):
        for column in columns:
            path.write_bytes(content)
            file, labels, message = read_and_learn(path, column)
            assert (labels is None) == (str(path) in message)
            if labels is None:
                continue
            sizes.append(sum(map(len, file.words)))
            assert [len(targets) for targets in labels.targets(file)] == [len(words) for words in file.words]
            if not any(None in sentence.labels for sentence in file.sentences):
                assert file.with_labels([sentence.labels for sentence in file.sentences]).encode() == content
            relabelled = file.with_labels([["NEW"] * len(words) for words in file.words])
            path.write_bytes(relabelled.encode())
            # The row of a word "#" before a column "=" turns into a comment: "# NEW = a".
            if not re.search(r"#\s*NEW\s*=", relabelled):
                assert read_words(path, column).words == file.words

    check()
    assert len(sizes) > 10
    assert max(sizes) > 3


def read_and_learn(path, column):
    """Return a file and its labels, or the error message."""
    try:
        file = read_words(path, column)
        return file, learn_labels(file), ""
    except UserError as error:
        return None, None, str(error)

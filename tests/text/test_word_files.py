"""Reading and writing of files of labelled words."""

import bz2
import gzip
import lzma

import pytest
from hypothesis import given, settings, strategies as st

from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.text.word_labels import learn_labels
from mae_lm_fairseq.utils.errors import UserError
from tests.support.refusals import refused

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
    (tmp_path / "b.conllu.bz2").write_bytes(bz2.compress(CONLLU.encode()))
    assert read_words(tmp_path / "b.conllu.bz2", "UPOS").sentences == file.sentences


def test_tabs_words_with_spaces_and_number_signs_and_lines_of_white_space(write):
    file = read_words(write("a.conll", WNUT), "2")
    assert content(file) == [[("#Ulm", "B-location"), ("is", "O")], [("#", "O"), ("New York", "O"), ("#a=b", "O")]]


@pytest.mark.parametrize(("column", "labels"), [("4", "I-ORG O O"), ("-1", "I-ORG O O"), ("2", "NNP VBZ .")])
def test_white_space_documents_and_comments(write, column, labels):
    file = read_words(write("a.txt", CONLL_2003), column)
    assert [sentence.words for sentence in file.sentences] == [("EU", "rejects"), (".",)]
    assert [label for sentence in file.sentences for label in sentence.labels] == labels.split()


@pytest.mark.parametrize(
    ("name", "text", "column", "expected"),
    [
        ("a.conll", "a\tX\t\t\nb\tX\tO\t \n", "3", "a\tX\t\tN\nb\tX\tO\tN\n"),
        ("a.conll", "a\t\tX\nb\tO\tX\n", "2", "a\t\tX\tN\nb\tO\tX\tN\n"),
        ("a.conll", "# a\nb\t_\r\n\nc\tO\n", "2", "# a\nb\t_\tN\n\nc\tO\tN\n"),
        ("a.conll", "Anna\nleft\n", "2", "Anna\tN\nleft\tN\n"),
        ("a.conll", "Anna\r\n  left", None, "Anna\tN\nleft\tN\n"),
        ("a.conll", "-DOCSTART- O\n\nAnna  NNP\nleft VBD \n", "NER", "-DOCSTART- O\n\nAnna  NNP N\nleft VBD N\n"),
        ("a.conllu.gz", CONLLU, "UPOS", None),
    ],
)
def test_predictions_become_the_last_column(write, tmp_path, name, text, column, expected):
    path = write(name, text)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    file = read_words(path, column, is_labelled=False)
    written = file.with_predictions([["N"] * len(words) for words in file.words])
    if expected is not None:
        assert written == expected
    else:  # CoNLL-U Plus
        header, *lines = written.splitlines()
        assert header.split()[-2:] == ["MISC", "PREDICTION"]
        ids = {line.split("\t")[0]: line.split("\t")[10] for line in lines if line and line[0] != "#"}
        assert ids == dict.fromkeys(["2-3", "3.1", "1-2"], "_") | dict.fromkeys(["1", "2", "3", "4", "5"], "N")
        assert (file.suffix, [line.rpartition("\t")[0] for line in lines if line[:1].isdigit()]) == (
            ".conllup",
            [line for line in text.splitlines() if line[:1].isdigit()],
        )


REFUSED = {
    "line 1 has another number of columns than other rows, 2 instead of 3": ("a.conll", "a O\nb O O\n", "2"),
    "is CoNLL-U, so that --column must be one of LEMMA, .* MISC$": ("a.conllu", CONLLU, "FORM"),
    "has no column 1 of labels": ("a.tsv", "a\tO\n", "1"),
    "has records; words are read from CoNLL-U": ("a.csv", "a,O\n", "2"),
    "is JSON, whatever its name says": ("a.conll", '{"tokens": ["a"], "tags": ["O"]}\n', "2"),
    "line 1 is not UTF-8": ("a.conll", "a\udcff O\n", "2"),
    "first column .*conllu": ("a.conll", CONLLU.replace("\t\t\n", "\t_\t_\n"), "4"),
    "first column .*remove": ("a.tsv", "# http://ulm\n1\tEU\tB-x\tO\n2\tis\tO\tO\n\n1\tNo\tO\tO\n", "3"),
    "line 1 names the columns": ("a.tsv", "Token\tner\nEU\tB-x\n\nis\tO\n", "2"),
    "line 3 names the columns": ("a.txt", "-DOCSTART-\n\nword pos tag\nEU X B-x\nis X O\n", "3"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_errors(write, message):
    name, text, column = REFUSED[message]
    path = write(name, text)
    with refused(message) as caught:
        read_words(path, column)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["1\tNUM\n", "1\tNUM\n3\tNUM\n", "word\tNOUN\nform\tNOUN\n", "a\tner\nb\tO\n"])
def test_words_that_are_numbers_or_names_of_columns_are_read(write, text):
    words = [row.split("\t")[0] for row in text.splitlines()]
    assert read_words(write("a.tsv", text), "2").words == [tuple(words)]


def test_labels_that_would_be_several_columns_are_refused(write):
    file = read_words(write("a.conll", "a O\n"), "2")
    for label in ("new york", "a\tb", "a\n", "a\r"):
        with refused(r"a\.conll: the label"):
            file.check_labels(["O", label])
    file = read_words(write("b.tsv", "a\tO\n"), "2")
    file.check_labels(["new york"])
    assert file.with_predictions([["new york"]]) == "a\tO\tnew york\n"


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
            file, targets, message = read_and_learn(path, column)
            assert (targets is None) == (str(path) in message)
            if targets is None:
                continue
            sizes.append(sum(map(len, file.words)))
            assert [len(of_sentence) for of_sentence in targets] == [len(words) for words in file.words]
            written = file.with_predictions([["NEW"] * len(words) for words in file.words])
            if suffix == ".conll" and not has_longer_comment(file):
                path.write_bytes(written.encode())
                again = read_words(path, "-1")
                assert again.words == file.words
                assert again.kinds == {"NEW"}
            elif suffix == ".conllu":
                assert written.count("\tNEW\n") == sum(map(len, file.words))

    check()
    assert len(sizes) > 10
    assert max(sizes) > 3


def has_longer_comment(file):
    """Return whether a comment has one column more than the rows, as many as they have with predictions."""
    numbers = {number for sentence in file.sentences for number in sentence.lines}
    separators = [line.count(file.separator) for line in file.lines]
    rows = max(separators[number - 1] for number in numbers)
    return any(
        count == rows + 1 and line.startswith("#") and number not in numbers
        for number, (line, count) in enumerate(zip(file.lines, separators, strict=True), 1)
    )


def read_and_learn(path, column):
    """Return a file and the numbers of its labels, or the error message."""
    try:
        file = read_words(path, column)
        return file, learn_labels(file).targets(file), ""
    except UserError as error:
        return None, None, str(error)

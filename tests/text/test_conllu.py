"""Annotated sentences in CoNLL-U."""

import lzma

import pytest

from mae_lm_fairseq.text.conllu import read_conllu
from tests.support.refusals import refused

ROWS = """\
# text = He can't go (du) ½.
1 He PRON _
2-3 can't _ _
2 ca AUX _
3 n't PART _
4 go VERB _
4.1 gone VERB _
5 ( PUNCT SpaceAfter=No
6-7 du _ SpaceAfter=No
6 de ADP _
7 le DET _
8 ) PUNCT _
9 ½ _ SpaceAfter=No
10 . PUNCT _

1 Yes INTJ Some=x|SpaceAfter=No
2 ! PUNCT _
"""


def conllu(rows: str) -> str:
    """Spell out rows of ID, FORM, UPOS and MISC."""
    lines = [
        "\t".join([*line.split()[:2], "_", line.split()[2], *"_____", line.split()[3]]) if line[:1].isdigit() else line
        for line in rows.splitlines()
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "en.conllu").write_text(conllu(ROWS), encoding="utf-8")
    return tmp_path / "en.conllu"


def test_text_and_words(path):
    first, second = read_conllu(path, "UPOS")
    assert first.text == "He can't go (du) ½."
    words = dict(zip(first.labels, (first.text[start:] for start in first.starts), strict=True))
    # "de" and "le" are not in "du": they start where it does
    assert first.starts == [0, 3, 5, 9, 12, 13, 13, 15, 18]
    assert first.labels == ["PRON", "AUX", "PART", "VERB", "PUNCT", "ADP", "DET", "PUNCT", "PUNCT"]
    assert words["PART"].startswith("n't")
    assert second == ("Yes!", [0, 3], ["INTJ", "PUNCT"], ["Yes", "!"])
    assert first.words == ["He", "ca", "n't", "go", "(", "de", "le", ")", "."]


def test_compressed_files(path, tmp_path):
    (tmp_path / "en.conllu.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert read_conllu(tmp_path / "en.conllu.xz", "UPOS") == read_conllu(path, "UPOS")


def test_a_limited_number_of_sentences_is_evenly_spaced(path):
    path.write_text(conllu("".join(f"1 word{number} NOUN _\n\n" for number in range(10))))
    assert [sentence.text for sentence in read_conllu(path, "UPOS", limit=4)] == ["word0", "word2", "word5", "word7"]
    assert len(read_conllu(path, "UPOS", limit=11)) == 10


@pytest.mark.parametrize("line", ["1\tHe", "a" + "\t_" * 9, "1-b" + "\t_" * 9, "1-" + "9" * 20 + "\t_" * 9])
def test_invalid_lines_are_named(path, line):
    path.write_text(f"# comment\n{line}\n")
    with refused(r"en\.conllu: line 2"):
        read_conllu(path, "UPOS")


def test_a_column_without_labels_is_refused(path):
    with refused("XPOS"):
        read_conllu(path, "XPOS")

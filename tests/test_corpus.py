import gzip
import lzma

import pytest

from mae_lm_fairseq.corpus import VALID_CHARACTERS, split_corpus
from mae_lm_fairseq.utils.errors import UserError

LINE = "This is line {} of document {}, and it says nothing more."


@pytest.fixture
def text():
    """Return 1,000 documents of ten lines, about 600,000 characters."""
    return "\n\n".join("\n".join(LINE.format(i, d) for i in range(10)) for d in range(1000)) + "\n"


@pytest.fixture
def split(tmp_path):
    """Return a function that splits a text and returns the counts, the training text and the validation text."""

    def split(content, name="corpus.txt", max_bytes=10**7):
        path = tmp_path / name
        opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
        with opener(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        counts = split_corpus(path, tmp_path / "train", tmp_path / "valid", max_bytes)
        return counts, (tmp_path / "train").read_text(), (tmp_path / "valid").read_text()

    return split


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz", "corpus.txt.xz"])
def test_every_document_is_complete_in_one_split(text, split, name):
    counts, train, valid = split(text, name)
    assert counts == {"documents": 1000, "lines": 10_000, "characters": len(text.replace("\n", ""))}
    documents = [part.strip().split("\n\n") for part in (train, valid)]
    assert sorted(documents[0] + documents[1]) == sorted(text.strip().split("\n\n"))
    # Two per cent of this text would be too little to measure a loss.
    assert VALID_CHARACTERS[0] * 0.9 < len(valid) < VALID_CHARACTERS[0] * 1.2


def test_the_split_does_not_change(text, split):
    assert split(text) == split(text)


def test_a_text_with_few_blank_lines_is_cut_into_documents(text, split):
    counts, _, valid = split(text.replace("\n\n", "\n"))
    assert counts["documents"] == 500
    assert {len(document.split("\n")) for document in valid.strip().split("\n\n")} == {20}


def test_reading_stops_at_the_limit(text, split, capsys):
    counts, *_ = split(4 * text, max_bytes=10**6)
    assert 10**6 * 0.9 < counts["characters"] < 2.2 * 10**6
    assert "MB of corpus.txt, enough" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("One short line.\n", "15 characters in 1 documents; at least 300,000"),
        ("A very long line. " * 30_000, "in 1 documents"),
        (b"caf\xe9\n" * 100_000, "line 1 is not UTF-8"),
    ],
)
def test_unusable_text_has_one_line_messages(split, content, message):
    with pytest.raises(UserError, match=message) as error:
        split(content)
    assert "\n" not in str(error.value)


def test_files_with_records_are_refused(text, split):
    with pytest.raises(UserError, match=r"corpus\.jsonl: has records, and only plain text is read"):
        split(text, "corpus.jsonl")

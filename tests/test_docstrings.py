import gzip
import lzma
import textwrap

import pytest

from mae_lm_fairseq import docstrings
from mae_lm_fairseq.docstrings import (
    VALID_CHARACTERS,
    corpus_documents,
    docstring_documents,
    is_validation,
    module_prose,
    paragraphs,
    write_corpus,
)
from mae_lm_fairseq.utils.errors import UserError


def prose(doc):
    return paragraphs(textwrap.dedent(doc))


def test_lines_of_a_paragraph_are_joined_and_markup_is_taken_off():
    doc = """
        Return the **sorted** copy of an `array`, as :func:`~numpy.sort` does,
        where ``n`` is the size of it [2]_.

        Short one.
        """
    assert prose(doc) == ["Return the sorted copy of an array, as numpy.sort does, where n is the size of it."]


def test_code_tables_headings_fields_and_math_are_dropped():
    doc = """
        The first paragraph is prose and it stays in the text.

        Examples of the use of this function and its arguments.
        -------------------------------------------------------

        >>> print("this is a doctest with many letters in it.")
        and this is the output that it prints for the reader

        The next block is literal and holds a line of code::

            for letter in alphabet: print the letter and the next

        .. code-block:: python

            also here is something with enough letters to be prose

        :param axis: the axis along which the elements are counted.

        =====================  ==============================
        The name of an option  what it stands for in the call.
        =====================  ==============================

        .. math:: The integral of the function over its domain.

        The integral :math:`\\int_0^1 f(x) dx` of the function is one and the same.

        The last paragraph is prose as well, and it stays too.
        """
    assert prose(doc) == [
        "The first paragraph is prose and it stays in the text.",
        "The last paragraph is prose as well, and it stays too.",
    ]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Create an installed package that would fail to import."""
    root = tmp_path / "site" / "documented"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text('"""A module that must be parsed and never be imported."""\nraise SystemExit\n')
    monkeypatch.syspath_prepend(root.parent)
    return root


def test_docstrings_of_classes_and_coroutines_are_read(package):
    (package / "c.py").write_text(
        'class A:\n    """A class whose documentation is one long line."""\n'
        "    async def f():\n"
        '        """A coroutine whose documentation is one long line."""\n'
        'constant = """A long constant that documents nothing and is therefore left out."""\n'
    )
    assert module_prose(str(package / "c.py")) == [
        "A class whose documentation is one long line.",
        "A coroutine whose documentation is one long line.",
    ]


def test_corpus_is_deterministic_without_duplicates_and_split_by_module(package, tmp_path, monkeypatch):
    same = "The same paragraph stands in many of the modules."
    for number in range(60):
        words = f"Module {'abcdefghij'[number // 10]}{'abcdefghij'[number % 10]} has a paragraph that is its own."
        (package / f"m{number}.py").write_text(f'"""{words}\n\n{same}\n"""\n')
    (package / "broken.py").write_text("def (:\n")
    (package / "tests" / "test_m.py").write_text('"""A test whose documentation is not read by anybody."""\n')
    monkeypatch.setattr(docstrings, "VALID_PERCENT", 20)

    texts = []
    for name in ("first", "second"):
        train, valid = tmp_path / f"{name}.train", tmp_path / f"{name}.valid"
        counts = write_corpus(docstring_documents(["documented"]), train, valid)
        texts.append((train.read_text(), valid.read_text()))
    assert texts[0] == texts[1]
    assert counts["documents"] == 61  # one of 62 files cannot be parsed

    train, valid = texts[0]
    assert (train + valid).count(same) == 1
    assert "never be imported" in train + valid
    assert "A test whose" not in train + valid
    documents = valid.strip().split("\n\n")
    assert len(documents) == sum(is_validation(f"documented.m{number}") for number in range(60)) > 3
    assert not set(valid.split("\n")) & set(train.split("\n")) - {""}


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
        counts = write_corpus(corpus_documents(path, max_bytes), tmp_path / "train", tmp_path / "valid")
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


def test_a_text_with_few_blank_lines_is_cut_into_documents(text, split):
    counts, _, valid = split(text.replace("\n\n", "\n"))
    assert counts["documents"] == 500
    assert {len(document.split("\n")) for document in valid.strip().split("\n\n")} == {20}


def test_reading_stops_at_the_limit(text, split, capsys):
    counts, *_ = split(4 * text, max_bytes=10**6)
    assert 10**6 * 0.9 < counts["characters"] < 2.2 * 10**6
    assert "MB of corpus.txt, enough" in capsys.readouterr().out


def test_too_little_text_is_refused(split):
    with pytest.raises(UserError, match="15 characters in 1 documents; at least 300,000"):
        split("One short line.\n")


def test_files_with_records_are_refused(text, split):
    with pytest.raises(UserError, match=r"corpus\.jsonl: has records, and only plain text is read"):
        split(text, "corpus.jsonl")

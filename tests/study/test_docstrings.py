import textwrap

import pytest

from mae_lm_fairseq.study import docstrings
from mae_lm_fairseq.study.docstrings import docstring_documents, is_validation, module_prose, paragraphs, write_corpus


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

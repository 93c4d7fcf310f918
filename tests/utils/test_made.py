"""Directories that are named by what they depend on."""

from pathlib import Path

import pytest

from mae_lm_fairseq.utils.made import find_or_make, keyed


def read(path: Path) -> str | None:
    """Return the content of a directory; None if there is none, or if it is damaged."""
    file = path / "text"
    return file.read_text() if file.exists() else None


def writer(text: str):
    def write(new: Path) -> str:
        (new / "text").write_text(text)
        return text

    return write


def test_names_are_those_of_earlier_versions():
    assert keyed("train-00001", "abc 'text'") == "train-00001-4225975d3e35"


def test_a_directory_is_made_once(tmp_path):
    path = tmp_path / "parts/name"
    path.parent.mkdir()
    assert find_or_make(path, writer("first"), read) == ("first", False)
    assert find_or_make(path, writer("second"), read) == ("first", True)
    (path / "text").unlink()
    assert find_or_make(path, writer("third"), read) == ("third", False)
    assert [entry.name for entry in path.parent.iterdir()] == ["name"]


def test_nothing_is_left_of_a_directory_that_could_not_be_made(tmp_path):
    def fail(new: Path) -> str:
        (new / "text").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_or_make(tmp_path / "name", fail, read)
    assert not [*tmp_path.iterdir()]


def test_the_directory_of_a_faster_process_is_kept(tmp_path):
    path = tmp_path / "name"

    def overtaken(new: Path) -> str:
        find_or_make(tmp_path / "other", writer("faster"), read)
        (tmp_path / "other").rename(path)
        return writer("slower")(new)

    find_or_make(path, overtaken, read)
    assert read(path) == "faster"

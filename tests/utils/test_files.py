"""Files and directories that appear whole or not at all."""

import pytest

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import new_directory, write_text


def test_text_is_as_it_was_written(tmp_path):
    write_text(tmp_path / "file", "ä\r\nb\n")
    assert (tmp_path / "file").read_bytes() == "ä\r\nb\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [("nowhere/file", "text", FileNotFoundError), ("old", "\ud800", UnicodeEncodeError)],
)
def test_text_that_cannot_be_written_changes_nothing(tmp_path, name, text, error):
    (tmp_path / "old").write_text("old")
    with pytest.raises(error):
        write_text(tmp_path / name, text)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, UserError])
def test_a_directory_whose_making_fails_is_not_there(tmp_path, error):
    def make():
        with new_directory(tmp_path / "out") as directory:
            (directory / "file").touch()
            raise error("x")

    with pytest.raises(error):
        make()
    assert not list(tmp_path.iterdir())

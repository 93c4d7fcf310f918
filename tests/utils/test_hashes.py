"""Lists of the hashes of a directory."""

import subprocess

import pytest

from mae_lm_fairseq.utils.hashes import HASHES, check_hashes, write_hashes
from tests.support.refusals import refused


@pytest.fixture
def directory(tmp_path):
    for name in ("a", "b", "below/c", "card"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    write_hashes(tmp_path, without=["card"])
    return tmp_path


def test_a_list_is_that_of_sha256sum(directory):
    assert sorted(check_hashes(directory, ["a"])) == ["a", "b", "below/c"]
    done = subprocess.run(["sha256sum", "--check", HASHES], cwd=directory, capture_output=True, text=True, check=True)
    assert done.stdout.count("OK") == 3


@pytest.mark.parametrize("name", ["a", "below/c"])
def test_a_file_that_differs_or_is_missing_is_named(directory, name):
    (directory / name).write_text("other")
    with refused(rf"{name} is damaged.* remove .*{HASHES}"):
        check_hashes(directory)
    (directory / name).unlink()
    with refused(name):
        check_hashes(directory)


def test_files_without_a_hash_may_change(directory):
    (directory / "card").write_text("other")
    (directory / "new").write_text("new")
    check_hashes(directory)


@pytest.mark.parametrize("change", ["", "x", f"{'0' * 64}  ../outside", f"{'0' * 64}  /etc/hostname", f"{'0' * 64} a"])
def test_a_damaged_list_is_refused(directory, change):
    (directory / HASHES).write_text(change)
    with refused(f"{HASHES} is damaged"):
        check_hashes(directory)


def test_a_list_that_lacks_a_needed_file_is_refused(directory):
    with refused(f"{HASHES} .*model"):
        check_hashes(directory, ["a", "model"])


def test_a_directory_of_an_earlier_version_has_no_list(tmp_path):
    assert check_hashes(tmp_path, ["a"]) == {}

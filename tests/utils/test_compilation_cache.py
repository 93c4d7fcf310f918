"""Where compiled code is kept."""

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mae_lm_fairseq.utils import compilation_cache
from mae_lm_fairseq.utils.compilation_cache import INDUCTOR, PRECOMPILED_HEADERS, TRITON, keep_compiled_code


@pytest.fixture
def places(monkeypatch, tmp_path):
    """Return the directories of a Python environment and of a user's cache; no variable is set."""
    for name in (INDUCTOR, TRITON, PRECOMPILED_HEADERS):
        monkeypatch.setenv(name, "")  # restores it afterwards
        monkeypatch.delenv(name)
    places = SimpleNamespace(environment=tmp_path / "environment", user=tmp_path / "user", temporary=tmp_path / "tmp")
    places.temporary.mkdir()
    monkeypatch.setattr(sys, "prefix", str(places.environment))
    monkeypatch.setenv("XDG_CACHE_HOME", str(places.user))
    monkeypatch.setattr("tempfile.tempdir", str(places.temporary))
    return places


def kept_in(operator: Path = Path(__file__)) -> list[Path]:
    keep_compiled_code(operator)
    return [Path(os.environ[name]) for name in (INDUCTOR, TRITON)]


def test_both_caches_are_in_the_environment_and_closed_to_others(places):
    inductor, triton = kept_in()
    assert inductor.parent == triton.parent
    assert inductor.name != triton.name
    assert inductor.is_relative_to(places.environment / "var/cache/mae_lm_fairseq")
    assert stat.S_IMODE(inductor.parent.stat().st_mode) == stat.S_IMODE(inductor.parents[1].stat().st_mode) == 0o700
    assert os.environ[PRECOMPILED_HEADERS] == "0"


def test_an_operator_that_has_changed_is_compiled_again(places, monkeypatch, tmp_path):
    operator = tmp_path / "operator.py"
    directories = set()
    for code in ("first", "second"):
        operator.write_text(code)
        for name in (INDUCTOR, TRITON):
            monkeypatch.delenv(name, raising=False)
        directories.update(kept_in(operator))
    assert len(directories) == 4


@pytest.mark.parametrize("name", [INDUCTOR, TRITON])
def test_a_variable_of_the_user_takes_precedence(places, monkeypatch, name):
    monkeypatch.setenv(name, "chosen")
    keep_compiled_code(Path(__file__))
    assert os.environ[name] == "chosen"
    other = {INDUCTOR: TRITON, TRITON: INDUCTOR}[name]
    assert Path(os.environ[other]).is_relative_to(places.environment)


def open_to_others(directory, monkeypatch):
    directory.mkdir(parents=True)
    directory.chmod(0o777)


def of_another_user(directory, monkeypatch):
    directory.mkdir(parents=True, mode=0o700)
    number = directory.stat().st_ino
    lstat = Path.lstat

    def owned_by_another(path):
        status = lstat(path)
        if status.st_ino != number:
            return status
        return SimpleNamespace(st_mode=status.st_mode, st_uid=status.st_uid + 1)

    monkeypatch.setattr(Path, "lstat", owned_by_another)


def link(directory, monkeypatch):
    directory.parent.mkdir(parents=True)
    (directory.parent / "elsewhere").mkdir(mode=0o700)
    directory.symlink_to("elsewhere")


def file_in_its_place(directory, monkeypatch):
    directory.parent.mkdir(parents=True)
    directory.touch()


@pytest.mark.parametrize("spoil", [open_to_others, of_another_user, link, file_in_its_place])
def test_a_directory_that_another_user_could_fill_is_not_used(places, monkeypatch, spoil):
    spoil(places.environment / "var/cache/mae_lm_fairseq", monkeypatch)
    inductor, _ = kept_in()
    assert inductor.is_relative_to(places.user / "mae_lm_fairseq")


def test_without_a_directory_of_the_user_code_is_kept_for_this_start(places, monkeypatch):
    monkeypatch.setattr(compilation_cache, "_is_private", lambda directory: False)
    inductor, _ = kept_in()
    assert inductor.is_relative_to(places.temporary)
    assert stat.S_IMODE(inductor.parent.stat().st_mode) == 0o700

"""Locks of directories, between real processes."""

import errno
import fcntl
import os
import re
import signal
import socket
import time
from contextlib import nullcontext

import pytest

from mae_lm_fairseq.utils.locks import LOCK, directory_lock, lock_directory
from tests.support.processes import fork, wait_for
from tests.support.refusals import refused


def is_free(directory) -> bool:
    """Return whether another process can lock a directory."""
    process = fork(lock_directory, directory)
    process.join()
    return process.exitcode == 0


def hold(directory, child: bool = False):
    """Lock a directory until this process is killed, with a forked child that waits as well."""
    with directory_lock(directory):
        pid = os.fork() if child else os.getpid()
        if pid:
            (directory / "pid").write_text(str(pid))
        time.sleep(600)


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds the lock of ``tmp_path``."""
    process = fork(hold, tmp_path)
    wait_for((tmp_path / "pid").exists)
    yield process
    process.kill()
    process.join()


def test_a_second_process_is_refused_until_the_first_is_killed(holder, tmp_path):
    message = f"another process is using {tmp_path} (process {holder.pid} on {socket.gethostname()}); wait until"
    for _ in range(2):  # the refused process leaves the lock to its holder
        with refused(f"^{re.escape(message)}"), directory_lock(tmp_path):
            pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert (tmp_path / LOCK).exists()
    with directory_lock(tmp_path):
        assert not is_free(tmp_path)
    assert not (tmp_path / LOCK).exists()
    assert is_free(tmp_path)


def test_a_child_that_outlives_a_killed_process_does_not_hold_the_lock(tmp_path):
    process = fork(hold, tmp_path, child=True)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    child = int((tmp_path / "pid").read_text())
    assert not is_free(tmp_path)
    process.kill()
    process.join()
    try:
        assert is_free(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)  # which fails if it has ended


def test_a_process_can_lock_a_directory_twice(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with directory_lock(tmp_path):
        with directory_lock(tmp_path / "link"):
            pass
        lock_directory(tmp_path)
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_nothing_is_left_behind(tmp_path):
    (tmp_path / "out").mkdir()
    for name in ("new/out", "out"):
        with directory_lock(tmp_path / name):
            assert os.listdir(tmp_path / name) == [LOCK]
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_a_file_that_its_holder_removes_in_between_is_not_locked(tmp_path, monkeypatch):
    """Otherwise a third process would lock the new file of that name."""
    lockf = fcntl.lockf

    def remove_and_lock(descriptor, flags):
        monkeypatch.setattr(fcntl, "lockf", lockf)
        (tmp_path / LOCK).unlink()
        lockf(descriptor, flags)

    monkeypatch.setattr(fcntl, "lockf", remove_and_lock)
    with directory_lock(tmp_path):
        assert not is_free(tmp_path)


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o755, 0o644), (0o775, 0o664), (0o777, 0o666)])
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_can_write_to_a_directory_can_lock_it(tmp_path, umask, directory, file):
    tmp_path.chmod(directory)
    before = os.umask(umask)
    try:
        with directory_lock(tmp_path):
            assert (tmp_path / LOCK).stat().st_mode & 0o777 == file
    finally:
        os.umask(before)


def test_the_group_of_a_directory_can_lock_it(tmp_path):
    if os.getuid():
        pytest.skip("only root is in any group")
    os.chown(tmp_path, -1, 12345)
    with directory_lock(tmp_path):
        assert (tmp_path / LOCK).stat().st_gid == 12345


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_of_a_user_is_not_written_to(tmp_path, link):
    """A link is refused: its target would be made empty, and writable for everybody. A hard link is locked."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    (tmp_path / "out").mkdir()
    link(victim, tmp_path / "out" / LOCK)
    with refused(f"out/{LOCK} is a link") if link is os.symlink else nullcontext(), directory_lock(tmp_path / "out"):
        assert not is_free(tmp_path / "out")
    assert victim.read_text() == "mine"
    assert victim.stat().st_mode & 0o777 == 0o600


def test_file_systems_without_locks(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, flags):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with directory_lock(tmp_path):
        pass
    assert f"{tmp_path}: cannot be locked (No locks available)" in caplog.text


def test_the_block_reports_that_a_directory_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with directory_lock(tmp_path / "file/out"):
        assert not (tmp_path / "file").is_dir()

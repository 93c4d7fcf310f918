import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

TESTS = """
import os, signal, subprocess, sys, time
from pathlib import Path

def note(name, pid):
    Path(name).write_text(str(pid))

def test_before():
    pass

def test_sleeps():
    note("child", subprocess.Popen(["sleep", "100"]).pid)
    time.sleep(100)

def test_leaves_a_training():
    # A session of its own, whose parent has ended.
    shell = ["sh", "-c", "setsid sleep 100 >/dev/null & echo $!"]
    note("orphan", int(subprocess.run(shell, stdout=subprocess.PIPE, text=True).stdout))
    time.sleep(100)

def test_after():
    pass
"""
STUCK = """
def test_blocks_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    time.sleep(100)
"""


def run(directory: Path, *options: str) -> subprocess.CompletedProcess:
    """Run the tests of a directory with a time limit of three seconds each."""
    words = ["-p", "tests.support.timeouts", "--timeout", "3", "--rootdir", directory, *options]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, directory],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
    )


def is_running(pid: int) -> bool:
    command_line = Path(f"/proc/{pid}/cmdline")
    return command_line.exists() and bool(command_line.read_bytes())  # a zombie's is empty


@pytest.mark.integration  # starts pytest
@pytest.mark.parametrize("processes", [(), ("--numprocesses", "1")], ids=["one process", "xdist"])
def test_a_hanging_test_fails_alone(processes, tmp_path):
    (tmp_path / "test_hanging.py").write_text(TESTS)
    done = run(tmp_path, *processes)
    assert done.returncode == 1
    assert "2 failed, 2 passed" in done.stdout
    assert "test_sleeps was still running after 3 s" in done.stderr
    assert 'test_hanging.py", line 13 in test_sleeps' in done.stderr
    assert not [name for name in ("child", "orphan") if is_running(int((tmp_path / name).read_text()))]


@pytest.mark.integration
def test_a_test_that_cannot_be_interrupted_fails_alone(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.support import timeouts\ntimeouts.GRACE_SECONDS = 1\n")
    (tmp_path / "test_hanging.py").write_text(TESTS.partition("def test_sleeps")[0] + STUCK + "def test_last(): pass\n")
    done = run(tmp_path, "--numprocesses", "1")
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout
    assert "crashed while running" in done.stdout

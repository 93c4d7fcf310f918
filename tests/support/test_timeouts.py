import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

HANGING = """
import subprocess, time

def test_hangs():
    child = subprocess.Popen(["sleep", "100"])
    with open("child", "w") as file:
        print(child.pid, file=file)
    time.sleep(100)
"""


@pytest.mark.integration  # starts pytest
@pytest.mark.parametrize("processes", [(), ("--numprocesses", "1")], ids=["one process", "xdist"])
def test_a_hanging_test_is_ended_with_its_children(processes, tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGING)
    options = ["-p", "tests.support.timeouts", "--timeout", "1", "--rootdir", tmp_path, *processes]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -9
    assert "test_hangs was still running after 1 s" in done.stderr
    assert 'test_hanging.py", line 8 in test_hangs' in done.stderr
    child = int((tmp_path / "child").read_text())
    command_line = Path(f"/proc/{child}/cmdline")
    assert not (command_line.exists() and command_line.read_bytes())  # a zombie's command line is empty

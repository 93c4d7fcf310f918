import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

HANGING = """
import subprocess, time

def test_hangs():
    child = subprocess.Popen(["sleep", "100"])
    print("child", child.pid)
    time.sleep(100)
"""


def test_a_hanging_test_is_ended_with_its_children(tmp_path):
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "tests.support.timeouts",
        "--timeout",
        "1",
        "--rootdir",
        tmp_path,
    ]
    done = subprocess.run(
        [*command, tmp_path], cwd=ROOT, start_new_session=True, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -9
    assert "test_hangs was still running after 1 s" in done.stderr
    assert 'test_hanging.py", line 7 in test_hangs' in done.stderr
    child = int(done.stdout.partition("child ")[2].split()[0])
    command_line = Path(f"/proc/{child}/cmdline")
    assert not (command_line.exists() and command_line.read_bytes())  # a zombie's command line is empty

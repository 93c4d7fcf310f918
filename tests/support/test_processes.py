import os
import subprocess
import sys

import pytest

from tests.support import ROOT

SCRIPT = """
import os, time
from tests.support import processes

processes._SERVER.set_forkserver_preload([])
processes.SERVER_STOPS_SECONDS = 1
child = processes._SERVER.Process(target=abs, args=(1,))
child.start()
child.join()
if os.fork() == 0:  # keeps the server's pipe open
    time.sleep(100)
else:
    processes.stop_server()
    processes.kill_left_processes()
"""


@pytest.mark.integration  # starts a command
def test_the_server_stops_although_a_process_is_left(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("if __name__ == '__main__':" + SCRIPT.replace("\n", "\n    "))
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("killed, as a test left it: ") == 1

"""The fused attention kernel: its tests in Triton's interpreter, in a process of their own."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT


@pytest.mark.integration
@pytest.mark.parametrize("selection", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_in_the_interpreter(selection):
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", selection]
    done = subprocess.run(
        [*command, str(ROOT / "tests/core/interpreted_kernels.py")],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]

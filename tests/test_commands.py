"""Conventions that all programs in scripts/ and preprocess/ follow."""

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

HELP = """
import contextlib, importlib.abc, io, runpy, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "matplotlib", "torch", "transformers"):
            raise ModuleNotFoundError(f"help imports {name}")

sys.meta_path.insert(0, Refuse())
for program in sys.argv[1:]:
    sys.argv, printed = [program, "--help"], io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{program}: {end.code}"
    assert printed.getvalue().startswith("usage: "), program
    print(program)
"""
LEFT_OUT = ("fuzz.py", "golden_probe.py")
"""The fuzzer must instrument imports before anything else; only golden.py runs the probe."""
PROGRAMS = [
    path for path in sorted((*ROOT.glob("scripts/*.py"), *ROOT.glob("preprocess/*/*.py"))) if path.name not in LEFT_OUT
]


def test_help_imports_neither_torch_nor_fairseq():
    """These imports take many seconds on a loaded machine, during which nothing is printed."""
    done = subprocess.run([sys.executable, "-c", HELP, *PROGRAMS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(PROGRAMS) > 20


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_errors_end_with_a_message(path):
    if path.name != "golden.py":  # it imports nothing from this package
        assert re.search(r'^if __name__ == "__main__":\n    with errors_end_the_program\(\):\n', path.read_text(), re.M)

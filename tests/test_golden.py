"""Functions of scripts/golden.py, without the programs that it runs."""

import runpy
import subprocess
import sys

import torch

from tests.support import ROOT

SCRIPT = ROOT / "scripts/golden.py"


def test_differences_name_items():
    differences = runpy.run_path(str(SCRIPT))["differences"]
    assert differences({"loss": ["1.5"], "weight": "ab"}, {"loss": ["1.5"], "weight": "ab"}) == []
    names = differences({"loss": ["1.5"], "weight": "ab", "ids": []}, {"loss": ["1.6"], "weight": "ab", "bias": "c"})
    assert names == ["loss", "ids (only in the first)", "bias (only in the second)"]
    assert differences({"adapt: start.json": "a", "adapt: results.json eval": "1"}, {}) == [
        "adapt: results.json eval (only in the first)"
    ]


def test_an_environment_imports_the_checkout_and_nothing_else_of_this_one(tmp_path):
    package = tmp_path / "checkout/mae_lm_fairseq"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    python = runpy.run_path(str(SCRIPT))["make_environment"](tmp_path / "environment", package.parent)
    code = "import importlib.util as u; print(*(u.find_spec(x).origin for x in ('mae_lm_fairseq', 'torch')), sep='\\n')"
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(package / "__init__.py"), torch.__file__]


def test_a_bad_revision_is_an_error():
    done = subprocess.run([sys.executable, SCRIPT, "no-such-revision", "HEAD"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: no-such-revision is not a commit of ")
    assert done.stderr.count("\n") == 1

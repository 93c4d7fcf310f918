"""Imports of ``core`` without fairseq and transformers."""

import subprocess
import sys

BLOCKED = """
import importlib, importlib.abc, pkgutil, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "transformers"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "fairseq" else found(name, package)
import mae_lm_fairseq.core as core
names = [module.name for module in pkgutil.iter_modules(core.__path__)]
for name in names:
    importlib.import_module(f"mae_lm_fairseq.core.{name}")
print(len(names))
"""


def test_core_imports_without_fairseq_and_transformers():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 9

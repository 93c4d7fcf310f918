"""Masked language models that never show ``[MASK]`` to the encoder, as a fairseq extension.

``--user-dir`` or an import loads this module. Where fairseq is installed, that registers the package's models, tasks
and criterions and cures fairseq's quirks; where it is not, ``mae_lm_fairseq.core`` and the rest of the package that
does without fairseq stay importable.
"""

import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path

from .errors import UserError

__all__ = ["PACKAGE", "MAELMModel"]

PACKAGE = Path(__file__).resolve().parent
"""The directory for fairseq's ``--user-dir``."""

_PUBLIC = {"MAELMModel": "mae_lm_fairseq.models.mae_lm"}


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def _register() -> None:
    """Imports every model, task, criterion and optimizer of ours, which registers them.

    fairseq's ``--user-dir`` would import ``tasks/`` and ``models/`` itself, but neither ``criterions/`` nor ``optim/``,
    and nothing at all when the package was imported before. A module that registers a class does it under its own name.
    """
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    from mae_lm_fairseq import checkpoints, compat, divergence

    for module in (compat, checkpoints, divergence):
        module.apply()
    for kind, registry in (
        ("models", MODEL_REGISTRY),
        ("tasks", TASK_REGISTRY),
        ("criterions", CRITERION_REGISTRY),
        ("optim", OPTIMIZER_REGISTRY),
    ):
        package = importlib.import_module(f"{__name__}.{kind}")
        for _, name, _ in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{name}")
            # For a name that is taken fairseq hands back the other class, without a word.
            if name in registry and registry[name].__module__ != module.__name__:
                raise UserError(f"{registry[name].__module__} has taken the name {name}, which {module.__name__} needs")


if __name__ != "mae_lm_fairseq":
    raise UserError(f"--user-dir must end in mae_lm_fairseq: this package cannot be loaded as {__name__}")
# The doctor has to speak where fairseq is there and cannot be imported.
_IS_DOCTOR = sys.argv[:1] == ["-m"] and "mae_lm_fairseq.doctor" in sys.orig_argv
if importlib.util.find_spec("fairseq") is not None and not _IS_DOCTOR:
    _register()

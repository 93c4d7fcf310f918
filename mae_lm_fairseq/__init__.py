"""Masked language models that never show ``[MASK]`` to the encoder, as a fairseq extension.

fairseq finds the models, tasks, criterions and optimizers of this package once :func:`register` has been called.
Importing the package calls it where fairseq has been imported already, so ``fairseq-train --user-dir`` and
``import fairseq, mae_lm_fairseq`` need nothing more; so does the first use of a public name that needs fairseq. Where
the package comes first, as in ``import mae_lm_fairseq.core, fairseq``, call it yourself: fairseq does not look for the
tasks and models of a ``--user-dir`` that is in ``sys.modules``. Otherwise fairseq stays out of the process.
"""

import contextlib
import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq.errors import UserError

__all__ = ["PACKAGE", "MAELMModel", "register"]

PACKAGE = Path(__file__).resolve().parent
"""The directory for fairseq's ``--user-dir``."""

_PUBLIC = {"MAELMModel": "mae_lm_fairseq.models.mae_lm"}
_registered = False


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    register()
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def register() -> None:
    """Register the models, tasks, criterions and optimizers with fairseq, and patch fairseq.

    A second call returns at once.

    Raises:
        ImportError: fairseq is missing or broken.
        UserError: another package has registered one of the names.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        with _root_logger_unchanged():
            _patch_fairseq()
            _import_plugins()
    except BaseException:
        _registered = False
        raise


@contextlib.contextmanager
def _root_logger_unchanged() -> Iterator[None]:
    """One of fairseq's tasks sets the root logger to DEBUG when it is imported, which reaches the whole program."""
    level, handlers = logging.root.level, logging.root.handlers.copy()
    try:
        yield
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers


def _patch_fairseq() -> None:
    from mae_lm_fairseq import checkpoints, compat, divergence

    for module in (compat, checkpoints, divergence):
        module.apply()


def _import_plugins() -> None:
    """Import the modules that register a class, each under its own name.

    fairseq's ``--user-dir`` would import ``tasks/`` and ``models/`` itself, but neither ``criterions/`` nor ``optim/``.
    """
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import MODEL_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    for kind, registry in (
        ("models", MODEL_REGISTRY),
        ("tasks", TASK_REGISTRY),
        ("criterions", CRITERION_REGISTRY),
        ("optim", OPTIMIZER_REGISTRY),
    ):
        package = importlib.import_module(f"{__name__}.{kind}")
        for _, name, _ in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{name}")
            # For a name that is taken fairseq returns the other class without a warning.
            if name in registry and registry[name].__module__ != module.__name__:
                raise UserError(f"{registry[name].__module__} has taken the name {name}, which {module.__name__} needs")


if __name__ != "mae_lm_fairseq":
    raise UserError(f"--user-dir must end in mae_lm_fairseq: this package cannot be loaded as {__name__}")
if "fairseq" in sys.modules:
    register()

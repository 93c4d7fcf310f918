"""Masked language models whose encoder never sees ``[MASK]``, as a fairseq extension.

fairseq finds the models, tasks, criterions and optimizers of this package once :func:`register` has been called. It is
called when this package is imported after fairseq (``fairseq-train --user-dir``, ``import fairseq, mae_lm_fairseq``),
and when a public name that needs fairseq is first used. If this package is imported first, as in ``import
mae_lm_fairseq.core, fairseq``, call it yourself: fairseq does not load the tasks and models of a ``--user-dir`` that is
already in ``sys.modules``. Otherwise, importing this package does not import fairseq.
"""

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

if __name__ != "mae_lm_fairseq":  # the imports below would find another copy of the package, or fail
    raise SystemExit(f"error: --user-dir must end in mae_lm_fairseq: this package cannot be loaded as {__name__}")

from mae_lm_fairseq import fairseq_patches
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program

__all__ = ["PACKAGE", "MAELMModel", "load", "register"]

PACKAGE = Path(__file__).resolve().parent
"""Directory to pass to fairseq's ``--user-dir``."""

_PLUGINS = {
    "fairseq.models.MODEL_REGISTRY": {"mae_lm": "models.mae_lm"},
    "fairseq.tasks.TASK_REGISTRY": {
        "masked_autoencoder_lm": "tasks.masked_autoencoder_lm",
        "question_answering": "tasks.squad",
        "token_classification": "tasks.tagging",
    },
    "fairseq.criterions.CRITERION_REGISTRY": {
        "masked_autoencoder_lm": "criterions.masked_autoencoder_lm",
        "question_answering": "tasks.squad",
        "token_classification": "tasks.tagging",
    },
    "fairseq.optim.OPTIMIZER_REGISTRY": {"fused_adamw": "optim.fused_adamw"},
}
"""For each registry of fairseq, the names that this package adds and the modules that register them."""
_registered = False


def __getattr__(name: str):
    if name == "load":
        return importlib.import_module("mae_lm_fairseq.trained.hub").load
    if name == "MAELMModel":
        register()
        return importlib.import_module("mae_lm_fairseq.models.mae_lm").MAELMModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Register the models, tasks, criterions and optimizers with fairseq, and patch fairseq.

    Calling it again has no effect.

    Raises:
        ImportError: if fairseq is missing or broken.
        UserError: if another package has registered one of the names.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        with _root_logger_unchanged():
            fairseq_patches.apply()
            _import_plugins()
            _add_from_pretrained()
    except BaseException:
        _registered = False
        raise


@contextlib.contextmanager
def _root_logger_unchanged() -> Iterator[None]:
    """Restore the root logger's level and handlers when the block ends.

    One of fairseq's tasks sets it to DEBUG on import, which affects the whole program.
    """
    level, handlers = logging.root.level, logging.root.handlers.copy()
    try:
        yield
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers


def _import_plugins() -> None:
    """Import the modules that register a class.

    fairseq's ``--user-dir`` imports ``tasks/`` and ``models/`` only.
    """
    for path, plugins in _PLUGINS.items():
        package, registry_name = path.rsplit(".", 1)
        registry = getattr(importlib.import_module(package), registry_name)
        for name, module_name in plugins.items():
            module = importlib.import_module(f"{__name__}.{module_name}")
            # If the name is already registered, fairseq keeps the other class without a warning.
            if name in registry and registry[name].__module__ != module.__name__:
                raise UserError(
                    f"{registry[name].__module__} has already registered the name {name}, which {module.__name__} "
                    "needs; use only one of the two"
                )


def _add_from_pretrained() -> None:
    """Give the model its class method, which needs modules above the model's."""
    model_type = importlib.import_module("mae_lm_fairseq.models.mae_lm").MAELMModel
    model_type.from_pretrained = classmethod(importlib.import_module("mae_lm_fairseq.trained.hub").from_pretrained)


def _is_loaded_by_user_dir() -> bool:
    """Return whether one of fairseq's programs is importing this package for ``--user-dir``."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "import_user_module":
        frame = frame.f_back
    caller = "" if frame is None else frame.f_back.f_globals["__name__"]
    return caller.startswith(("fairseq.options", "fairseq_cli.")) or caller == "__main__"


if _is_loaded_by_user_dir():
    with errors_end_the_program():
        register()
elif sys.modules.get("fairseq"):  # None hides a package
    register()

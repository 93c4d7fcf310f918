"""How this package imports ``transformers`` and reads its directories: as data, from which no code runs."""

import importlib
import sys
from types import ModuleType
from typing import Any

AS_DATA = {"local_files_only": True, "trust_remote_code": False}
"""Options of ``from_pretrained``, which otherwise asks whether to run code from the directory."""
_FETCHES_CODE = {
    f"{prefix}{part}_implementation{suffix}"
    for part in ("attn", "experts")
    for prefix, suffix in (("", ""), ("_", ""), ("_", "_internal"))
}


def import_transformers() -> ModuleType:
    """Return the module ``transformers``, an optional requirement, which is imported where it is used."""
    hide_broken_torchaudio()
    return importlib.import_module("transformers")


def hide_broken_torchaudio() -> None:
    """Make an installed torchaudio look absent if importing it fails.

    fairseq requires torchaudio for its speech code, and pip may install one that was built for another torch.
    transformers imports every torchaudio that it finds, and then none of its models can be loaded.
    """
    try:
        importlib.import_module("torchaudio")
    except Exception:  # it is missing, or an OSError or RuntimeError from its compiled library, among others
        sys.modules["torchaudio"] = None  # importlib finds no spec for such a module


def without_kernels(config: Any) -> Any:
    """Return JSON of a configuration without the keys, at any depth, that make ``transformers`` load compiled kernels.

    It looks for a kernel that is not installed on the hub and imports what it finds.
    """
    if isinstance(config, dict):
        return {name: without_kernels(value) for name, value in config.items() if name not in _FETCHES_CODE}
    return [without_kernels(value) for value in config] if isinstance(config, list) else config

"""How this package imports ``transformers`` and reads its directories: as data, from which no code runs."""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

AS_DATA = {"local_files_only": True, "trust_remote_code": False}
"""Options of ``from_pretrained``, which otherwise asks whether to run code from the directory."""
TOKENIZER_CONFIG = "tokenizer_config.json"
_KERNELS = {
    f"{prefix}{part}_implementation{suffix}"
    for part in ("attn", "experts")
    for prefix, suffix in (("", ""), ("_", ""), ("_", "_internal"))
}
_CODE = _KERNELS | {
    *("auto_map", "custom_generate", "custom_pipelines", "trust_remote_code", "code_revision"),
    *("attribute_map", "sub_configs", "sub_configs_defaults"),  # other names for the keys above
    *("use_kernels", "kernel_config", "allow_all_kernels"),
    *("quantization_config", "compression_config"),  # some quantizers load kernels of the hub
    *("transformers_weights", "init_inputs"),
    # Options of from_pretrained in sentence-transformers.
    *(f"{part}_{kind}" for part in ("model", "config", "tokenizer", "processor") for kind in ("args", "kwargs")),
}
"""Keys by which ``transformers`` or ``sentence-transformers`` import code, load kernels, or read another file."""


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


def configuration_of(values: Mapping[str, Any]) -> Any:
    """Return the configuration of ``transformers`` for the content of a ``config.json``.

    Raises:
        ValueError: if ``transformers`` does not take a value.
    """
    kept = without_code(dict(values))
    with configuration_errors():
        return import_transformers().AutoConfig.for_model(kept.pop("model_type"), **kept)


@contextlib.contextmanager
def configuration_errors() -> Iterator[None]:
    """Convert what ``transformers`` raises in the ``with`` block about the values of a configuration.

    Raises:
        ValueError: in place of any other exception; it has its message.
        ImportError, MemoryError: which no value is to blame for.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # its validation and its networks raise many types
        problem = " ".join(str(error).split())
        message = f"transformers does not take its configuration ({type(error).__name__}: {problem:.200})"
        raise ValueError(message) from error


def without_code(content: Any) -> Any:
    """Return JSON of a configuration without the keys, at any depth, that lead to code or to other files.

    ``transformers`` looks for a kernel that is not installed on the hub, and imports what it finds. Networks are
    computed without these keys, so that files of real models, which have some of them, can be read.
    """
    if isinstance(content, dict):
        return {name: without_code(value) for name, value in content.items() if name not in _CODE}
    if isinstance(content, list):
        return list(map(without_code, content))
    return content


def file_without_code(name: str, content: bytes) -> bytes:
    """Return a JSON file of ``transformers`` after :func:`without_code`; its very bytes if nothing is dropped.

    Of the configuration of a tokenizer, names of files are dropped as well: it would read them wherever they are.
    Content that is not JSON is returned as it is, and found to be damaged where it is used.
    """
    try:
        parsed = json.loads(content)
        kept = without_code(parsed)
    except (ValueError, RecursionError):
        return content
    if name == TOKENIZER_CONFIG and isinstance(kept, dict):
        kept = {key: value for key, value in kept.items() if not key.endswith("_file")}
    if kept == parsed:
        return content
    return (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode()

"""Loading of ``transformers`` directories that neither runs nor fetches code."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from mae_lm_fairseq.checkpoints.original import CONFIG
from mae_lm_fairseq.huggingface.weight_files import STOCK_WEIGHTS, read_weights

AS_DATA = {"local_files_only": True, "trust_remote_code": False}
"""Options of ``from_pretrained``, which otherwise asks whether to run code from the directory."""
_FETCHES_CODE = {
    f"{prefix}{part}_implementation{suffix}"
    for part in ("attn", "experts")
    for prefix, suffix in (("", ""), ("_", ""), ("_", "_internal"))
}


def without_kernels(config: Any) -> Any:
    """Return JSON of a configuration without the keys, at any depth, that make ``transformers`` load compiled kernels.

    It looks for a kernel that is not installed on the hub and imports what it finds.
    """
    if isinstance(config, dict):
        return {name: without_kernels(value) for name, value in config.items() if name not in _FETCHES_CODE}
    return [without_kernels(value) for value in config] if isinstance(config, list) else config


def load_config(directory: Path) -> PreTrainedConfig:
    """Return the configuration in a directory, see :func:`without_kernels`.

    Raises:
        OSError, ValueError: if the file cannot be read, or ``transformers`` does not know the type of the model.
    """
    content = without_kernels(json.loads((directory / CONFIG).read_bytes()))
    return AutoConfig.for_model(content["model_type"]).from_dict(content, name_or_path=str(directory))


def weights_as_data(directory: Path) -> dict[str, bool]:
    """Return the options of ``from_pretrained`` for weights that run no code: safetensors, or else a checked pickle.

    Raises:
        UserError: if the directory has neither, or the pickle is damaged or could run code.
    """
    is_safe = any(directory.glob(f"{STOCK_WEIGHTS}*"))
    if not is_safe:
        read_weights(directory)
    return AS_DATA | {"use_safetensors": is_safe}

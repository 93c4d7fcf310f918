"""Reading of ``transformers`` directories as data: the configuration, and weights in one file or several.

Nothing that is read runs or fetches code; pickles are read as data. An index cannot name files outside of the
directory.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mae_lm_fairseq.text.hugging_face_tokenizer import library_errors
from mae_lm_fairseq.trained.checkpoint_file import load_safetensors, pickle_errors, refuse_code
from mae_lm_fairseq.trained.validation import is_plain
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import check_link, read_json

STOCK_WEIGHTS, STOCK_PICKLE = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"


def read_weights(directory: Path) -> dict[str, Tensor]:
    """Return the weights in a directory by name, in float32.

    Raises:
        UserError: if files are missing or damaged, could run code, or are not in the directory.
        KeyError: if one of several files lacks a weight.
    """
    for name in (STOCK_WEIGHTS, STOCK_PICKLE):
        path, index = directory / name, directory / f"{name}{_INDEX}"
        if path.exists():
            return _read_file(path)
        if index.exists():
            return _read_shards(index)
    raise UserError(f"{directory} has neither {STOCK_WEIGHTS} nor {STOCK_PICKLE}, nor the {_INDEX} of one")


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        weights = load_safetensors(path, "restore it")
    else:
        with pickle_errors(path, str(path), "damaged, or not a file of weights"):
            weights = torch.load(path, map_location="cpu", weights_only=True)
    return floats(weights, path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    def files_in(content: dict) -> dict[str, Path]:
        return {weight: _beside(index, name) for weight, name in content["weight_map"].items()}

    paths = read_json(index, files_in, "restore it")
    shards = {path: _read_file(path) for path in set(paths.values())}
    return {weight: shards[path][weight] for weight, path in paths.items()}


def _beside(index: Path, name: str) -> Path:
    path = index.parent / name
    if path.name != name or path.suffix not in (".safetensors", ".bin"):
        raise ValueError(f"{name!r} is not the name of a file of weights in the same directory")
    check_link(path)
    return path


def floats(weights: Any, path: Path) -> dict[str, Tensor]:
    """Return weights in float32.

    Raises:
        UserError: if they are not tensors by name.
    """
    other = UserError(f"{path} holds something else than weights")
    if not isinstance(weights, Mapping):
        raise other
    for name, weight in weights.items():
        if not isinstance(name, str) or not is_plain(weight):
            raise other
    return {name: weight.float() for name, weight in weights.items()}


@contextlib.contextmanager
def transformers_errors(directory: Path) -> Iterator[None]:
    """Convert any exception from ``transformers`` in the ``with`` block to a short error message.

    Raises:
        UserError: if the block raises an exception.
    """
    with library_errors(f"{directory}: transformers cannot load it"):
        try:
            yield
        except Exception as error:
            refuse_code(directory, error)  # torch's message advises disabling the protection
            raise

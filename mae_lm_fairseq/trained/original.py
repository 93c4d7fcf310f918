"""The parts of an imported ``transformers`` model that its bundle keeps unchanged.

These are its configuration and tokenizer, its pooling for ``sentence-transformers``, and the weights that our network
has no place for. ``mae-lm export`` writes them back.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mae_lm_fairseq.trained.checkpoint_file import load_safetensors, save_safetensors
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import check_link, read_bytes, read_json, write_bytes
from mae_lm_fairseq.utils.hugging_face import TOKENIZER_CONFIG, file_without_code, without_code

ORIGINAL, KEPT_WEIGHTS = "original", "kept.safetensors"
"""Folder in a bundle, and the file of weights in it."""
CONFIG = "config.json"
"""Configuration of a model, in a bundle and in a directory of ``transformers``."""
STOCK_FILES = (
    CONFIG,
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
)
"""Files that are kept: the configuration, and what a tokenizer may consist of."""
MODULES, POOLING, LENGTH = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
"""Files of ``sentence-transformers``: the modules of a model, its pooling, and the length at which texts are cut."""
SENTENCE_FILES = (MODULES, POOLING, LENGTH, "config_sentence_transformers.json")
ANY_FOLDER = "*"
_KEPT_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": ANY_FOLDER}
"""Folders of the modules that are kept; normalisation has no files."""


@dataclass(frozen=True)
class Original:
    """Parts of an imported model that are kept unchanged.

    Attributes:
        files: content of files by name, ``config.json`` among them.
        weights: float32 weights by their names in ``transformers``: pooler, token types, position embeddings.
    """

    files: Mapping[str, bytes]
    weights: Mapping[str, Tensor]

    def write(self, bundle: Path):
        """Write the folder of a bundle."""
        directory = bundle / ORIGINAL
        directory.mkdir()
        for name, content in self.files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            write_bytes(directory / name, content)
        weights = {name: weight.contiguous() for name, weight in self.weights.items()}
        save_safetensors(weights, directory / KEPT_WEIGHTS)


def stock_files(directory: Path) -> dict[str, bytes]:
    """Return the content of those of :data:`STOCK_FILES` that a directory has, and perhaps :data:`SENTENCE_FILES`.

    Configurations are without the keys that lead to code, see
    :func:`~mae_lm_fairseq.utils.hugging_face.without_code`.

    Raises:
        UserError: if one cannot be read, or is a link to another directory.
    """
    modules, lost = sentence_modules(directory)
    pools = bool(modules) and (not lost or any(module["type"].endswith(".Pooling") for module in modules))
    found = [name for name in (*STOCK_FILES, *SENTENCE_FILES * pools) if (directory / name).exists()]
    for name in found:
        check_link(directory / Path(name).parts[0])
        check_link(directory / name)
    contents = {name: _without_code(name, read_bytes(directory / name)) for name in found}
    if pools and lost:
        contents[MODULES] = json.dumps(without_code(modules), indent=2).encode()
    return contents


def _without_code(name: str, content: bytes) -> bytes:
    is_configuration = name in (CONFIG, TOKENIZER_CONFIG, *SENTENCE_FILES)
    return file_without_code(name, content) if is_configuration else content


def sentence_modules(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the modules of a sentence encoder that can be kept, and the folders and types of its others.

    The encoder itself, its pooling and normalisation are kept. Others have weights or code of their own. Both lists are
    empty for a directory without ``modules.json``.

    Raises:
        UserError: if the file is damaged.
    """
    if not (directory / MODULES).exists():
        return [], []
    kept, lost = [], []
    for module in read_json(directory / MODULES, _checked_modules, "restore it"):
        package, _, kind = module["type"].partition(".")
        folder = _KEPT_MODULES.get(kind.rpartition(".")[2])
        if package == "sentence_transformers" and folder in (module["path"], ANY_FOLDER):
            kept.append(module)
        else:
            lost.append(f"{module['path']} ({module['type']})")
    return kept, lost


def _checked_modules(modules: list[dict[str, str]]) -> list[dict[str, str]]:
    for module in modules:
        if not (isinstance(module["path"], str) and isinstance(module["type"], str)):
            raise ValueError("a module has no path or type")
    return modules


def read_original(bundle: Path) -> Original | None:
    """Return what a bundle has kept; None if it was not imported from ``transformers``.

    Raises:
        UserError: if a file is damaged or missing, or a link.
    """
    directory = bundle / ORIGINAL
    if not directory.exists():
        return None
    for path in (directory, directory / KEPT_WEIGHTS):
        check_link(path)
    weights, files = load_safetensors(directory / KEPT_WEIGHTS, "import the model again"), stock_files(directory)
    if CONFIG not in files:
        raise UserError(f"{directory / CONFIG} is missing; import the model again")
    return Original(files, weights)

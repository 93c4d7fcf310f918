"""The parts of an imported ``transformers`` model that its bundle keeps unchanged.

These are its configuration and tokenizer, its pooling for ``sentence-transformers``, and the weights that our network
has no place for. ``mae-lm export`` writes them back.
"""

import json
import re
from collections.abc import Mapping, Sequence
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
    "spm.model",
    "sentencepiece.model",
    "tokenizer.model",
)
"""Files that are kept: the configuration, and what a tokenizer may consist of."""
MODULES, LENGTH, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
"""Files of ``sentence-transformers``: the modules of a model, the length at which texts are cut, and prompts."""
SENTENCE_FILES = (
    MODULES,
    PROMPTS,
    LENGTH,
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "albert")),
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""Files of ``sentence-transformers`` beside the weights; older versions named that of the length after the encoder."""
ENCODER, POOLING, NORMALIZE = "Transformer", "Pooling", "Normalize"
"""Types of the modules that are kept. The encoder's files are in the directory itself, others in folders."""


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
        write_files(self.files, directory)
        weights = {name: weight.contiguous() for name, weight in self.weights.items()}
        save_safetensors(weights, directory / KEPT_WEIGHTS)


def write_files(files: Mapping[str, bytes], directory: Path):
    """Write files by name, some of them into folders of the directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, content)


def stock_files(directory: Path) -> dict[str, bytes]:
    """Return the content of those of :data:`STOCK_FILES` that a directory has, and of its modules that are kept.

    Configurations are without the keys that lead to code, see
    :func:`~mae_lm_fairseq.utils.hugging_face.without_code`.

    Raises:
        UserError: if one cannot be read, or is a link to another directory.
    """
    modules, lost = sentence_modules(directory)
    names = [*STOCK_FILES, *SENTENCE_FILES] if modules else STOCK_FILES
    names = [name for name in names if (directory / name).exists()]
    contents = {}
    for name in (*names, *_files_of(modules, directory)):
        path = directory / name
        check_link(directory / Path(name).parts[0])
        check_link(path)
        contents[name] = _without_code(name, read_bytes(path))
    if modules and lost:
        contents[MODULES] = json.dumps(without_code(modules), indent=2).encode()
    return contents


def _files_of(modules: Sequence[Mapping[str, Any]], directory: Path) -> list[str]:
    """Return the names of the configurations of modules; normalisation may have none."""
    names = []
    for module in modules:
        name = f"{module['path']}/{CONFIG}"
        is_needed = _kind(module) == POOLING or (directory / name).exists()
        if module["path"] and is_needed:
            names.append(name)
    return names


def _without_code(name: str, content: bytes) -> bytes:
    if Path(name).name == CONFIG or name in (TOKENIZER_CONFIG, *SENTENCE_FILES):
        return file_without_code(name, content)
    return content


def sentence_modules(directory: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the modules of a sentence encoder that can be kept, and the folders and types of its others.

    The encoder itself, pooling and normalisation are kept. Others have weights or code of their own. If the encoder is
    among them, or the only pooling, none is kept. Both lists are empty for a directory without ``modules.json``.

    Raises:
        UserError: if the file is damaged.
    """
    if not (directory / MODULES).exists():
        return [], []
    modules = read_json(directory / MODULES, _checked_modules, "restore it")
    kept = [module for module in modules if _can_be_kept(module)]
    kinds = [_kind(module) for module in kept]
    is_pooling_lost = kept != modules and POOLING not in kinds
    if ENCODER not in kinds or is_pooling_lost:
        kept = []
    lost = []
    for module in modules:
        is_encoder = _kind(module) == ENCODER and _can_be_kept(module)
        if module not in kept and not is_encoder:
            lost.append(f"{module['path']} ({module['type']})".strip())
    return kept, lost


def lost_settings(directory: Path) -> list[str]:
    """Return the names of the files of a sentence encoder that are not kept, and of their settings that are not."""
    modules, _ = sentence_modules(directory)
    names = [name for name in SENTENCE_FILES if name != MODULES and (directory / name).exists()]
    if not modules:
        return names
    lost = []
    for name in (*names, *_files_of(modules, directory)):
        content = read_json(directory / name, dict, "restore it")
        dropped = content.keys() - without_code(content)
        lost += [f"{name}: {key}" for key in dropped if content[key]]
    return sorted(lost)


def _can_be_kept(module: Mapping[str, Any]) -> bool:
    kind = _kind(module)
    if not module["type"].startswith("sentence_transformers."):
        return False
    if kind == ENCODER:
        return module["path"] == ""
    return kind in (POOLING, NORMALIZE) and _is_folder(module["path"])


def _kind(module: Mapping[str, Any]) -> str:
    return module["type"].rpartition(".")[2]


def _is_folder(path: str) -> bool:
    """Return whether a path names a folder directly in the directory, on any system."""
    return re.fullmatch(r"\w[\w.-]*", path) is not None


def _checked_modules(modules: list[dict[str, str]]) -> list[dict[str, str]]:
    for module in modules:
        if not isinstance(module["path"], str) or not isinstance(module["type"], str):
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
    stored = directory / KEPT_WEIGHTS
    check_link(directory)
    check_link(stored)
    weights = load_safetensors(stored, "import the model again")
    files = stock_files(directory)
    if CONFIG not in files:
        raise UserError(f"{directory / CONFIG} is missing; import the model again")
    return Original(files, weights)

"""Opening of trained models: a checkpoint, a bundle or a directory of transformers, with or without its weights."""

import os
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.trained.checkpoint_file import content_errors, load_as_data, opened_safetensors
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.original import CONFIG
from mae_lm_fairseq.trained.reading import (
    WEIGHTS,
    Pretrained,
    check_bundle,
    check_model_exists,
    info_of,
    read_bundle,
    read_checkpoint,
    read_description,
    transformers_type,
)
from mae_lm_fairseq.trained.validation import head_names, saved_config
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256
from mae_lm_fairseq.utils.typed import typed


@dataclass(frozen=True)
class Description:
    """A model without its weights.

    Attributes:
        path: the checkpoint, or the directory of the bundle; None for random weights.
        heads: names of the fine-tuned heads; empty for a pretrained model.
        sha256: hash of the checkpoint, or of the bundle's weights; None for random weights.
    """

    path: Path | None
    config: MaskedAutoencoderConfig
    about: ModelInfo
    heads: tuple[str, ...] = ()
    sha256: str | None = None


def open_pretrained(
    path: str | Path, data_bin: str | Path | None = None, ema: bool = False, seed: int = 1
) -> Pretrained:
    """Open a trained model.

    Args:
        path: a checkpoint of fairseq-train; a bundle; or a directory of ``transformers``, which is imported.
        data_bin: for a checkpoint, the directory of its dictionary and tokenizer.
        ema: for a checkpoint, use the moving average of the weights.
        seed: seed of weights that a directory of ``transformers`` lacks.

    Raises:
        UserError: if a file is missing, damaged, could run code, or does not match the others; or if an argument does
            not apply.
    """
    path = Path(path)
    check_model_exists(path, is_file=data_bin is not None)
    if not os.path.isdir(path):  # Path.is_dir raises for names that are too long
        return read_checkpoint(path, data_bin, ema)
    if not os.path.exists(path / CONFIG):
        raise UserError(
            f"{path} is a directory without {CONFIG}, so no bundle; name a checkpoint in it, and its data-bin"
        )
    if ema:
        raise UserError(f"--ema is for checkpoints of fairseq-train; {path} is a directory, which has no EMA weights")
    if data_bin is not None:
        raise UserError(f"{path} is a directory, which contains its dictionary; do not give a data-bin")
    if transformers_type(path):
        return import_foreign(path, "mae_lm_roberta", seed=seed)
    return read_bundle(path)


def describe(path: str | Path) -> Description:
    """Describe a checkpoint or a bundle.

    The weights are not loaded. Those of a bundle are compared with their hash.

    Raises:
        UserError: if the file is missing, damaged, or from another model.
    """
    path = Path(path)
    check_model_exists(path)
    if os.path.isdir(path):
        return _describe_bundle(path)
    return _describe_checkpoint(path)


def describe_random(architecture: str) -> Description:
    """Describe an architecture with random weights."""
    return Description(None, preset_config(*ARCHITECTURES[architecture]), ModelInfo(architecture=architecture))


def _describe_checkpoint(path: Path) -> Description:
    state = load_as_data(path, mapped=True)
    with content_errors(path):
        config = saved_config(state)
        heads = tuple(head_names(state["model"]))
        about = typed(info_of(state), ModelInfo)
    return Description(path.resolve(), config, about, heads, file_sha256(path))


def _describe_bundle(path: Path) -> Description:
    hashes = check_bundle(path)
    config, about = read_description(path)
    weights = path / WEIGHTS
    with opened_safetensors(weights, "create the bundle again") as file:
        heads = tuple(head_names(file.keys()))
    return Description(path.resolve(), config, about, heads, hashes.get(WEIGHTS) or file_sha256(weights))

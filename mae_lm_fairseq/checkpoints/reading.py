"""Reading of pretrained networks, from a fairseq checkpoint with its data-bin or from a bundle.

Nothing that is read can run code, and everything is validated before a network is built.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from mae_lm_fairseq.checkpoints.averaging import check_file, read_ema
from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data, value_at
from mae_lm_fairseq.checkpoints.info import AnswerTask, ModelInfo, WordTask
from mae_lm_fairseq.checkpoints.original import CONFIG, Original, read_original
from mae_lm_fairseq.checkpoints.token_order import token_order
from mae_lm_fairseq.checkpoints.validation import (
    HEADS,
    PAD,
    WORD_HEAD,
    check_fit,
    head_names,
    network_config,
    saved_config,
    skeleton,
    tied_names,
)
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.text.data_bin import DICTIONARY, TASK, check_dictionary, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, current_versions
from mae_lm_fairseq.text.tokenizer import MASK, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json

ALIGNMENT = 64
"""Alignment of torch's tensors in bytes. Most weights in a bundle have it, too."""
WEIGHTS = "model.safetensors"
"""Weights of a bundle. Dictionary and tokenizer have the same names as in a data-bin."""
MODEL_TYPE = "mae_lm"
"""Type of the model in ``config.json``, for ``transformers``."""


@dataclass(frozen=True)
class Pretrained:
    """Everything needed to use a pretrained or fine-tuned network.

    Attributes:
        config: configuration of the network. It includes the decoder, even if fine-tuning has dropped it.
        weights: weights by the names of ``MAELMModel.state_dict()``: ``autoencoder.encoder...``,
            ``autoencoder.decoder...``, ``autoencoder.lm_head...``, and those of heads, such as
            ``classification_heads.NAME...``. A tied weight is listed under all of its names. All have the precision
            that they were saved in. After fine-tuning, decoder and language model head are missing.
        symbols: the dictionary in the order of ids, from ``<s> <pad> </s> <unk>`` to ``<mask>``.
        tokenizer: the tokenizer, or None.
        about: facts about its training.
        original: what an import has kept for the export; None for a model of this package.
    """

    config: MaskedAutoencoderConfig
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    tokenizer: Tokenizer | None
    about: ModelInfo
    original: Original | None = None

    @property
    def pad(self) -> int:
        """Id of ``<pad>``."""
        return PAD

    @property
    def mask(self) -> int:
        """Id of ``<mask>``."""
        return len(self.symbols) - 1

    @property
    def mask_in_encoder(self) -> float:
        """Value of ``--mask-in-encoder`` in pretraining; 0 if unknown, as after fine-tuning."""
        return self.about.mask_in_encoder or 0.0


def read(path: str | Path, data_bin: str | Path | None = None, ema: bool = False) -> Pretrained:
    """Read a bundle, or a checkpoint with its data-bin.

    ``ema`` selects the moving average of the weights in a checkpoint.

    Raises:
        UserError: see :func:`read_bundle` and :func:`read_checkpoint`.
    """
    if os.path.isdir(path):
        if ema:
            check_file(path)
        if data_bin is not None:
            raise UserError(f"{path} is a bundle, which contains its dictionary; do not give a data-bin")
        return read_bundle(path)
    if data_bin is None and not os.path.exists(path):
        raise UserError(f"{path}: no such file or directory")
    return read_checkpoint(path, data_bin, ema)


def read_checkpoint(path: str | Path, data_bin: str | Path | None = None, ema: bool = False) -> Pretrained:
    """Read a checkpoint of fairseq-train, and dictionary and tokenizer from the data-bin.

    ``ema`` selects the moving average of the weights.

    Raises:
        UserError: if a file is missing, damaged, could run code, or does not match the others.
    """
    if data_bin is None:
        raise UserError(f"{path} is not a bundle; give its data-bin, with dict.txt and the tokenizer, too")
    state = read_ema(path) if ema else load_as_data(path)
    config, weights = saved_config(state, path), state["model"]
    symbols = read_symbols(Path(data_bin, DICTIONARY))
    check_dictionary(data_bin, symbols[:-1])
    fingerprint = dictionary_fingerprint(symbols)
    if value_at(state, "task_state", "dictionary") not in (None, fingerprint):
        raise UserError(f"{path} was trained with another dictionary than the {DICTIONARY} of {data_bin}")
    check_fit(config, weights, len(symbols), path)
    about = _info_of(state, path, data_bin) | {"dictionary_sha256": fingerprint}
    try:
        info = ModelInfo.from_json(about)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    check_task(info, weights, f"{path}, {data_bin}")
    tokenizer = find_tokenizer(data_bin)
    _check_tokenizer(symbols, tokenizer)
    return Pretrained(config, weights, symbols, tokenizer, info, read_original(Path(data_bin)))


def read_bundle(directory: str | Path) -> Pretrained:
    """Read a bundle, the directory that ``mae-lm bundle`` writes.

    Raises:
        UserError: if a file is missing, damaged, or does not match the others.
    """
    directory = Path(directory)
    if transformers_type(directory):
        raise UserError(f"{directory} is a directory of transformers; make a bundle of it with mae-lm import")
    network, info = read_json(directory / CONFIG, _description, "create the bundle again")
    config, tokenizer = network_config(network, directory / CONFIG), find_tokenizer(directory)
    symbols = read_symbols(directory / DICTIONARY)
    weights = token_order(tokenizer, len(symbols)).restored(_weights(directory / WEIGHTS))
    for name, first in tied_names(config, weights).items():
        if first in weights:
            weights.setdefault(name, weights[first])
    check_fit(config, weights, len(symbols), directory / WEIGHTS)
    check_task(info, weights, directory)
    _check_tokenizer(symbols, tokenizer)
    if tokenizer and tokenizer.has_own_order and info.dictionary_sha256 != dictionary_fingerprint(symbols):
        raise UserError(f"{directory / DICTIONARY} is not the one that the bundle was written with; restore it")
    return Pretrained(config, weights, symbols, tokenizer, info, read_original(directory))


def _description(content: dict) -> tuple[dict, ModelInfo]:
    return dict(content["network"]), ModelInfo.from_json(content.get("about", {}))


def transformers_type(path: str | Path) -> str | None:
    """Return the type of the model in a directory of ``transformers``, such as "bert"; None if it is none."""
    try:
        kind = read_json(Path(path, CONFIG), lambda content: content.get("model_type"))
    except UserError:
        return None
    return kind if isinstance(kind, str) and kind != MODEL_TYPE else None


def build(pretrained: Pretrained) -> MaskedAutoencoder:
    """Build the network for evaluation. It shares the tensors of ``pretrained``, and no weights are initialised.

    Decoder and language model head are None if ``pretrained`` has no weights for them.
    """
    network, _ = build_all(pretrained)
    return network


def build_all(pretrained: Pretrained) -> tuple[MaskedAutoencoder, nn.ModuleDict]:
    """Build the network, see :func:`build`, and the heads by name; none if the model was not fine-tuned."""
    modules = skeleton(pretrained.config, pretrained.weights, len(pretrained.symbols))
    modules.load_state_dict(pretrained.weights, assign=True)
    network, heads = modules.eval().values()
    if network.lm_head is not None and not pretrained.config.untie_output_weights:
        network.lm_head.weight = network.encoder.embed_tokens.weight
    return network, heads


def _info_of(state: dict[str, Any], path: str | Path, data_bin: str | Path) -> dict[str, Any]:
    """Return what a checkpoint and its data-bin say about the training, as for :meth:`ModelInfo.from_json`."""
    manifest, of_task = Path(data_bin, MANIFEST), partial(value_at, state, "cfg", "task")
    others = [of_task(name) for name in ("leave_unmasked_prob", "random_token_prob")]
    return {
        "architecture": state["cfg"]["model"]["_name"],
        "task": of_task("_name"),
        "updates": value_at(state, "optimizer_history", -1, "num_updates"),
        "versions": {**current_versions(), "torch": str(torch.__version__)},
        "trained_on": (
            {name: vars(split) for name, split in Manifest.read(manifest).splits.items()} if manifest.exists() else None
        ),
        "mask_in_encoder": of_task("mask_in_encoder"),
        "other_tokens": round(sum(others), 6) if all(isinstance(fraction, float) for fraction in others) else None,
        "averaged": state.get("averaged"),
        "finetuned_on": _finetuned_on(state, Path(data_bin, TASK)),
    }


def _finetuned_on(state: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Return what predictions need to know of the task of a fine-tuned model; None where that is not known.

    A checkpoint holds the options of question answering, and options and labels of token classification. The names of a
    sentence task's labels are with its data.
    """
    of_task = partial(value_at, state, "cfg", "task")
    if of_task("_name") == "token_classification":
        labels = value_at(state, "task_state", "labels")
        return {name: of_task(name) for name in ("column", "tokens_per_sample")} | {
            "labels": value_at(labels, "names"),
            "scheme": value_at(labels, "scheme"),
        }
    if of_task("_name") == "question_answering":
        return {name: of_task(name) for name in ("tokens_per_sample", "doc_stride", "version_2")}
    if not (head_names(state["model"]) and path.exists()):
        return None
    names = ("task", "head", "columns", "labels", "score_range")
    return read_json(path, lambda content: {name: content[name] for name in names}, "prepare the data again")


def check_task(info: ModelInfo, weights: Mapping[str, Tensor], source: str | Path):
    """Check that labels are those of the head: others would name its classes wrongly.

    Raises:
        UserError: if the heads lack that of the task, or it has another number of classes.
    """
    task, heads = info.finetuned_on, head_names(weights)
    if not heads or isinstance(task, AnswerTask | None):
        return
    is_words = isinstance(task, WordTask)
    name = f"{HEADS}{WORD_HEAD}.classifier.bias" if is_words else f"{HEADS}{task.head}.out_proj.bias"
    if name not in weights or len(weights[name]) != (len(task.labels) or 1):
        raise UserError(
            f"{source}: its description is of another task than that of its heads ({', '.join(heads)}); for a "
            "checkpoint, name the data-bin of its fine-tuning"
        )


def _check_tokenizer(symbols: tuple[str, ...], tokenizer: Tokenizer | None):
    if tokenizer and (*tokenizer.symbols, MASK) != symbols:
        raise UserError(f"{tokenizer.path}: its pieces are not, in order, the symbols of the {DICTIONARY} beside it")


def _aligned(weight: Tensor) -> Tensor:
    return weight if weight.data_ptr() % ALIGNMENT == 0 else weight.clone()


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        # Memory-mapped, except for unaligned weights, for which torch would round differently.
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: _aligned(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  not a dict
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{path} is damaged or missing; create the bundle again") from error

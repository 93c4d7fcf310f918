"""Reading of pretrained networks, from a fairseq checkpoint with its data-bin or from a bundle.

Nothing that is read can run code, and everything is validated before a network is built.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.text.data_bin import DICTIONARY, TASK, check_dictionary, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.manifest import MANIFEST, describe_splits
from mae_lm_fairseq.text.tokenizer import MASK, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.trained.averaging import with_ema
from mae_lm_fairseq.trained.checkpoint_file import content_errors, load_as_data, load_safetensors, value_at
from mae_lm_fairseq.trained.info import AnswerTask, ModelInfo, WordTask
from mae_lm_fairseq.trained.original import CONFIG, Original, read_original
from mae_lm_fairseq.trained.token_order import token_order
from mae_lm_fairseq.trained.validation import (
    PAD,
    WORD_HEAD,
    check_fit,
    class_count,
    head_names,
    network_config,
    saved_config,
    skeleton,
    tied_names,
)
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hashes import check_hashes
from mae_lm_fairseq.utils.typed import typed
from mae_lm_fairseq.utils.versions import OF_DATA, versions

WEIGHTS = "model.safetensors"
"""Weights of a bundle. Dictionary and tokenizer have the same names as in a data-bin."""
MODEL_TYPE = "mae_lm"
"""Type of the model in ``config.json``, for ``transformers``."""
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""Names of models on the Hugging Face hub: an owner, and the owner's name of the model."""
_OF_FILES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".json")


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
    def precision(self) -> str:
        """Precision of the weights, as torch calls it: ``float32``."""
        weight = next(iter(self.weights.values()))
        return str(weight.dtype).removeprefix("torch.")

    @property
    def mask_in_encoder(self) -> float:
        """Value of ``--mask-in-encoder`` in pretraining; 0 if unknown, as after fine-tuning."""
        return self.about.mask_in_encoder or 0.0


def check_model_exists(path: str | Path, is_file: bool = False) -> None:
    """Check that there is something at the path of a model.

    Raises:
        UserError: if there is nothing; the message says how to download what may be a model of the hub.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(_how_to_get(Path(path), is_file)) from None
    except OSError:  # who reads the model reports it
        return


def _how_to_get(path: Path, is_file: bool) -> str:
    """Return that there is no model at a path, and what to do."""
    if is_file or path.suffix in _OF_FILES:
        return f"{path}: no such file; check the path"
    message = f"{path}: no such directory; check the path"
    is_local = len(path.parts) > 1 and (len(path.parts) > 2 or path.parent.exists())
    if is_local:
        return message
    message += ". Models are not downloaded: run hf download"
    if _HUB_NAME.fullmatch(str(path)):
        return f"{message} {path} --local-dir {path.name}, then give {path.name} in its place"
    return f"{message} NAME --local-dir {path}"


def read_checkpoint(path: str | Path, data_bin: str | Path | None = None, ema: bool = False) -> Pretrained:
    """Read a checkpoint of fairseq-train, and dictionary and tokenizer from the data-bin.

    ``ema`` selects the moving average of the weights.

    Raises:
        UserError: if a file is missing, damaged, could run code, or does not match the others.
    """
    if data_bin is None and os.path.exists(path):
        raise UserError(f"{path} is not a bundle; give its data-bin, with dict.txt and the tokenizer, too (--data-bin)")
    state = load_as_data(path)
    data_bin = Path(data_bin)
    check_hashes(data_bin)
    if ema:
        state = with_ema(state, path)

    symbols, tokenizer = _read_symbols(data_bin)
    check_dictionary(data_bin, symbols[:-1])
    fingerprint = dictionary_fingerprint(symbols)
    if value_at(state, "task_state", "dictionary") not in (None, fingerprint):
        raise UserError(f"{path} was trained with another dictionary than the {DICTIONARY} of {data_bin}")

    with content_errors(path):
        config = saved_config(state)
        weights = state["model"]
        check_fit(config, weights, len(symbols))
        facts = info_of(state, data_bin) | {"dictionary_sha256": fingerprint}
        about = typed(facts, ModelInfo)
        check_task(about, weights)
    return Pretrained(config, weights, symbols, tokenizer, about, read_original(data_bin))


def read_bundle(directory: str | Path) -> Pretrained:
    """Read a bundle, the directory that ``mae-lm bundle`` writes.

    Raises:
        UserError: if a file is missing, damaged, or does not match the others.
    """
    directory = Path(directory)
    check_bundle(directory)
    config, about = read_description(directory)
    if not os.path.exists(directory / DICTIONARY):
        raise UserError(
            f"{directory} has no {DICTIONARY}; save_pretrained of transformers writes weights and configuration alone: "
            f"copy {DICTIONARY} and the files of the tokenizer from the export to it"
        )
    symbols, tokenizer = _read_symbols(directory)
    stored = load_safetensors(directory / WEIGHTS, "create the bundle again")
    with content_errors(directory):
        order = token_order(tokenizer, len(symbols))
        weights = order.restored(stored, config)
        for name, first in tied_names(config, weights).items():
            weights.setdefault(name, weights[first])
        check_fit(config, weights, len(symbols))
        check_task(about, weights)
    if about.dictionary_sha256 not in (None, dictionary_fingerprint(symbols)):
        raise UserError(f"{directory / DICTIONARY} is not the one that the bundle was written with; restore it")
    return Pretrained(config, weights, symbols, tokenizer, about, read_original(directory))


def check_bundle(directory: Path) -> dict[str, str]:
    """Compare the files of a bundle with their hashes, and return these by name; none of a bundle of earlier versions.

    Raises:
        UserError: if a file is missing or damaged.
    """
    return check_hashes(directory, (CONFIG, WEIGHTS, DICTIONARY))


def read_description(directory: Path) -> tuple[MaskedAutoencoderConfig, ModelInfo]:
    """Return the network of a bundle, and the facts about its training; raise a UserError if it is damaged or none."""
    if transformers_type(directory):
        raise UserError(f"{directory} is a directory of transformers; make a bundle of it with mae-lm import")
    network, about = read_json(directory / CONFIG, itemgetter("network", "about"), "create the bundle again")
    with content_errors(directory / CONFIG):
        return network_config(network), typed(about, ModelInfo)


def transformers_type(path: str | Path) -> str | None:
    """Return the type of the model in a directory of ``transformers``, such as "bert"; None if it is none."""
    try:
        model_type = read_json(Path(path, CONFIG), lambda content: content.get("model_type"))
    except UserError:
        return None
    is_other = isinstance(model_type, str) and model_type != MODEL_TYPE
    return model_type if is_other else None


def build(pretrained: Pretrained) -> MaskedAutoencoder:
    """Build the network for evaluation. It shares the tensors of ``pretrained``, unless its encoder is wrapped.

    Decoder and language model head are None if ``pretrained`` has no weights for them.
    """
    network, _ = build_all(pretrained)
    return network


def build_all(pretrained: Pretrained) -> tuple[MaskedAutoencoder, nn.ModuleDict]:
    """Build the network, see :func:`build`, and the heads by name; none if the model was not fine-tuned."""
    config, weights = pretrained.config, pretrained.weights
    is_wrapped = bool(config.wrapped)
    with torch.random.fork_rng(devices=[]):
        modules = skeleton(config, weights, len(pretrained.symbols), has_memory=is_wrapped)
    modules.load_state_dict(weights, assign=not is_wrapped)
    network, heads = modules.eval().values()
    is_tied = not is_wrapped and not config.untie_output_weights
    if is_tied and network.lm_head is not None:
        network.lm_head.weight = network.encoder.embed_tokens.weight
    return network, heads


def _read_symbols(directory: Path) -> tuple[tuple[str, ...], Tokenizer | None]:
    symbols = read_symbols(directory / DICTIONARY)
    tokenizer = find_tokenizer(directory)
    if tokenizer and (*tokenizer.symbols, MASK) != symbols:
        raise UserError(f"{tokenizer.path}: its pieces are not, in order, the symbols of the {DICTIONARY} beside it")
    return symbols, tokenizer


def info_of(state: dict[str, Any], data_bin: Path | None = None) -> dict[str, Any]:
    """Return the facts about the training of a checkpoint, and about its data if they are there, as JSON."""
    of_task = partial(value_at, state, "cfg", "task")
    trained_on = None
    if data_bin is not None and (data_bin / MANIFEST).exists():
        trained_on = describe_splits(data_bin)
    kept, random = of_task("leave_unmasked_prob"), of_task("random_token_prob")
    is_known = isinstance(kept, float) and isinstance(random, float)
    return {
        "architecture": state["cfg"]["model"]["_name"],
        "task": of_task("_name"),
        "updates": value_at(state, "optimizer_history", -1, "num_updates"),
        "versions": {**versions(OF_DATA), "torch": str(torch.__version__)},
        "dictionary_sha256": value_at(state, "task_state", "dictionary"),
        "trained_on": trained_on,
        "mask_in_encoder": of_task("mask_in_encoder"),
        "tokens_per_sample": of_task("tokens_per_sample"),
        "other_tokens": round(kept + random, 6) if is_known else None,
        "averaged": state.get("averaged"),
        "finetuned_on": _finetuned_on(state, data_bin),
    }


def _finetuned_on(state: dict[str, Any], data_bin: Path | None) -> dict[str, Any] | None:
    """Return the task of a fine-tuned model as JSON; None if it is not known. That of sentences is in the data-bin."""
    options = value_at(state, "cfg", "task")
    task = value_at(options, "_name")
    if task == "token_classification":
        labels = partial(value_at, state, "task_state", "labels")
        known = _values_of(options, "column", "tokens_per_sample")
        return known | {"labels": labels("names"), "scheme": labels("scheme")}
    if task == "question_answering":
        return _values_of(options, "tokens_per_sample", "doc_stride", "version_2")
    if data_bin is None or not head_names(state["model"]) or not (data_bin / TASK).exists():
        return None
    names = ("task", "head", "columns", "labels", "score_range")
    return read_json(data_bin / TASK, lambda content: {name: content[name] for name in names}, "prepare the data again")


def _values_of(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: options.get(name) for name in names}


def check_task(info: ModelInfo, weights: Mapping[str, Tensor]):
    """Check that labels are those of the head: others would name its classes wrongly.

    Raises:
        ValueError: if the heads lack that of the task, or it has another number of classes.
    """
    task, heads = info.finetuned_on, head_names(weights)
    if not heads or isinstance(task, AnswerTask | None):
        return
    head = WORD_HEAD if isinstance(task, WordTask) else task.head
    if head not in heads or class_count(head, weights) != (len(task.labels) or 1):
        raise ValueError(f"its task is not that of its heads, {', '.join(heads)}; name the data-bin of the fine-tuning")

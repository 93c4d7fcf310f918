"""Reading of pretrained networks, from a fairseq checkpoint with its data-bin or from a bundle.

Nothing that is read can run code, and everything is validated before a network is built.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from mae_lm_fairseq.checkpoints.averaging import check_file, read_ema
from mae_lm_fairseq.checkpoints.checkpoint_file import load_as_data, value_at
from mae_lm_fairseq.checkpoints.original import Original, read_original
from mae_lm_fairseq.checkpoints.token_order import token_order
from mae_lm_fairseq.checkpoints.validation import (
    HEADS,
    NETWORK,
    PAD,
    check_fit,
    head_names,
    heads_skeleton,
    network_config,
    network_skeleton,
    saved_config,
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

ALIGNMENT = 64
"""Alignment of torch's tensors in bytes. Most weights in a bundle have it, too."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
"""Files of a bundle. Dictionary and tokenizer have the same names as in a data-bin."""
MULTI_LABEL = "multi_label_classification"
"""``problem_type`` of a head that gives a text several labels at once."""
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
        about: plain JSON, as far as known: ``architecture``, ``task`` and ``updates`` of the training, ``versions`` of
            packages, ``dictionary_sha256``, ``trained_on`` (the splits in the manifest of the data-bin),
            ``mask_in_encoder``, ``other_tokens`` (fraction of the predicted positions that had random or kept tokens
            instead of ``[MASK]``), ``averaged`` (how, if the weights are an average), ``imported_from``,
            ``untrained`` (parts that an import had to add), ``problem_type`` (:data:`MULTI_LABEL`, of an import
            with such a head), ``finetuned_on`` (what predictions need to know of the task), ``development_set`` (the
            metrics of fine-tuning).
        original: what an import has kept for the export; None for a model of this package.
    """

    config: MaskedAutoencoderConfig
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    tokenizer: Tokenizer | None
    about: dict[str, Any]
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
        return mask_fraction(self.about)


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
    about = {
        "architecture": state["cfg"]["model"]["_name"],
        "task": _plain(value_at(state, "cfg", "task", "_name")),
        "updates": _plain(value_at(state, "optimizer_history", -1, "num_updates")),
        "versions": {**current_versions(), "torch": str(torch.__version__)},
        "dictionary_sha256": fingerprint,
        "trained_on": _splits(data_bin),
        "mask_in_encoder": _plain(value_at(state, "cfg", "task", "mask_in_encoder")),
    }
    others = [value_at(state, "cfg", "task", name) for name in ("leave_unmasked_prob", "random_token_prob")]
    if all(isinstance(fraction, float) for fraction in others):
        about["other_tokens"] = round(sum(others), 6)
    if (averaged := _plain(state.get("averaged"))) is not None:
        about["averaged"] = averaged
    if (task := _finetuned_on(state, path, Path(data_bin, TASK))) is not None:
        about["finetuned_on"] = task
    tokenizer = find_tokenizer(data_bin)
    _check_tokenizer(symbols, tokenizer)
    return Pretrained(config, weights, symbols, tokenizer, about, read_original(Path(data_bin)))


def read_bundle(directory: str | Path) -> Pretrained:
    """Read a bundle, the directory that ``mae-lm bundle`` writes.

    Raises:
        UserError: if a file is missing, damaged, or does not match the others.
    """
    directory = Path(directory)
    network, about = _description(directory / CONFIG)
    config, tokenizer = network_config(network, directory / CONFIG), find_tokenizer(directory)
    symbols = read_symbols(directory / DICTIONARY)
    weights = token_order(tokenizer, len(symbols)).restored(_weights(directory / WEIGHTS))
    for name, first in tied_names(config, weights).items():
        if first in weights:
            weights.setdefault(name, weights[first])
    check_fit(config, weights, len(symbols), directory / WEIGHTS)
    _check_tokenizer(symbols, tokenizer)
    if tokenizer and tokenizer.has_own_order and about.get("dictionary_sha256") != dictionary_fingerprint(symbols):
        raise UserError(f"{directory / DICTIONARY} is not the one that the bundle was written with; restore it")
    return Pretrained(config, weights, symbols, tokenizer, about, read_original(directory))


def _description(path: Path) -> tuple[dict, dict]:
    """Return network and origin of a bundle."""
    if transformers_type(path.parent):
        raise UserError(f"{path.parent} is a directory of transformers; make a bundle of it with mae-lm import")
    try:
        described = json.loads(path.read_bytes())
        network, about = described["network"], described.get("about", {})
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; is {path.parent} a bundle of mae-lm bundle?") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is not the description of a bundle; create the bundle again") from None
    if not isinstance(network, dict) or not isinstance(about, dict):
        raise UserError(f"{path} is not the description of a bundle; create the bundle again")
    return network, about


def transformers_type(path: str | Path) -> str | None:
    """Return the type of the model in a directory of ``transformers``, such as "bert"; None if it is none."""
    try:
        kind = json.loads(Path(path, CONFIG).read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return kind if isinstance(kind, str) and kind != MODEL_TYPE else None


def mask_fraction(about: Mapping[str, Any]) -> float:
    """Return the value of ``--mask-in-encoder`` in ``about``; 0 if it does not have one."""
    fraction = about.get("mask_in_encoder")
    return fraction if isinstance(fraction, float) and 0 <= fraction <= 1 else 0.0


def label_names(about: Mapping[str, Any], head: str, count: int) -> list[str] | None:
    """Return the names of the ``count`` labels of a head; None if ``about`` does not have them."""
    names = value_at(about, "finetuned_on", "labels")
    if value_at(about, "finetuned_on", "head") not in (None, head):
        return None
    is_valid = isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names)
    return names if is_valid else None


def score_range(about: Mapping[str, Any], head: str) -> tuple[float, float] | None:
    """Return the scores that a head for regression gives as 0 and as 1; None if ``about`` does not have them."""
    task = about.get("finetuned_on")
    if not isinstance(task, Mapping) or task.get("labels") != [] or task.get("head") != head:
        return None
    scores = task.get("score_range")
    are_numbers = isinstance(scores, list) and all(isinstance(score, int | float) for score in scores)
    return tuple(scores) if are_numbers and len(scores) == 2 and scores[0] < scores[1] else None


def build(pretrained: Pretrained) -> MaskedAutoencoder:
    """Build the network for evaluation. It shares the tensors of ``pretrained``, and no weights are initialised.

    Decoder and language model head are None if ``pretrained`` has no weights for them.
    """
    network = network_skeleton(pretrained.config, pretrained.weights, len(pretrained.symbols))
    network.load_state_dict(_part(pretrained.weights, NETWORK), assign=True)
    if network.lm_head is not None and not pretrained.config.untie_output_weights:
        network.lm_head.weight = network.encoder.embed_tokens.weight
    return network.eval()


def build_heads(pretrained: Pretrained) -> nn.ModuleDict:
    """Build the heads by name, for evaluation; empty if the model was not fine-tuned."""
    heads = heads_skeleton(pretrained.config, pretrained.weights)
    heads.load_state_dict(_part(pretrained.weights, HEADS), assign=True)
    return heads.eval()


def _part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def _plain(value: Any) -> str | int | float | None:
    return value if isinstance(value, str | int | float) else None


def _splits(data_bin: str | Path) -> dict[str, dict] | None:
    path = Path(data_bin, MANIFEST)
    return {name: vars(split) for name, split in Manifest.read(path).splits.items()} if path.exists() else None


def _finetuned_on(state: dict[str, Any], checkpoint: str | Path, path: Path) -> dict[str, Any] | None:
    """Return what predictions need to know of the task of a fine-tuned model; None where that is not known.

    A checkpoint holds the options of question answering, and options and labels of token classification. The names of a
    sentence task's labels are with its data.
    """
    if value_at(state, "cfg", "task", "_name") == "token_classification":
        options = ("column", "tokens_per_sample")
        return {
            **{name: _plain(value_at(state, "cfg", "task", name)) for name in options},
            "labels": value_at(state, "task_state", "labels", "names"),
            "scheme": value_at(state, "task_state", "labels", "scheme"),
        }
    if value_at(state, "cfg", "task", "_name") == "question_answering":
        options = ("tokens_per_sample", "doc_stride", "version_2")
        return {name: _plain(value_at(state, "cfg", "task", name)) for name in options}
    heads = head_names(state["model"])
    if not (heads and path.exists()):
        return None
    try:
        described = json.loads(path.read_bytes())
        found = {name: described[name] for name in ("head", "task", "columns", "labels", "score_range")}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{path} does not describe a task; prepare the data again") from None
    if found["head"] not in heads:
        raise UserError(
            f"{path} describes another task ({found['task']}) than that of {checkpoint} ({', '.join(heads)}); "
            "name the data-bin of its fine-tuning"
        )
    return found


def _check_tokenizer(symbols: tuple[str, ...], tokenizer: Tokenizer | None):
    """Check that the symbols of a tokenizer, if any, are those of the dictionary.

    Raises:
        UserError: if they are not.
    """
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

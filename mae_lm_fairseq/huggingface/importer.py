"""Import of encoders from elsewhere, and checkpoints of them for fairseq-train."""

import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_values
from mae_lm_fairseq.huggingface.foreign import ForeignModel, read_fairseq, read_stock
from mae_lm_fairseq.huggingface.names import (
    CLASSIFICATION_HEAD,
    LM_HEAD,
    SPAN_HEAD,
    Part,
    encoder_parts,
    names_of,
    to_ours,
)
from mae_lm_fairseq.huggingface.stock import SEGMENTS
from mae_lm_fairseq.pretrained.presets import completed
from mae_lm_fairseq.pretrained.reading import Pretrained
from mae_lm_fairseq.pretrained.validation import (
    check_fit,
    head_names,
    network_config,
    network_skeleton,
)
from mae_lm_fairseq.text.data_bin import DICTIONARY, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import new_directory

HEAD = "sentence_classification_head"
"""Name of an imported head, and the default name in fairseq's ``sentence_prediction``."""
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)


def import_foreign(path: Path, preset: str, data_bin: Path | None = None, seed: int = 1) -> Pretrained:
    """Import an encoder of the RoBERTa or MPNet type into this package's network.

    The language model head is imported, too, and a decoder starts from random weights. A model with a task head is
    imported as a fine-tuned model, without language model head and decoder.

    Args:
        path: ``transformers`` directory or fairseq checkpoint.
        preset: preset of the network around the encoder.
        data_bin: for a checkpoint, the directory of ``dict.txt``; None for the checkpoint's directory.
        seed: seed of the random weights.

    Raises:
        UserError: if a file is missing, damaged or could run code, or the encoder's computation differs from ours.
    """
    foreign = read_stock(path) if path.is_dir() else read_fairseq(path, data_bin or path.parent)
    defaults = {option.name: option.default for option in fields(MaskedAutoencoderConfig)}
    defaults |= preset_values(preset, "base")
    values = {name: getattr(value, "value", value) for name, value in {**defaults, **foreign.values}.items()}
    config = network_config(values, path)
    parts, head = _parts(foreign, path)
    weights = _under_our_names(foreign, config, parts, head, path)
    _check_shapes(weights, config, len(foreign.symbols), path)
    about = {"architecture": f"{preset}_base", "imported_from": f"{path.name}, {foreign.kind}"}
    if not head:
        if LM_HEAD not in parts:
            about["random_weights"] = ["lm_head"]
        weights = completed(config, weights, len(foreign.symbols), seed)
    check_fit(config, weights, len(foreign.symbols), path)
    return Pretrained(config, weights, foreign.symbols, foreign.tokenizer, about)


def _parts(foreign: ForeignModel, source: Path) -> tuple[tuple[Part, ...], str]:
    """Return the parts to import, and our name of the task head (empty for none)."""
    encoder, found = encoder_parts(foreign.kind == "mpnet"), foreign.weights.keys()
    if foreign.kind == "fairseq":
        heads = head_names(found)
        if len(heads) > 1:
            raise UserError(f"{source} has several heads ({', '.join(heads)}); at most one can be imported")
        if heads:
            return (*encoder, CLASSIFICATION_HEAD), heads[0]
    elif "classifier.dense.weight" in found:
        return (*encoder, CLASSIFICATION_HEAD), HEAD
    elif "qa_outputs.weight" in found:
        return (*encoder, SPAN_HEAD), HEAD
    has_lm_head = any(name.startswith(getattr(LM_HEAD.prefix, foreign.kind)) for name in found)
    return (*encoder, LM_HEAD) if has_lm_head else encoder, ""


def _under_our_names(
    foreign: ForeignModel, config: MaskedAutoencoderConfig, parts: tuple[Part, ...], head: str, source: Path
) -> dict[str, Tensor]:
    """Rename the weights, after checking that none is missing or unexpected."""
    if config.encoder_layers > len(foreign.weights):
        raise UserError(f"{source}: there are fewer weights ({len(foreign.weights)}) than layers in its configuration")
    names = names_of(parts, foreign.kind, config.encoder_layers, head)
    expected = set(names.values())
    if foreign.kind == "roberta":
        expected.add(SEGMENTS)
    found = foreign.weights.keys()
    if head:  # fairseq keeps the language model head in fine-tuning
        found = {name for name in found if not name.startswith(getattr(LM_HEAD.prefix, foreign.kind))}
    if different := sorted(expected ^ found):
        fault = "is missing" if different[0] in expected else "is unknown to this package"
        raise UserError(f"{source}: the weight {different[0]} {fault} ({len(different)} differences in total)")
    try:
        return to_ours(_without_segments(foreign.weights), names)
    except (RuntimeError, IndexError):  # also for mismatched shapes of q, k and v, or of positions and segments
        raise UserError(f"{source}: its weights have shapes that do not match each other") from None


def _check_shapes(weights: dict[str, Tensor], config: MaskedAutoencoderConfig, symbols: int, source: Path):
    """Check the weights against the configuration before building a network of that size."""
    expected = network_skeleton(config, weights, symbols).state_dict()
    for name, expectation in expected.items():
        weight = weights.get(f"autoencoder.{name}", expectation)
        if weight.shape != expectation.shape:
            raise UserError(
                f"{source}: {name} has shape {list(weight.shape)}, but configuration and dictionary require "
                f"{list(expectation.shape)}"
            )


def _without_segments(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove RoBERTa's segment embeddings.

    All text has the first segment, so that its embedding, if not zero, is added to the position embeddings.
    """
    weights = dict(weights)
    segments = weights.pop(SEGMENTS, None)
    if segments is not None and segments[0].any():
        positions = SEGMENTS.replace("token_type", "position")
        weights[positions] = weights[positions] + segments[0]
    return weights


def write_checkpoint(pretrained: Pretrained, path: Path):
    """Write a checkpoint that fairseq-train accepts, for ``--finetune-from-model`` and any other use."""
    values = {name: getattr(value, "value", value) for name, value in vars(pretrained.config).items()}
    task = "masked_autoencoder_lm" if "autoencoder.lm_head.bias" in pretrained.weights else "sentence_prediction"
    history = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    state = {
        "args": None,
        "cfg": {"model": {"_name": pretrained.about["architecture"], **values}, "task": {"_name": task}},
        "model": pretrained.weights,
        "task_state": {"dictionary": dictionary_fingerprint(pretrained.symbols)},
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    with open(path, "wb") as file:  # given a path, torch's error hides the cause, such as a full disk
        torch.save(state, file)


def write_import(pretrained: Pretrained, source: Path, out: Path):
    """Write an imported model: ``model.pt``, ``dict.txt`` and its tokenizer.

    The tokenizer is put next to the dictionary, as in a data-bin. One that has no file of its own for that is copied to
    ``tokenizer/``; use it to tokenize text before fairseq-preprocess.

    Args:
        pretrained: the imported model.
        source: the path it was imported from.
        out: output directory, which must not exist yet.
    """
    with new_directory(out) as directory:
        write_checkpoint(pretrained, directory / "model.pt")
        if pretrained.tokenizer is not None:
            pretrained.tokenizer.save(directory)
        write_symbols(pretrained.symbols, directory / DICTIONARY)
        if pretrained.tokenizer is None and source.is_dir():
            (directory / "tokenizer").mkdir()
            for name in _TOKENIZER_FILES:
                if (source / name).exists():
                    shutil.copyfile(source / name, directory / "tokenizer" / name)


def network_options(pretrained: Pretrained) -> list[str]:
    """Return the options with which fairseq-train builds the same network."""
    architecture = pretrained.about["architecture"]
    defaults = {option.name: option.default for option in fields(MaskedAutoencoderConfig)}
    defaults |= preset_values(*ARCHITECTURES[architecture])
    words = ["--arch", architecture]
    for name, value in vars(pretrained.config).items():
        if value != defaults[name]:
            words += [f"--{name.replace('_', '-')}", str(getattr(value, "value", value))]
    return words

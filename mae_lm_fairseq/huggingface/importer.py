"""Make other people's encoders ours, and write them for fairseq-train."""

import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_values
from mae_lm_fairseq.huggingface.foreign import Foreign, read_fairseq, read_stock
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
from mae_lm_fairseq.pretrained.reading import Pretrained
from mae_lm_fairseq.pretrained.validation import (
    PAD,
    check_fit,
    head_names,
    network_config,
    network_skeleton,
    tied_names,
)
from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import new_directory

HEAD = "sentence_classification_head"
"""What fairseq's ``sentence_prediction`` calls its head, and we an imported one."""
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
    """An encoder of RoBERTa's or MPNet's kind, in a network of ours.

    The language model head is taken over, too; a decoder starts from random weights. What has a head for a task is
    imported without either, as a fine-tuned model.

    Args:
        path: directory of ``transformers``, or checkpoint of fairseq.
        preset: of the network around the encoder.
        data_bin: with a checkpoint, where ``dict.txt`` is; beside the checkpoint where it is None.
        seed: of the random weights.

    Raises:
        UserError: a file is missing or damaged, could run code, or the encoder computes something that ours does not.
    """
    foreign = read_stock(path) if path.is_dir() else read_fairseq(path, data_bin or path.parent)
    defaults = {knob.name: knob.default for knob in fields(MaskedAutoencoderConfig)} | preset_values(preset, "base")
    values = {name: getattr(value, "value", value) for name, value in {**defaults, **foreign.values}.items()}
    config = network_config(values, path)
    parts, head = _parts(foreign, path)
    weights = _under_our_names(foreign, config, parts, head, path)
    _check_shapes(weights, config, len(foreign.symbols), path)
    if not head:
        weights = _completed(weights, config, len(foreign.symbols), seed)
    check_fit(config, weights, len(foreign.symbols), path)
    about = {"architecture": f"{preset}_base", "imported_from": f"{path.name}, {foreign.kind}"}
    return Pretrained(config, weights, foreign.symbols, foreign.sentencepiece, about)


def _parts(foreign: Foreign, source: Path) -> tuple[tuple[Part, ...], str]:
    """The parts to import, and our name of the head for a task or nothing."""
    encoder, found = encoder_parts(foreign.kind == "mpnet"), foreign.weights.keys()
    if foreign.kind == "fairseq":
        heads = head_names(found)
        if len(heads) > 1:
            raise UserError(f"{source} has several heads ({', '.join(heads)}); one at most can be imported")
        if heads:
            return (*encoder, CLASSIFICATION_HEAD), heads[0]
    elif "classifier.dense.weight" in found:
        return (*encoder, CLASSIFICATION_HEAD), HEAD
    elif "qa_outputs.weight" in found:
        return (*encoder, SPAN_HEAD), HEAD
    has_lm_head = any(name.startswith(getattr(LM_HEAD.prefix, foreign.kind)) for name in found)
    return (*encoder, LM_HEAD) if has_lm_head else encoder, ""


def _under_our_names(
    foreign: Foreign, config: MaskedAutoencoderConfig, parts: tuple[Part, ...], head: str, source: Path
) -> dict[str, Tensor]:
    """The weights of some parts, once they are known to be neither more nor fewer."""
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
        fault = "is missing" if different[0] in expected else "has no place in this package"
        raise UserError(f"{source}: the weight {different[0]} {fault} ({len(different)} such differences)")
    try:
        return to_ours(_without_segments(foreign.weights), names)
    except (RuntimeError, IndexError):  # from queries, keys and values of other widths, positions and segments, too
        raise UserError(f"{source}: its weights are of shapes that do not go together") from None


def _check_shapes(weights: dict[str, Tensor], config: MaskedAutoencoderConfig, symbols: int, source: Path):
    """Make sure that the weights bear out the configuration, before a network of its size is made."""
    expected = network_skeleton(config, weights, symbols).state_dict()
    for name, expectation in expected.items():
        weight = weights.get(f"autoencoder.{name}", expectation)
        if weight.shape != expectation.shape:
            raise UserError(
                f"{source}: {name} is of shape {list(weight.shape)}, but configuration and dictionary ask for "
                f"{list(expectation.shape)}"
            )


def _without_segments(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All text is of RoBERTa's first kind of segment: where its embedding is not zero, positions take it up."""
    weights = dict(weights)
    segments = weights.pop(SEGMENTS, None)
    if segments is not None and segments[0].any():
        positions = SEGMENTS.replace("token_type", "position")
        weights[positions] = weights[positions] + segments[0]
    return weights


def _completed(
    weights: dict[str, Tensor], config: MaskedAutoencoderConfig, symbols: int, seed: int
) -> dict[str, Tensor]:
    """The weights of a whole network, those that are missing random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MaskedAutoencoder(config, symbols, PAD, symbols - 1)
    complete = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()} | weights
    return complete | {name: complete[first] for name, first in tied_names(config, complete).items()}


def write_checkpoint(pretrained: Pretrained, path: Path):
    """Write what fairseq-train takes for a checkpoint: for ``--finetune-from-model`` and everything else."""
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
    with open(path, "wb") as file:  # given a path, torch's error does not name the cause, such as a full disk
        torch.save(state, file)


def write_import(pretrained: Pretrained, source: Path, out: Path):
    """Write an imported model: ``model.pt``, ``dict.txt``, and its tokenizer.

    A sentencepiece model lies beside the dictionary, as in a data-bin. Any other tokenizer of ``transformers`` is kept
    in ``tokenizer/``; text has to be tokenized with it before fairseq-preprocess.

    Args:
        pretrained: what was imported.
        source: from where.
        out: the directory, which must not exist yet.
    """
    with new_directory(out) as directory:
        write_checkpoint(pretrained, directory / "model.pt")
        write_symbols(pretrained.symbols, directory / DICTIONARY)
        if pretrained.sentencepiece is not None:
            (directory / TOKENIZER).write_bytes(pretrained.sentencepiece)
        elif source.is_dir():
            (directory / "tokenizer").mkdir()
            for name in _TOKENIZER_FILES:
                if (source / name).exists():
                    shutil.copyfile(source / name, directory / "tokenizer" / name)


def network_options(pretrained: Pretrained) -> list[str]:
    """The options with which fairseq-train builds the same network."""
    architecture = pretrained.about["architecture"]
    usual = {knob.name: knob.default for knob in fields(MaskedAutoencoderConfig)}
    usual |= preset_values(*ARCHITECTURES[architecture])
    words = ["--arch", architecture]
    for name, value in vars(pretrained.config).items():
        if value != usual[name]:
            words += [f"--{name.replace('_', '-')}", str(getattr(value, "value", value))]
    return words

"""A pretrained network at rest, wherever it comes from: a checkpoint of fairseq with its data-bin, or a bundle.

Nothing that is read here can run code, and all of it is checked before a network is made of it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import safetensors
import torch
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig
from mae_lm_fairseq.data.data_bin import check_dictionary, dictionary_fingerprint
from mae_lm_fairseq.data.dictionary import MASK, read_symbols
from mae_lm_fairseq.data.manifest import MANIFEST, Manifest, current_versions
from mae_lm_fairseq.data.tokenizer import SPECIALS, Tokenizer
from mae_lm_fairseq.errors import UserError

CONFIG, WEIGHTS, DICTIONARY, TOKENIZER = "config.json", "model.safetensors", "dict.txt", "sentencepiece.bpe.model"
"""The files of a bundle; dictionary and tokenizer have these names in a data-bin, too."""
FORMAT = 1
"""Of a bundle; goes up when what is written today could no longer be read."""
NETWORK = "autoencoder."
"""What the names of the network's weights begin with."""
PREDICTION = ("decoder.", "lm_head.")
"""The parts of the network that fine-tuning throws away."""
PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Pretrained:
    """Everything that is needed to use a pretrained or fine-tuned network.

    Attributes:
        config: the shape of the network. It speaks of the decoder even where fine-tuning has thrown it away.
        weights: by the names of ``MAELMModel.state_dict()``: ``autoencoder.encoder...``, ``autoencoder.decoder...``,
            ``autoencoder.lm_head...``, and those of heads, such as ``classification_heads.NAME...``. A tied weight is
            there under all of its names. All are of one precision, the one that they were saved in. Without decoder
            and language model head after fine-tuning. Not to be written to: they may be the file itself.
        symbols: the dictionary in the order of ids, from ``<s> <pad> </s> <unk>`` to ``<mask>``.
        sentencepiece: the tokenizer's model file; None where there is none.
        about: plain JSON, where known: ``architecture``, ``task`` and ``updates`` of the training, ``versions`` of
            packages, ``dictionary_sha256``, ``trained_on`` (the splits in the data-bin's manifest).
    """

    config: MaskedAutoencoderConfig
    weights: dict[str, Tensor]
    symbols: tuple[str, ...]
    sentencepiece: bytes | None
    about: dict[str, Any]

    @property
    def pad(self) -> int:
        """Id of ``<pad>``."""
        return SPECIALS.index("<pad>")

    @property
    def mask(self) -> int:
        """Id of ``<mask>``."""
        return len(self.symbols) - 1


def read(path: str | Path, data_bin: str | Path | None = None) -> Pretrained:
    """Read a bundle, or a checkpoint with its data-bin. Raises as the two below."""
    if Path(path).is_dir():
        if data_bin is not None:
            raise UserError(f"{path} is a bundle and has its dictionary inside: leave the data-bin out")
        return read_bundle(path)
    return read_checkpoint(path, data_bin)


def read_checkpoint(path: str | Path, data_bin: str | Path | None = None) -> Pretrained:
    """Read a checkpoint of fairseq-train, and dictionary and tokenizer from the data-bin.

    Raises:
        UserError: one of the files is missing, damaged, could run code, or does not belong to the others.
    """
    # Here, because a bundle can be read where fairseq is not installed.
    from mae_lm_fairseq.compat import load_as_data

    if data_bin is None:
        raise UserError(f"{path} is no bundle: name the data-bin with its dict.txt and {TOKENIZER}, too")
    state = load_as_data(path)
    options = (state.get("cfg") or {}).get("model")
    if not isinstance(options, dict) or options.get("_name") not in ("mae_lm", *ARCHITECTURES):
        raise UserError(f"{path} is a checkpoint of another model than mae_lm_fairseq's")
    # A checkpoint from before a knob came to be was trained with what is its default.
    values = {knob.name: options.get(knob.name, knob.default) for knob in fields(MaskedAutoencoderConfig)}
    symbols = read_symbols(Path(data_bin, DICTIONARY))
    check_dictionary(data_bin, symbols[:-1])
    fingerprint = dictionary_fingerprint(symbols[:-1])
    if (state.get("task_state") or {}).get("dictionary", fingerprint) != fingerprint:
        raise UserError(f"{path} was trained with another dictionary than the {DICTIONARY} of {data_bin}")
    about = {
        "architecture": options["_name"],
        "task": _plain(state["cfg"], "task", "_name"),
        "updates": _plain(state, "optimizer_history", -1, "num_updates"),
        "versions": {**current_versions(), "torch": str(torch.__version__)},
        "dictionary_sha256": fingerprint,
        "trained_on": _splits(data_bin),
    }
    sentencepiece = _tokenizer(Path(data_bin), symbols)
    pretrained = Pretrained(network_config(values, path), dict(state["model"]), symbols, sentencepiece, about)
    _check(pretrained, path)
    return pretrained


def read_bundle(directory: str | Path) -> Pretrained:
    """Read a bundle, the directory that ``scripts/bundle.py`` writes. The weights are mapped into memory, not copied.

    Raises:
        UserError: one of the files is missing, damaged, or does not belong to the others.
    """
    directory = Path(directory)
    path = directory / CONFIG
    try:
        described = json.loads(path.read_bytes())
        form, network, about = (described[name] for name in ("format", "network", "about"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; is {directory} a bundle of scripts/bundle.py?") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise UserError(f"{path} does not describe a bundle; make the bundle again") from None
    if form != FORMAT:
        raise UserError(f"{path}: this is format {form!r} of bundles, and {FORMAT} is known here; use a newer version")
    if not isinstance(network, dict) or not isinstance(about, dict):
        raise UserError(f"{path} does not describe a bundle; make the bundle again")
    config = network_config(network, path)
    symbols = read_symbols(directory / DICTIONARY)
    weights = _mapped(directory / WEIGHTS)
    pretrained = Pretrained(config, weights, symbols, _tokenizer(directory, symbols), about)
    for name, first in tied_names(config).items():
        part = ".".join(name.split(".")[:2])
        if first in weights and any(other.startswith(part) for other in weights):
            weights.setdefault(name, weights[first])
    _check(pretrained, directory / WEIGHTS)
    return pretrained


def build(pretrained: Pretrained) -> MaskedAutoencoder:
    """The network, for evaluation, on the tensors of ``pretrained``, with exactly its weights and no random ones.

    Without decoder and language model head (both None) where ``pretrained`` has none.
    """
    network = _skeleton(pretrained)
    own = {name.removeprefix(NETWORK): w for name, w in pretrained.weights.items() if name.startswith(NETWORK)}
    network.load_state_dict(own, assign=True)
    if network.lm_head is not None:
        network.lm_head.weight = network.encoder.embed_tokens.weight
    return network.eval()


def network_config(values: Mapping[str, Any], source: str | Path) -> MaskedAutoencoderConfig:
    """The configuration from all of its values, each of the very type that its knob has.

    Raises:
        UserError: a value is missing, unknown, of another type, out of range, or contradicts another.
    """
    knobs = {knob.name: knob for knob in fields(MaskedAutoencoderConfig)}
    if different := sorted(knobs.keys() ^ values.keys()):
        raise UserError(f"{source}: {different[0]} is {'missing' if different[0] in knobs else 'unknown'}")
    try:
        return MaskedAutoencoderConfig(**{name: _typed(knob, values[name]) for name, knob in knobs.items()})
    except (ValueError, OverflowError) as problem:
        raise UserError(f"{source}: {problem}") from None


def tied_names(config: MaskedAutoencoderConfig) -> dict[str, str]:
    """The names under which a weight is there once more, and the name that it is stored under."""
    tied = {f"{NETWORK}lm_head.weight": f"{NETWORK}encoder.embed_tokens.weight"}
    if config.decoder_share_positions:
        tied[f"{NETWORK}decoder.embed_positions.weight"] = f"{NETWORK}encoder.embed_positions.weight"
    return tied


def _typed(knob: Field, value: Any) -> Any:
    kinds = get_args(knob.type) or (knob.type,)
    if value is None and NoneType in kinds:
        return None
    if issubclass(kinds[0], Enum) and isinstance(value, str):
        return kinds[0](value)
    if (type(value) is kinds[0] or (kinds[0] is float and type(value) is int)) and math.isfinite(value):
        return value
    raise ValueError(f"{knob.name} is {value!r}, which is not of type {kinds[0].__name__}")


def _plain(value: Any, *keys: str | int) -> str | int | None:
    """What lies at the end of a path through what a checkpoint holds, if it is there and plain."""
    try:
        for key in keys:
            value = value[key]
    except (LookupError, TypeError):
        return None
    return value if isinstance(value, str | int) else None


def _splits(data_bin: str | Path) -> dict[str, dict] | None:
    path = Path(data_bin, MANIFEST)
    return {name: vars(split) for name, split in Manifest.read(path).splits.items()} if path.exists() else None


def _tokenizer(directory: Path, symbols: tuple[str, ...]) -> bytes | None:
    path = directory / TOKENIZER
    if not path.exists():
        return None
    if (*Tokenizer(path).symbols, MASK) != symbols:
        raise UserError(f"{path}: its pieces are not the symbols of the {DICTIONARY} beside it, in their order")
    return path.read_bytes()


def _mapped(path: Path) -> dict[str, Tensor]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it has no other way
    except (OSError, safetensors.SafetensorError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} cannot be read, it is damaged or missing: {reason}") from None


def _skeleton(pretrained: Pretrained) -> MaskedAutoencoder:
    """The network without memory for its weights, which are to be assigned."""
    with torch.device("meta"):
        network = MaskedAutoencoder(pretrained.config, len(pretrained.symbols), pretrained.pad, pretrained.mask)
    if not any(name.startswith(tuple(NETWORK + part for part in PREDICTION)) for name in pretrained.weights):
        network.decoder = network.lm_head = None
    return network


def _check(pretrained: Pretrained, source: str | Path):
    """Refuse what does not fit together."""
    _check_tensors(pretrained.weights, source)
    _check_extent(pretrained, source)
    try:
        expected = {NETWORK + name: weight.shape for name, weight in _skeleton(pretrained).state_dict().items()}
    except (RuntimeError, TypeError, OverflowError):  # numbers beyond those of tensors
        raise UserError(f"{source}: the configuration beside it asks for an impossible network") from None
    found = {name: weight.shape for name, weight in pretrained.weights.items() if name.startswith(NETWORK)}
    if different := sorted(expected.keys() ^ found.keys()):
        fault = "is missing" if different[0] in expected else "is none of this network"
        raise UserError(f"{source}: the weight {different[0]} {fault} ({len(different)} such differences)")
    for name, shape in expected.items():
        if found[name] != shape:
            raise UserError(f"{source}: {name} is of shape {list(found[name])}, but the network needs {list(shape)}")
    for name, first in tied_names(pretrained.config).items():
        here, there = pretrained.weights.get(name), pretrained.weights[first]
        if here is not None and here is not there and not torch.equal(here, there):
            raise UserError(f"{source}: {name} and {first} differ, but the network has one weight for both")


def _check_tensors(weights: dict[str, Any], source: str | Path):
    kinds = {weight.dtype if isinstance(weight, Tensor) else type(weight) for weight in weights.values()}
    if len(kinds) != 1 or not kinds <= set(PRECISIONS):
        raise UserError(f"{source}: its weights are {sorted(map(str, kinds))}, not tensors of one precision")


def _check_extent(pretrained: Pretrained, source: str | Path):
    """Refuse sizes that the weights do not bear out, before a network of that size is made."""
    config, weights = pretrained.config, pretrained.weights
    rows = {"embed_tokens": len(pretrained.symbols), "embed_positions": config.max_positions + pretrained.pad + 1}
    for table, count in rows.items():
        weight = weights.get(f"{NETWORK}encoder.{table}.weight")
        if weight is None or weight.shape != (count, config.encoder_embed_dim):
            shape = "missing" if weight is None else f"of shape {list(weight.shape)}"
            raise UserError(
                f"{source}: the encoder's {table} are {shape}, but dictionary and configuration need "
                f"{[count, config.encoder_embed_dim]}"
            )
    if config.encoder_layers + config.decoder_layers > len(weights):
        raise UserError(f"{source}: there are fewer weights ({len(weights)}) than layers in the configuration")

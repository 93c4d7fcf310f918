"""Bundles, checkpoints and directories of Hugging Face, damaged or absurd. Each function makes rows of the table.

As in :mod:`~tests.fault_injection.inputs`, every case has to end well.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, preset_values
from mae_lm_fairseq.huggingface.exporter import export_stock
from mae_lm_fairseq.huggingface.importer import import_foreign, write_import
from mae_lm_fairseq.huggingface.names import LM_HEAD, encoder_parts, names_of, to_theirs
from mae_lm_fairseq.pretrained.bundle import write_bundle
from mae_lm_fairseq.pretrained.reading import CONFIG, WEIGHTS, Pretrained, read
from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER
from mae_lm_fairseq.text.tokenizer import MASK
from tests.fault_injection.damage import VALUES, altered, cuts, damaged, damaged_json
from tests.fault_injection.datasets import make_tokenizer
from tests.fault_injection.outcomes import CLEAR, WHOLE, outcome, product_outcome, quietly
from tests.fault_injection.report import Row
from tests.fault_injection.workplace import Workplace

Damage = Callable[[bytes, random.Random], bytes]

TENSORS = (
    *(torch.zeros(()), torch.zeros(0), torch.ones(3), torch.ones(8, 8), torch.ones(16, 8), torch.ones(1, 8)),
    *(torch.full((24, 8), float("nan")), torch.ones(8, dtype=torch.int64), torch.ones(8, dtype=torch.float64)),
    *(torch.ones(8, dtype=torch.complex64), torch.ones(8, dtype=torch.bool), torch.ones(8, 8).to_sparse()),
    torch.ones(8, 8, device="meta"),
)
"""What might stand in the place of a weight."""


def make_pretrained(place: Workplace, preset: str = "mae_lm", **changes: int) -> Pretrained:
    """A network of random weights with a tokenizer."""
    tokenizer = make_tokenizer(place.directory)
    symbols = (*tokenizer.symbols, MASK)
    sizes = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
    config = MaskedAutoencoderConfig(**{**preset_values(preset, "tiny"), **sizes, "max_positions": 16, **changes})
    torch.manual_seed(0)
    network = MaskedAutoencoder(config, len(symbols), 1, len(symbols) - 1)
    weights = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()}
    return Pretrained(config, weights, symbols, tokenizer.path.read_bytes(), {"architecture": f"{preset}_tiny"})


# ----------------------------------------------------------------------------------------------------------- bundles


def damaged_safetensors(content: bytes, generator: random.Random) -> bytes:
    """Damaged as bytes, in the header, or in one of the weights."""
    kind = generator.randrange(3)
    if kind == 0:
        return damaged(content, generator)
    if kind == 1:
        end = 8 + int.from_bytes(content[:8], "little")
        header = damaged_json(content[8:end], generator)
        return len(header).to_bytes(8, "little") + header + content[end:]
    weights = safetensors.torch.load(content)
    name = generator.choice(list(weights))
    weights[name] = _another(weights[name], generator)
    return safetensors.torch.save(weights)


def _another(weight: Tensor, generator: random.Random) -> Tensor:
    """A weight of another type or shape than one that a file has."""
    kinds = ("float64", "float16", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn")
    shapes = (weight.flatten(), weight[..., :1], weight[:0], weight.sum(), weight[None], weight.transpose(0, -1))
    others = [*(weight.to(getattr(torch, kind)) for kind in kinds), *shapes, weight * float("nan")]
    return generator.choice(others).clone().contiguous()


def _damaged_lines(content: bytes, generator: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    place = generator.randrange(len(lines))
    words = (b"", b"\n", b"a\n", b"a b\n", b"a -1\n", b"<mask> 1\n", b"a\0 1\n", b"\xff 1\n", b"a \xc2\xb2\n", lines[0])
    lines[place] = generator.choice(words)
    return generator.choice([damaged(content, generator), content + content, b"".join(lines)])


FILES: dict[str, Damage] = {
    CONFIG: damaged_json,
    WEIGHTS: damaged_safetensors,
    DICTIONARY: _damaged_lines,
    TOKENIZER: damaged,
}
"""Those of a bundle, and how each is damaged."""


def damaged_bundles(place: Workplace, times: int) -> Iterator[Row]:
    """One of the files, and then the bundle is loaded and used."""
    cut = Row("a bundle of which one file is cut, at every length or many, or is missing", CLEAR)
    absurd = Row("a bundle with other values, weights of other types and shapes, other symbols, other bytes", CLEAR)
    bundle = place.directory / "bundle"
    write_bundle(make_pretrained(place), bundle)
    quietly(lambda: _use(bundle))
    for name, damage in FILES.items():
        path = bundle / name
        whole = path.read_bytes()
        path.unlink()
        cut.record(outcome(lambda: _use(bundle)))
        for row, contents in (
            (cut, cuts(whole, times)),
            (absurd, (damage(whole, place.random) for _ in range(2 * times))),
        ):
            for content in contents:
                path.unlink(missing_ok=True)  # the one before may still be mapped into memory
                path.write_bytes(content)
                row.record(outcome(lambda: _use(bundle)))
        path.unlink()
        path.write_bytes(whole)
    yield from (cut, absurd)


def _use(bundle: Path) -> None:
    model = MAELMModel.from_pretrained(str(bundle))
    if model.tokenizer is not None:
        model.fill_mask("a <mask> sat", topk=1)
    model.extract_features([0, 4, 5, 2])


# --------------------------------------------------------------------------------------------- checkpoints, and others'


def absurd_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """What a checkpoint holds is another thing: ours for a bundle, that of fairseq's RoBERTa for an import."""
    ours = Row("a checkpoint with other values, or weights of other types and shapes, to make a bundle of", WHOLE)
    others = Row("a checkpoint of fairseq's RoBERTa with other values, or weights of other types and shapes", WHOLE)
    pretrained = make_pretrained(place, relative_buckets=0)
    directory = place.directory / "data"
    write_import(pretrained, place.directory, directory)
    path = directory / "model.pt"
    state = torch.load(path, weights_only=True)
    options = {name: value for name, value in vars(pretrained.config).items() if name.startswith("encoder_")}
    names = names_of((*encoder_parts(False), LM_HEAD), "fairseq", pretrained.config.encoder_layers)
    roberta = {"cfg": {"model": {**options, "dropout": 0.1, "attention_dropout": 0.1}}, "args": None}
    roberta["model"] = to_theirs(pretrained.weights, names)

    def bundle(out: Path) -> None:
        write_bundle(read(path, directory), out)

    for name, row, content, action in (
        ("ours", ours, state, bundle),
        ("others", others, roberta, lambda out: _import(path, out)),
    ):
        torch.save(content, path)
        action(place.directory / name)
        for _ in range(times):
            torch.save(altered(content, place.random, (*VALUES, *TENSORS)), path)
            row.record(product_outcome(action, _check_model, place.directory / "out"))
    yield from (ours, others)


def _import(source: Path, out: Path) -> None:
    write_import(import_foreign(source, "mae_lm_roberta"), source, out)


def _check_model(out: Path) -> None:
    read(*((out / "model.pt", out) if (out / "model.pt").exists() else (out,)))


STOCK_FILES: dict[str, Damage] = {
    "config.json": damaged_json,
    "model.safetensors": damaged_safetensors,
    "tokenizer.json": damaged_json,
    "tokenizer_config.json": damaged_json,
    TOKENIZER: damaged,
}
"""Those of a directory of Hugging Face, and how each is damaged."""


def damaged_exports(place: Workplace, times: int) -> Iterator[Row]:
    """One of the files of a directory that we have exported, which then is imported."""
    row = Row("a directory of Hugging Face, cut, damaged, with other values, weights, tokens, to import", WHOLE)
    source = place.directory / "source"
    export_stock(make_pretrained(place, "mae_lm_roberta", relative_buckets=0), source)
    _import(source, place.directory / "sound")
    for name, damage in STOCK_FILES.items():
        path = source / name
        whole = path.read_bytes()
        for content in (*cuts(whole, times), *(damage(whole, place.random) for _ in range(2 * times))):
            path.write_bytes(content)
            row.record(product_outcome(lambda out: _import(source, out), _check_model, place.directory / "out"))
        path.write_bytes(whole)
    pickled = source / "pytorch_model.bin"
    weights = safetensors.torch.load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    for _ in range(2 * times):
        torch.save(altered(weights, place.random, (*VALUES, *TENSORS)), pickled)
        row.record(product_outcome(lambda out: _import(source, out), _check_model, place.directory / "out"))
    yield row


FAULTS = (
    (damaged_bundles, 25, 250),
    (absurd_checkpoints, 50, 500),
    (damaged_exports, 10, 100),
)
"""Function, times in a quick round, times in a full one."""

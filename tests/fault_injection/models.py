"""Damaged bundles, checkpoints and Hugging Face directories. Each function yields rows of the table."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis.strategies as st
import safetensors.torch
import torch
from hypothesis.strategies import SearchStrategy
from transformers import AutoModel, AutoTokenizer

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import read_training_state
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.names import FAIRSEQ, Part, names_of, to_theirs
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.original import CONFIG, KEPT_WEIGHTS
from mae_lm_fairseq.trained.reading import WEIGHTS, Pretrained
from mae_lm_fairseq.utils.hashes import HASHES
from tests.fault_injection.damage import (
    JSON,
    Damage,
    altered,
    attempt,
    attempt_file,
    damaged,
    damaged_json,
    damaged_lines,
)
from tests.fault_injection.outcomes import NO_CRASH, VALID_OR_NOTHING, outcome, product_outcome, quietly
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import Workplace
from tests.support.exports import WITHOUT_BIAS, pretrained
from tests.support.families import stock_model
from tests.support.glue import write_tokenizer

SIZES = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_ffn_embed_dim": 8, "encoder_attention_heads": 2}
TENSORS = st.sampled_from(
    [
        *(torch.zeros(()), torch.zeros(0), torch.ones(3), torch.ones(8, 8), torch.ones(16, 8), torch.ones(1, 8)),
        *(torch.full((24, 8), float("nan")), torch.ones(8, dtype=torch.int64), torch.ones(8, dtype=torch.float64)),
        *(torch.ones(8, dtype=torch.complex64), torch.ones(8, dtype=torch.bool), torch.ones(8, 8).to_sparse()),
        torch.ones(8, 8, device="meta"),
    ]
)
"""Replacements for a weight."""


def small_model(place: Workplace, preset: str = "mae_lm", **changes: int) -> Pretrained:
    """Return a small randomly initialised network with a tokenizer."""
    model = (write_tokenizer(place.directory / "tokenizer") / TOKENIZER).read_bytes()
    return pretrained(preset, {**SIZES, "max_positions": 16, **changes}, model)


def damaged_safetensors(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that damages the header, the type or shape of one weight, or the bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    headers = damaged_json(content[8:end])
    weights = safetensors.torch.load(content)

    def change(name: str, kind: int) -> bytes:
        weight = weights[name]
        types = ("float64", "float16", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn")
        others = [weight.to(getattr(torch, name)) for name in types]
        others += [weight.flatten(), weight[..., :1], weight[:0], weight.sum()]
        others += [weight[None], weight.transpose(0, -1), weight * float("nan")]
        return safetensors.torch.save({**weights, name: others[kind].clone().contiguous()})

    return (
        st.builds(change, st.sampled_from(sorted(weights)), st.integers(0, 13))
        | headers.map(lambda header: len(header).to_bytes(8, "little") + header + content[end:])
        | damaged(content)
    )


# ----------------------------------------------------------------------------------------------------------- bundles

BUNDLE_FILES: dict[str, Damage] = {
    CONFIG: damaged_json,
    WEIGHTS: damaged_safetensors,
    DICTIONARY: damaged_lines,
    TOKENIZER: damaged,
}


def damaged_bundles(place: Workplace, times: int) -> Iterator[Row]:
    """Damage one file of a bundle, then load and use the bundle."""
    row = Row("a bundle of which one file is damaged, cut or missing, or has other values, weights, symbols", NO_CRASH)
    bundle = place.directory / "bundle"
    write_bundle(small_model(place), bundle)
    (bundle / HASHES).unlink()  # as in bundles of earlier versions; with it, every damage is noticed before

    def use() -> None:
        model = MAELMModel.from_pretrained(str(bundle))
        if model.tokenizer is not None:
            model.fill_mask("a <mask> sat", topk=1)
        model.extract_features([0, 4, 5, 2])

    quietly(use)
    for name, damage in BUNDLE_FILES.items():
        path = bundle / name
        path.rename(bundle / "away")
        row.record(outcome(use))
        (bundle / "away").rename(path)
        attempt_file(place, row, path, damage, lambda: outcome(use), 2 * times, times)
    yield row


# --------------------------------------------------------------------------------------------- checkpoints, and others'


def absurd_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Replace objects in our checkpoint, which is bundled, and in one of fairseq's RoBERTa, which is imported."""
    ours = Row(
        "a checkpoint with other values, or weights of other types and shapes, to make a bundle of", VALID_OR_NOTHING
    )
    others = Row(
        "a checkpoint of fairseq's RoBERTa with other values, or weights of other types and shapes", VALID_OR_NOTHING
    )
    model = small_model(place, **WITHOUT_BIAS)
    directory = place.directory / "data"
    write_bundle(model, directory)
    path = directory / "model.pt"
    state = read_training_state(directory)
    options = {name: value for name, value in vars(model.config).items() if name.startswith("encoder_")}
    names = names_of((Part.encoder, Part.lm_head), FAIRSEQ, model.config.encoder_layers)
    roberta = {"cfg": {"model": {**options, "dropout": 0.1, "attention_dropout": 0.1}}, "args": None}
    roberta["model"] = to_theirs(model.weights, names)

    def bundle(out: Path) -> None:
        write_bundle(open_pretrained(path, directory), out)

    for row, valid, action in ((ours, state, bundle), (others, roberta, lambda out: _import(path, out))):
        torch.save(valid, path)
        action(place.directory / f"valid-{action.__name__}")
        attempt(place, row, _saved_case(place, path, action), altered(valid, JSON | TENSORS), times)
    yield from (ours, others)


def _saved_case(place: Workplace, path: Path, action: Callable[[Path], None]) -> Callable[[object], str | None]:
    def case(content: object) -> str | None:
        torch.save(content, path)
        return product_outcome(action, open_pretrained, place.directory / "out")

    return case


def _import(source: Path, out: Path) -> None:
    write_bundle(import_foreign(source, "mae_lm_roberta"), out)


STOCK_FILES: dict[str, Damage] = {
    "config.json": damaged_json,
    "model.safetensors": damaged_safetensors,
    "tokenizer.json": damaged_json,
    "tokenizer_config.json": damaged_json,
    TOKENIZER: damaged,
}


def damaged_exports(place: Workplace, times: int) -> Iterator[Row]:
    """Damage one file of an exported directory, then import it."""
    row = Row(
        "a directory of Hugging Face, cut, damaged, with other values, weights, tokens, to import", VALID_OR_NOTHING
    )
    source = place.directory / "source"
    export_stock(small_model(place, "mae_lm_roberta", **WITHOUT_BIAS), source)
    _import(source, place.directory / "valid")

    def import_source(out: Path) -> None:
        _import(source, out)

    _damage_files(place, row, source, STOCK_FILES, import_source, open_pretrained, times)
    weights = safetensors.torch.load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    case = _saved_case(place, source / "pytorch_model.bin", import_source)
    attempt(place, row, case, altered(weights, JSON | TENSORS), 2 * times)
    yield row


def damaged_originals(place: Workplace, times: int) -> Iterator[Row]:
    """Damage one file of a model in several files, then import it; and one that an import has kept, then export it."""
    source, bundle = place.directory / "several", place.directory / "imported"
    stock_model(source, "bert")
    weights = safetensors.torch.load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    names = sorted(weights)
    for number in range(2):
        part = {name: weights[name] for name in names[number::2]}
        safetensors.torch.save_file(part, source / f"model-{number}.safetensors")
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    _import(source, bundle)
    (bundle / HASHES).unlink()
    row = Row("a directory of Hugging Face with several files of weights and an index, to import", VALID_OR_NOTHING)
    files = {"model.safetensors.index.json": damaged_json, "model-1.safetensors": damaged_safetensors}
    _damage_files(place, row, source, files, lambda out: _import(source, out), open_pretrained, times)
    yield row
    row = Row("files that an import has kept, to export", VALID_OR_NOTHING)
    files = {"config.json": damaged_json, KEPT_WEIGHTS: damaged_safetensors, "tokenizer.json": damaged_json}
    export = lambda out: export_stock(open_pretrained(bundle), out)  # noqa: E731
    _damage_files(place, row, bundle / "original", files, export, _check_stock, times)
    yield row


def _damage_files(
    place: Workplace,
    row: Row,
    directory: Path,
    files: dict[str, Damage],
    action: Callable[[Path], object],
    check: Callable[[Path], object],
    times: int,
) -> None:
    """Damage one of the files of a directory after the other, and check what the action makes of the directory."""
    for name, damage in files.items():
        case = functools.partial(product_outcome, action, check, place.directory / "out")
        attempt_file(place, row, directory / name, damage, case, 2 * times, times)


def _check_stock(out: Path) -> None:
    AutoModel.from_pretrained(out)
    AutoTokenizer.from_pretrained(out)


FAULTS = (
    Fault(damaged_originals, 4, 10, 100),
    Fault(damaged_bundles, 10, 25, 250),
    Fault(absurd_checkpoints, 20, 50, 500),
    Fault(damaged_exports, 4, 10, 100),
)

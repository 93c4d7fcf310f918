"""One bit of a file that a command has written is flipped, and the file is opened again, as other commands do."""

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mae_lm_fairseq.study.engine import begin, collect
from mae_lm_fairseq.study.history import read_history
from mae_lm_fairseq.tasks.splits import check_token_ids, load_dictionary
from mae_lm_fairseq.text.data_bin import TOKENIZER, check_data_bin
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.preparation import prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.checkpoint_file import load_as_data, save_safetensors
from mae_lm_fairseq.trained.conversion import read_training_state
from mae_lm_fairseq.trained.file_checks import compared_files
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.original import Original
from mae_lm_fairseq.trained.reading import Pretrained, read_bundle
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.directories import write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_json
from tests.fault_injection.models import small_model
from tests.fault_injection.outcomes import quietly
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.studies import finish_training, plan_of_two_models
from tests.fault_injection.training import Workplace
from tests.support.exports import WITHOUT_BIAS

UNCHECKED = {
    "README.md of a bundle": "people edit model cards, and no program reads them",
    "files of an export": "they are plain files of transformers, which its users save again",
}
"""Kinds of files without a check, and why."""


@dataclass
class Kind:
    """A kind of file.

    Attributes:
        name: what it is.
        paths: the files, which take turns.
        read: opens them, and returns what was read.
    """

    name: str
    paths: list[Path]
    read: Callable[[], Any]


def flipped_bits(place: Workplace, times: int) -> Iterator[Row]:
    """Flip bits of each kind of file; a change of what is read without an error message is a loss."""
    for kind in kinds(place):
        yield flip(kind, place.random, times)


def flip(kind: Kind, generator: random.Random, times: int) -> Row:
    """Flip one bit after another, each in the intact file, and count what is noticed, harmless and silent."""
    expected, noticed, harmless, problems = _digest(quietly(kind.read)), 0, 0, []
    for number in range(times):
        path = kind.paths[number % len(kind.paths)]
        content = path.read_bytes()
        place, bit = generator.randrange(len(content)), generator.randrange(8)
        path.unlink()  # it may be memory-mapped
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        problem = None
        try:
            same = _digest(quietly(kind.read)) == expected
        except (UserError, SystemExit):
            noticed += 1
        except BaseException as error:
            problem = repr(error)[:150]
        else:
            harmless += same
            problem = None if same else "read without a word"
        if problem:
            problems.append(f"{path.name}, byte {place}, bit {bit}: {problem}")
        path.unlink()
        path.write_bytes(content)
    counts = f"{noticed} noticed, {harmless} harmless, {len(problems)} silent"
    if reason := UNCHECKED.get(kind.name):
        return Row(f"one bit of {kind.name} is flipped", f"not checked: {reason} ({counts})", times)
    row = Row(f"one bit of {kind.name} is flipped", f"an error message, or what is read is the same ({counts})", times)
    row.losses = problems
    return row


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(_plain(content)).encode(errors="surrogatepass")).hexdigest()


def _plain(content: Any) -> Any:
    """Return content whose representation shows all of it."""
    if isinstance(content, torch.Tensor):
        return hashlib.sha256(content.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    if isinstance(content, Pretrained):
        tokenizer = content.tokenizer and content.tokenizer.files
        return _plain([content.config, content.weights, content.symbols, content.about, content.original, tokenizer])
    if isinstance(content, Original):
        return _plain([dict(content.files), dict(content.weights)])
    if isinstance(content, dict):
        return {name: _plain(value) for name, value in content.items()}
    return [_plain(value) for value in content] if isinstance(content, list | tuple) else content


# ------------------------------------------------------------------------------------------------------------- kinds


def kinds(place: Workplace) -> Iterator[Kind]:
    """Yield all kinds of files, each with intact ones."""
    directory, pretrained = place.directory, small_model(place, "mae_lm_roberta", **WITHOUT_BIAS)
    checkpoint, bundle, exported, imported = (directory / name for name in ("a.pt", "bundle", "exported", "imported"))
    write_bundle(pretrained, bundle, add_tokenizer_and_card)
    torch.save(read_training_state(bundle), checkpoint)
    yield Kind("a checkpoint", [checkpoint], lambda: load_as_data(checkpoint))
    export_stock(pretrained, exported)
    write_bundle(import_foreign(exported, "mae_lm_roberta"), imported, add_tokenizer_and_card)
    for path in sorted(bundle.iterdir()):
        yield Kind(f"{path.name} of a bundle", [path], partial(read_bundle, bundle))
    originals = [path for path in sorted((imported / "original").rglob("*")) if path.is_file()]
    yield Kind("files that an import has kept", originals, partial(read_bundle, imported))
    yield Kind("files of an export", sorted(exported.iterdir()), partial(import_foreign, exported, "mae_lm_roberta"))
    yield from _of_data(directory)
    yield from _of_study(directory / "study", checkpoint)
    yield from _of_finetuning(directory / "finetuned", bundle)


def _of_data(directory: Path) -> Iterator[Kind]:
    data = directory / "data-bin"
    for split in ("train", "valid"):
        (directory / f"{split}.txt").write_text("\n\n".join(["a cat sat on a mat"] * 200), encoding="utf-8")
    texts = ((str(directory / f"{split}.txt"),) for split in ("train", "valid"))
    tokenizer = str(directory / "tokenizer" / TOKENIZER)
    prepare(PreparationOptions(*texts, data, tokenizer=tokenizer, max_unk_rate=1.0, workers=1))

    def read() -> list:
        """Open a data-bin as a training does."""
        cfg = SimpleNamespace(data=str(data))
        check_token_ids(cfg)
        symbols, tokenizer = load_dictionary(cfg).symbols, find_tokenizer(data)
        for split in ("train", "valid"):
            check_data_bin(data / split)
        bits = [(data / f"{split}.{suffix}").read_bytes() for split in ("train", "valid") for suffix in ("bin", "idx")]
        return [symbols, read_counts(data / "dict.txt"), tokenizer.files, bits, asdict(Manifest.read(data / MANIFEST))]

    for path in sorted(data.iterdir()):
        yield Kind(f"{path.name} of a data-bin", [path], read)


def _of_study(out: Path, checkpoint: Path) -> Iterator[Kind]:
    out.mkdir()
    (out / "data-bin").mkdir()
    plan = plan_of_two_models(seeds=2, data=out / "data-bin")

    def report() -> dict[str, Any]:
        """Continue the study, which is finished."""
        products = Products(out, "mae-lm study", ())
        workspace = begin(plan, out, 1)
        return {"results": collect(workspace), "made": products.has("x", 1), "plan": read_history(out / "plan.json")}

    def compare() -> None:
        """Compare as mae-lm doctor does."""
        if problems := [problem for _, problem in compared_files(out) if problem]:
            raise UserError(problems[0])

    Products(out, "mae-lm study", ())
    workspace = begin(plan, out, 1)
    for model in plan.models:
        for seed in model.all_seeds:
            training = workspace.training(model, None, seed)
            (training.folder / "models").mkdir(parents=True)
            moments = training.folder / "rank-1-key.safetensors"
            save_safetensors({"products": torch.rand(8, 8)}, moments)
            shutil.copy(checkpoint, training.checkpoint(1))
            finish_training(workspace, model, seed, {moments.name: file_sha256(moments)})
    report()
    yield Kind("plan.json of a study", [out / "plan.json"], report)
    yield Kind("made.json of a study", [out / "made.json"], report)
    yield Kind("results of a study's trainings", sorted((out / "runs").glob("*/training-1.json")), report)

    def read_results() -> Any:
        compare()
        content = read_json(out / "results.json")
        return [content[name] for name in ("title", "plan", "files", "changes", "looks", "rates", "runs")]

    def read_moments() -> list[bytes]:
        compare()
        return [path.read_bytes() for path in moments]

    def read_models() -> list[dict[str, Any]]:
        compare()
        return [load_as_data(path) for path in models]

    moments, models = (sorted((out / "runs").glob(pattern)) for pattern in ("*/*.safetensors", "*/models/1.pt"))
    yield Kind("results.json of a study", [out / "results.json"], read_results)
    yield Kind("second moments of a study", moments, read_moments)
    yield Kind("models of a study", models, read_models)


def _of_finetuning(out: Path, bundle: Path) -> Iterator[Kind]:
    out.mkdir()
    shutil.copytree(bundle, out / "model")
    write_results(out, {"task": "RTE", "metrics": {"accuracy": {"values": [70.5, 71.25]}}}, "a report")

    def read() -> list:
        if problems := [problem for _, problem in compared_files(out) if problem]:
            raise UserError(problems[0])
        content = read_json(out / "results.json")
        return [content["task"], content["metrics"], read_bundle(out / "model")]

    model = [path for path in sorted((out / "model").iterdir()) if path.name != "README.md"]
    yield Kind("a fine-tuned model", model, read)
    yield Kind("results.json of a fine-tuning", [out / "results.json"], read)


FAULTS = (Fault(flipped_bits, 12, 60, 200),)

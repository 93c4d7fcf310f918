"""Damaged data-bins, texts and checkpoints. Each function yields rows of the table.

Every case must end with an error message, or succeed where its row allows that. Files that it leaves on the disk must
be valid.
"""

import functools
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from mae_lm_fairseq.text.data_bin import DataBinWriter, check_data_bin
from mae_lm_fairseq.text.manifest import Manifest, SplitStatistics
from mae_lm_fairseq.text.moving import PARTS
from mae_lm_fairseq.text.preparation import prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.utils.files import write_json
from tests.fault_injection.damage import BYTES, TEXTS, attempt, attempt_file, damaged, damaged_json, damaged_lines
from tests.fault_injection.outcomes import NO_CRASH, VALID_OR_NOTHING, outcome
from tests.fault_injection.report import Fault, Row
from tests.fault_injection.training import Workplace

VOCABULARY = 64


# ---------------------------------------------------------------------------------------------------------- data-bin


def write_data_bin(prefix: Path, lines: int = 12) -> None:
    """Write a data-bin with lines of different lengths and tokens from 4 to 63."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 7, size=lines)
    with DataBinWriter(prefix, VOCABULARY) as writer:
        writer.write(generator.integers(4, VOCABULARY, size=sizes.sum()), sizes)


def read_data_bin(prefix: Path) -> None:
    """Read a data-bin as training does: validate it, then read every line."""
    check_data_bin(prefix, VOCABULARY)
    dataset = MMapIndexedDataset(str(prefix))
    for number in range(len(dataset)):
        if len(dataset[number]) != dataset.sizes[number]:
            raise ValueError(f"line {number} has another length")


def damaged_data_bins(place: Workplace, times: int) -> Iterator[Row]:
    """Damage the bytes of a data-bin or truncate it at every length; it must be refused or read completely."""
    row = Row("a data-bin whose .idx or .bin is cut, at every length, or changed anywhere", NO_CRASH)
    prefix = place.directory / "train"
    write_data_bin(prefix)
    for suffix in (".idx", ".bin"):
        path, case = prefix.with_suffix(suffix), functools.partial(outcome, functools.partial(read_data_bin, prefix))
        attempt_file(place, row, path, damaged, case, times, lengths=path.stat().st_size)
    yield row


def damaged_dictionaries(place: Workplace, times: int) -> Iterator[Row]:
    """Damage ``dict.txt`` as read by the task."""
    row = Row("a dict.txt that is damaged, or has an entry twice", NO_CRASH)
    path = place.directory / "dict.txt"
    path.write_text("".join(f"\u2581w{n} {n}\n" for n in range(20)), encoding="utf-8")
    load, cfg = tasks.get_task("masked_autoencoder_lm").load_dict, _parse(str(place.directory)).task
    attempt_file(place, row, path, damaged_lines, lambda: outcome(lambda: load(cfg)), times)
    yield row


def damaged_manifests(place: Workplace, times: int) -> Iterator[Row]:
    """Damage ``manifest.json``."""
    row = Row("a manifest.json that is damaged, or has other values", NO_CRASH)
    path = place.directory / "manifest.json"
    manifest = Manifest({}, {}, "0", "0", {"train": SplitStatistics(1, 1, 1, 1, 1, 1.0)})
    write_json(path, asdict(manifest))  # without the hash of itself, which notices every damage
    attempt_file(place, row, path, damaged_json, lambda: outcome(lambda: Manifest.read(path)), times)
    yield row


# -------------------------------------------------------------------------------------------------------------- text


def absurd_texts(place: Workplace, times: int) -> Iterator[Row]:
    """Run arbitrary text through the whole preparation, with a new and with an existing tokenizer."""
    row = Row(
        "text of any bytes or characters, NULs, lone surrogates, endless lines, empty documents", VALID_OR_NOTHING
    )
    (place.directory / "valid.txt").write_text("a b c d e f g\n" * 20)
    (place.directory / "sane.txt").write_text("abc de fg hi jkl mnop\nqrs tuv wxyz\n\n" * 50)
    sane, text = place.directory / "sane", place.directory / "text.txt"
    prepare(_options(place, "sane.txt", sane, vocab_size=60))

    def case(content: bytes, **tokenizer: object) -> str | None:
        text.write_bytes(content)
        with tempfile.TemporaryDirectory(dir=place.directory) as directory:
            destination = Path(directory, "data-bin")
            action = functools.partial(prepare, _options(place, text.name, destination, **tokenizer))
            return outcome(action) or _is_valid_or_missing(destination)

    for tokenizer in ({"vocab_size": 60}, {"tokenizer": str(sane / "sentencepiece.bpe.model")}):
        attempt(place, row, functools.partial(case, **tokenizer), BYTES.map(lambda text: text * 10), 2 * times, TEXTS)
    yield row


def _options(place: Workplace, train: str, destdir: Path, **tokenizer) -> PreparationOptions:
    paths = [(str(place.directory / name),) for name in (train, "valid.txt")]
    coverage = {"character_coverage": 1.0} if "vocab_size" in tokenizer else {}
    return PreparationOptions(*paths, destdir, **tokenizer, **coverage, max_unk_rate=1.0, workers=1)


def _is_valid_or_missing(directory: Path) -> str | None:
    files = sorted(path.name for path in directory.iterdir() if path.name != PARTS) if directory.exists() else []
    if not files:
        return None
    if "manifest.json" not in files or len(files) != 7:
        return f"left behind: {files}"
    return outcome(lambda: [check_data_bin(directory / split) for split in ("train", "valid")])


# ------------------------------------------------------------------------------------------------------- checkpoints


def truncated_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Truncate or damage a checkpoint as read by every fairseq command."""
    on = "an error message, or exactly the weights that were saved"
    row = Row("a checkpoint that is cut or damaged, read as every command reads it", on)
    path = place.directory / "checkpoint.pt"
    state = {"model": {"weight": torch.arange(500.0)}, "args": None, "cfg": {"model": None}, "extra_state": {}}
    torch.save({**state, "optimizer_history": [{}]}, path)

    def load() -> None:
        loaded = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        if not torch.equal(loaded["model"]["weight"], state["model"]["weight"]):
            raise ValueError("other weights were read")

    attempt_file(place, row, path, damaged, lambda: outcome(load), times // 2, times // 2)
    yield row


_BASE = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --cpu --optimizer adam "
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --batch-size 4 "
    "--encoder-attention-heads 2 --max-positions 16 --tokens-per-sample 16"
)


def _parse(data: str, *arguments: str):
    parsed = options.parse_args_and_arch(options.get_training_parser(), [data, *_BASE, *arguments])
    return convert_namespace_to_omegaconf(parsed)


FAULTS = (
    Fault(damaged_data_bins, 100, 250, 2000),
    Fault(damaged_dictionaries, 30, 50, 500),
    Fault(damaged_manifests, 100, 200, 2000),
    Fault(absurd_texts, 1, 1, 20),
    Fault(truncated_checkpoints, 40, 100, 1000),
)

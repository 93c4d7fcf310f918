"""Damaged data-bins, texts and checkpoints, and invalid options. Each function yields rows of the table.

Every case must end with an error message, or succeed where its row allows that. Files that it leaves on the disk must
be valid.
"""

import functools
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import torch
from fairseq import checkpoint_utils, optim, options, tasks
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from mae_lm_fairseq.fairseq_patches import option_checks
from mae_lm_fairseq.text.data_bin import DataBinWriter, check_data_bin, check_token_range
from mae_lm_fairseq.text.preparation import PARTS, prepare
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from tests.fault_injection.damage import BYTES, TEXTS, attempt, attempt_file, damaged, damaged_lines
from tests.fault_injection.outcomes import NO_CRASH, VALID_OR_NOTHING, outcome
from tests.fault_injection.parsers import PARSERS, parse
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
    check_data_bin(prefix)
    check_token_range(prefix, VOCABULARY)
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


def damaged_files(place: Workplace, times: int) -> Iterator[Row]:
    """Damage the input of our own parsers."""
    row = Row(f"a damaged file for one of our parsers: {', '.join(PARSERS)}", NO_CRASH)
    for name, parser in PARSERS.items():
        case = lambda content: outcome(lambda: parse(name, content, place.directory))  # noqa: B023, E731
        attempt(place, row, case, parser.damage(parser.sample), times)
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


# ------------------------------------------------------------------------------------------- checkpoints and options


def truncated_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Truncate or damage a checkpoint as read by every fairseq command."""
    on = "an error message, or exactly the weights that were saved"
    row = Row("a checkpoint that is cut or damaged, read as every command reads it", on)
    path = place.directory / "checkpoint.pt"
    state = {"model": {"weight": torch.arange(500.0)}, "args": None, "cfg": {"model": None}, "extra_state": {}}
    torch.save({**state, "optimizer_history": [{}]}, path)

    def load() -> None:
        found = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        if not torch.equal(found["model"]["weight"], state["model"]["weight"]):
            raise ValueError("other weights were read")

    attempt_file(place, row, path, damaged, lambda: outcome(load), times // 2, times // 2)
    yield row


RANGES = {
    **dict.fromkeys(
        (
            *("encoder-layers", "encoder-embed-dim", "encoder-ffn-embed-dim", "encoder-attention-heads"),
            *("decoder-layers", "decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads"),
            *("max-positions", "tokens-per-sample", "relative-buckets", "decoder-relative-buckets"),
            *("mask-join-layer", "mask-multiple-length", "batch-size", "num-workers", "seed"),
        ),
        ("-1", "0", "1", "2", "3", "7", "1000", "1.5", "many", "99999999999999999999"),
    ),
    **dict.fromkeys(
        (
            *("mask-prob", "leave-unmasked-prob", "random-token-prob", "mask-in-encoder", "mask-stdev"),
            *("dropout", "attention-dropout", "lr", "clip-norm", "weight-decay", "adam-eps"),
        ),
        ("-0.5", "0", "0.5", "1", "1.5", "nan", "inf", "1e-400", "half"),
    ),
    "sample-break-mode": ("none", "complete", "complete_doc", "eos", "sometimes"),
    "mask-join": ("embeddings", "encoder", "decoder", "nowhere"),
    "attention-backend": ("auto", "eager", "sdpa", "fused", "fast"),
    "optimizer": ("adam", "fused_adamw"),
    "adam-betas": ("(0.9, 0.98)", "()", "1", "0.9", "(2, 3)"),
}
"""Valid and invalid values of options."""
_BASE = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --cpu --optimizer adam "
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --batch-size 4 "
    "--encoder-attention-heads 2 --max-positions 16 --tokens-per-sample 16"
)


_SETTINGS = st.sampled_from([(f"--{name}", value) for name, values in RANGES.items() for value in values])


def absurd_options(place: Workplace, times: int) -> Iterator[Row]:
    """Set one to three options to values from :data:`RANGES`, and train up to the first update."""
    row = Row("options of the model and of the task with values out of range, one to three at a time", NO_CRASH)
    directory = place.directory
    (directory / "dict.txt").write_text("".join(f"\u2581w{n} 1\n" for n in range(VOCABULARY - 4)), encoding="utf-8")
    write_data_bin(directory / "train")
    chosen = st.lists(_SETTINGS, min_size=1, max_size=3, unique_by=lambda pair: pair[0])

    def case(options: list[tuple[str, str]]) -> str | None:
        return outcome(lambda: _set_up(str(directory), *(word for option in options for word in option)))

    attempt(place, row, case, chosen, times)
    yield row


def _parse(data: str, *arguments: str):
    parsed = options.parse_args_and_arch(options.get_training_parser(), [data, *_BASE, *arguments])
    return convert_namespace_to_omegaconf(parsed)


def _set_up(data: str, *arguments: str) -> None:
    cfg = _parse(data, "--save-dir", f"{data}/saved", *arguments)
    option_checks.check_settings(cfg)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    task.load_dataset("train")
    sample = task.dataset("train").collater([task.dataset("train")[0]])
    loss, _, _ = task.build_criterion(cfg.criterion)(model, sample)
    optimizer = optim.build_optimizer(cfg.optimizer, list(model.parameters()))
    optimizer.backward(loss)
    optimizer.step()


FAULTS = (
    Fault(damaged_data_bins, 100, 250, 2000),
    Fault(damaged_dictionaries, 30, 50, 500),
    Fault(damaged_files, 100, 200, 2000),
    Fault(absurd_texts, 1, 1, 20),
    Fault(truncated_checkpoints, 40, 100, 1000),
    Fault(absurd_options, 15, 30, 300),
)

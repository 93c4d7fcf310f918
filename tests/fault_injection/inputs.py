"""Input that is damaged, absurd or hostile. Each function makes rows of the table.

Every case has to end in one line that says what is wrong, or in success where its row allows that; and what is left
behind on the disk is whole, or is nothing.
"""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils, optim, options, tasks
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from mae_lm_fairseq.fairseq_patches import option_checks
from mae_lm_fairseq.text.data_bin import DataBinWriter, check_data_bin, check_token_range
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.preparation import Options, prepare
from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection.damage import TEXTS, damaged
from tests.fault_injection.outcomes import CLEAR, WHOLE, outcome
from tests.fault_injection.report import Row
from tests.fault_injection.workplace import Workplace

VOCABULARY = 64


# ---------------------------------------------------------------------------------------------------------- data-bin


def write_data_bin(prefix: Path, lines: int = 12) -> None:
    """Lines of different lengths, tokens from 4 to 63."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 7, size=lines)
    with DataBinWriter(prefix, VOCABULARY) as writer:
        writer.write(generator.integers(4, VOCABULARY, size=sizes.sum()), sizes)


def read_data_bin(prefix: Path) -> None:
    """As training reads it: checked first, then every line."""
    if check_data_bin(prefix) is None:
        return  # of another implementation of fairseq's: not ours to read
    check_token_range(prefix, VOCABULARY)
    dataset = MMapIndexedDataset(str(prefix))
    for number in range(len(dataset)):
        if len(dataset[number]) != dataset.sizes[number]:
            raise ValueError(f"line {number} has another length")


def truncated_data_bins(place: Workplace, times: int) -> Iterator[Row]:
    """Cut at every length: never taken for whole."""
    row = Row("a data-bin whose .idx or .bin is cut, at every length", "one line that says so")
    prefix = place.directory / "train"
    write_data_bin(prefix, lines=times)
    for path in (prefix.with_suffix(".idx"), prefix.with_suffix(".bin")):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            row.record(_is_refused(lambda: read_data_bin(prefix)))
        path.write_bytes(whole)
    yield row


def _is_refused(action: Callable[[], object]) -> str | None:
    try:
        action()
    except UserError:
        return None
    except Exception as error:  # any other is what we look for
        return f"{type(error).__name__}: {error}"
    return "it was taken for whole"


def damaged_data_bins(place: Workplace, times: int) -> Iterator[Row]:
    """Bytes changed anywhere in the index: sizes, offsets, type of the tokens, number of lines."""
    row = Row("a data-bin whose index is changed: token type, sizes, offsets, anything", CLEAR)
    prefix = place.directory / "train"
    write_data_bin(prefix)
    path = prefix.with_suffix(".idx")
    whole = path.read_bytes()
    for place_of_change in range(len(whole)):  # each byte once, then anything
        changed = bytes([whole[place_of_change] ^ 1 << place.random.randrange(8)])
        path.write_bytes(whole[:place_of_change] + changed + whole[place_of_change + 1 :])
        row.record(outcome(lambda: read_data_bin(prefix)))
    for _ in range(times):
        path.write_bytes(damaged(whole, place.random))
        row.record(outcome(lambda: read_data_bin(prefix)))
    yield row


def damaged_dictionaries(place: Workplace, times: int) -> Iterator[Row]:
    """``dict.txt`` and ``manifest.json``, as the task reads them."""
    dictionaries = Row("a dict.txt that is damaged, or has an entry twice", CLEAR)
    manifests = Row("a manifest.json that is damaged", CLEAR)
    path, whole = place.directory / "dict.txt", "".join(f"\u2581w{n} {n}\n" for n in range(20)).encode()
    absurd = [
        whole + whole,
        b"",
        b"\n",
        b"a\n",
        b"a b\n",
        b"a 1e9\n",
        b"a -1\n",
        b"<s> 1\n",
        b"\xff 1\n",
        b"a 1 #fairseq:x\n",
    ]
    load = tasks.get_task("masked_autoencoder_lm").load_dict
    cfg = _parse(str(place.directory)).task
    for content in (*absurd, *(damaged(whole, place.random) for _ in range(times))):
        path.write_bytes(content)
        dictionaries.record(outcome(lambda: load(cfg)))
    path = place.directory / "manifest.json"
    Manifest({"python": "3"}, {"workers": 1}, "0" * 64, "0" * 64, {}).write(path)
    whole = path.read_bytes()
    absurd = [b"", b"[]", b"null", b"1", b'{"splits": 1}', b'{"splits": {"train": []}}', b"[" * 100_000, b"\xff\xfe"]
    for content in (*absurd, *(damaged(whole, place.random) for _ in range(times))):
        path.write_bytes(content)
        manifests.record(outcome(lambda: Manifest.read(path)))
    yield from (dictionaries, manifests)


# -------------------------------------------------------------------------------------------------------------- text


def absurd_texts(place: Workplace, times: int) -> Iterator[Row]:
    """Through the whole preparation, with a new tokenizer and with a given one."""
    row = Row("text of random bytes, NULs, lone surrogates, noncharacters, endless lines, empty documents", WHOLE)
    (place.directory / "valid.txt").write_text("a b c d e f g\n" * 20)
    (place.directory / "sane.txt").write_text("abc de fg hi jkl mnop\nqrs tuv wxyz\n\n" * 50)
    sane = place.directory / "sane"
    prepare(_options(place, "sane.txt", sane, vocab_size=60))
    for number in range(times):
        for name, make in TEXTS.items():
            text = place.directory / f"{number} {name}.txt"
            text.write_bytes(make(place.random))
            for given in (None, str(sane / "sentencepiece.bpe.model")):
                destination = place.directory / f"{number} {name} {'own' if given is None else 'given'}"
                choice = {"vocab_size": 60} if given is None else {"sentencepiece_model": given}
                action = lambda: prepare(_options(place, text.name, destination, **choice))  # noqa: B023, E731
                row.record(outcome(action) or _is_whole_or_nothing(destination))
    yield row


def _options(place: Workplace, train: str, destdir: Path, vocab_size=None, sentencepiece_model=None) -> Options:
    paths = [[str(place.directory / name)] for name in (train, "valid.txt")]
    return Options(*paths, str(destdir), vocab_size, sentencepiece_model, 1.0, 1.0, 1)


def _is_whole_or_nothing(directory: Path) -> str | None:
    files = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if not files:
        return None
    if "manifest.json" not in files or len(files) != 7:
        return f"left behind: {files}"
    return outcome(lambda: [check_data_bin(directory / split) for split in ("train", "valid")])


# ------------------------------------------------------------------------------------------- checkpoints and options


def truncated_checkpoints(place: Workplace, times: int) -> Iterator[Row]:
    """Cut or damaged, read as every command of fairseq reads it."""
    on = "one line that says so, or the very weights that were saved"
    row = Row("a checkpoint that is cut or damaged, read as every command reads it", on)
    path = place.directory / "checkpoint.pt"
    state = {"model": {"weight": torch.arange(500.0)}, "args": None, "cfg": {"model": None}, "extra_state": {}}
    torch.save({**state, "optimizer_history": [{}]}, path)
    whole = path.read_bytes()

    def load() -> None:
        found = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        if not torch.equal(found["model"]["weight"], state["model"]["weight"]):
            raise ValueError("other weights were read")

    for number in range(times):
        content = whole[: len(whole) * number // times] if number % 2 else damaged(whole, place.random)
        path.write_bytes(content)
        row.record(outcome(load))
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
    "attention-backend": ("auto", "eager", "sdpa", "flex", "fast"),
    "optimizer": ("adam", "fused_adamw"),
    "adam-betas": ("(0.9, 0.98)", "()", "1", "0.9", "(2, 3)"),
}
"""Values that options are given at random, sound and unsound."""
_BASE = shlex.split(
    "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --cpu --optimizer adam "
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 --batch-size 4 "
    "--encoder-attention-heads 2 --max-positions 16 --tokens-per-sample 16"
)


def absurd_options(place: Workplace, times: int) -> Iterator[Row]:
    """One to three options with values from :data:`RANGES`, as far as the first update."""
    row = Row("options of the model and of the task with values out of range, one to three at a time", CLEAR)
    directory = place.directory
    (directory / "dict.txt").write_text("".join(f"\u2581w{n} 1\n" for n in range(VOCABULARY - 4)), encoding="utf-8")
    write_data_bin(directory / "train")
    for _ in range(times):
        names = place.random.sample(sorted(RANGES), place.random.randint(1, 3))
        chosen = [word for name in names for word in (f"--{name}", place.random.choice(RANGES[name]))]
        problem = outcome(lambda: _set_up(str(directory), *chosen))  # noqa: B023
        row.record(problem and f"{' '.join(chosen)}: {problem}")
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
    (truncated_data_bins, 12, 100),
    (damaged_data_bins, 100, 2000),
    (damaged_dictionaries, 50, 500),
    (absurd_texts, 1, 5),
    (truncated_checkpoints, 100, 1000),
    (absurd_options, 30, 300),
)
"""Function, times in a quick round, times in a full one."""

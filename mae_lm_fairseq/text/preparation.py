"""Data preparation: raw text to a data-bin with tokenizer, dictionary and manifest, in one go.

``preparation_in_parts`` makes shards, works on several machines, and can be resumed.
"""

import os
import shutil
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

from tqdm import tqdm

from mae_lm_fairseq.text.corpus import Reading, file_pieces, open_corpus, sample_corpus
from mae_lm_fairseq.text.data_bin import DICTIONARY, DataBinWriter, check_data_bin, dictionary_fingerprint
from mae_lm_fairseq.text.encoding import EncodingPool, RunningStatistics, encode_pieces
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics, current_versions
from mae_lm_fairseq.text.sentencepiece_tokenizer import LARGEST_VOCABULARY, LOWEST_COVERAGE, SMALLEST_VOCABULARY
from mae_lm_fairseq.text.text_files import expand
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import TOKENIZER_FILES, open_tokenizer_path
from mae_lm_fairseq.text.tokenizer_training import DEFAULT_KIND, TRAINED_KINDS, train_tokenizer
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import uninterrupted

SAMPLE_BYTES = 50_000_000
_MACHINES = ("workers", "part", "merge", "scheduler")
_UNFINISHED = "unfinished"
# In the order in which they are moved to their destination, after the tokenizer; the last one completes the data-bin.
_PRODUCTS = (DICTIONARY, "train.bin", "valid.bin", "train.idx", "valid.idx", MANIFEST)


class PartFraction(NamedTuple):
    """The I-th of N fractions of the parts."""

    number: int
    count: int


def _parse_fraction(text: str) -> PartFraction:
    try:
        fraction = PartFraction(*map(int, text.split("/")))
    except (ValueError, TypeError):
        raise ArgumentTypeError(f"{text}: must be I/N, such as 1/8") from None
    if not 1 <= fraction.number <= fraction.count:
        raise ArgumentTypeError(f"{text}: I must be from 1 to N")
    return fraction


@dataclass(frozen=True)
class PreparationOptions(Options):
    """Options of a preparation.

    Attributes:
        train, valid: files, globs, and directories (hidden files are ignored).
        destdir: directory for the data-bin; no file is overwritten.
        vocab_size: train a tokenizer of N subwords, including <unk>, <s> and </s>, on a sample of some 50 MB of the
            training text; fairseq's dictionary also has <pad> and <mask>, so the model's embedding table has N + 2
            rows.
        tokenizer: kind of tokenizer to train: sentencepiece-bpe, sentencepiece-unigram, byte-bpe (default:
            sentencepiece-bpe); or an existing one: a sentencepiece model, a tokenizer.json, a directory of Hugging
            Face, a data-bin or bundle, or a directory with GPT-2's encoder.json and vocab.bpe and fairseq's dict.txt.
        text_field: field with the text, in files with records.
        skip_malformed: skip and count malformed records instead of stopping.
        character_coverage: fraction of the text's characters that the trained model knows (byte-bpe knows all); lower
            it for text with thousands of rare characters, which then become <unk>.
        max_unk_rate: stop if more than this fraction of a split's tokens is <unk>.
        workers: number of worker processes (default: number of available cores).
        shards: spread the training documents over N data-bins DIR/shard0, DIR/shard1, ..., which fairseq-train reads in
            turn, one in each epoch (at most 256: so many pairs of files are open at the same time).
        part: make only the I-th of N fractions of the parts, in DIR/parts; run it for I from 1 to N, on any machines
            that share a file system, then use --merge.
        merge: merge the parts that --part has made.
        scheduler: encode on the Dask cluster of this scheduler, such as tcp://host:8786.
    """

    train: Annotated[tuple[str, ...], Argument("PATH")]
    valid: Annotated[tuple[str, ...], Argument("PATH")]
    destdir: Directory
    vocab_size: Annotated[int, Argument("N", at_least=SMALLEST_VOCABULARY, at_most=LARGEST_VOCABULARY)] | None = None
    tokenizer: Annotated[str, Argument("KIND_OR_PATH")] | None = None
    text_field: Annotated[str, Argument("NAME")] = "text"
    skip_malformed: bool = False
    character_coverage: Annotated[float, Argument("FRACTION", at_least=LOWEST_COVERAGE, at_most=1)] = 0.99999
    max_unk_rate: Annotated[float, Argument("FRACTION", at_least=0, at_most=1)] = 0.001
    workers: Count | None = None
    shards: Annotated[int, Argument("N", at_least=1, at_most=256)] | None = None
    part: Annotated[PartFraction, Argument("I/N", parse=_parse_fraction)] | None = None
    merge: bool = False
    scheduler: Annotated[str, Argument("ADDRESS")] | None = None

    @property
    def kind(self) -> str | None:
        """Kind of tokenizer to train; None to use an existing one."""
        kind = DEFAULT_KIND if self.tokenizer is None else self.tokenizer
        return kind if kind in TRAINED_KINDS else None

    @property
    def processes(self) -> int:
        """Number of processes that encode; by default, as many as cores that this process may use: those of its job."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return self.workers or cores or 1

    @property
    def in_parts(self) -> bool:
        """Whether the text is prepared in parts."""
        return self.shards is not None or self.part is not None or self.merge or self.scheduler is not None

    @property
    def data_bins(self) -> list[Path]:
        """Directories of the data-bins."""
        return [self.destdir / f"shard{number}" for number in range(self.shards)] if self.shards else [self.destdir]

    @property
    def reading(self) -> Reading:
        """How records are read."""
        return Reading(self.text_field, self.skip_malformed)

    def recorded(self) -> dict[str, object]:
        """Return the options for the manifest, except those that choose machines and those that are not set."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _MACHINES}
        return {name: value for name, value in values.items() if value is not None and value is not False} | {
            "destdir": str(self.destdir)
        }


def prepare(options: PreparationOptions) -> Manifest:
    """Prepare the data-bin, or leave nothing behind.

    Raises:
        UserError: if preparation fails, or another process prepares a data-bin there; the message gives the reason.
    """
    check(options)
    files = find_splits(options)
    destdir = options.destdir
    with directory_lock(destdir) as locked, _unfinished(destdir, locked) as directory:
        check(options)  # again: another process may have made the data-bin in the meantime
        tokenizer = make_tokenizer(files["train"], options)
        tokenizer.save(directory)
        splits = _encode_splits(files, tokenizer, directory, options)
        manifest = make_manifest(options, tokenizer, splits)
        manifest.write(directory / MANIFEST)
        with uninterrupted():
            move_products(directory, destdir, tokenizer)
    return manifest


def find_splits(options: PreparationOptions) -> dict[str, list[Path]]:
    """Return the files of each split.

    The short split is first, so that an unsuitable tokenizer is detected within seconds.

    Raises:
        UserError: if a path is invalid or contains ``destdir``, or a file is in both splits.
    """
    destdir = options.destdir.resolve()
    for path in chain.from_iterable(map(expand, (*options.train, *options.valid))):
        if path.is_dir() and destdir.is_relative_to(path.resolve()):
            raise UserError(
                f"--destdir {options.destdir}: is in {path}, whose files are read as text; choose another one"
            )
    files = {split: open_corpus(getattr(options, split), options.reading) for split in ("valid", "train")}
    if common := {path.resolve() for path in files["train"]} & {path.resolve() for path in files["valid"]}:
        raise UserError(f"{min(common)}: in --train and in --valid; a file can only be in one of them")
    return files


def make_tokenizer(files: list[Path], options: PreparationOptions) -> Tokenizer:
    """Return the tokenizer, given or newly trained.

    Raises:
        UserError: if it cannot be read or trained, or has another size than ``vocab_size``.
    """
    if options.kind is None:
        tokenizer = open_tokenizer_path(options.tokenizer)
    else:
        lines = sample_corpus(files, options.reading, SAMPLE_BYTES)
        bar = tqdm(lines, desc="sample for the tokenizer, then training", unit=" lines", unit_scale=True, mininterval=1)
        tokenizer = train_tokenizer(options.kind, bar, options.vocab_size, options.character_coverage)
    if options.vocab_size not in (None, tokenizer.model_size):
        raise UserError(
            f"{options.tokenizer}: has {tokenizer.model_size} pieces, not --vocab-size {options.vocab_size}; "
            "remove --vocab-size"
        )
    return tokenizer


def make_manifest(options: PreparationOptions, tokenizer: Tokenizer, splits: dict[str, SplitStatistics]) -> Manifest:
    """Return the manifest of a data-bin."""
    return Manifest(
        versions=current_versions() | {tokenizer.LIBRARY: version(tokenizer.LIBRARY)},
        options=options.recorded(),
        tokenizer_sha256=tokenizer.fingerprint,
        dictionary_sha256=dictionary_fingerprint(tokenizer.symbols),
        splits=splits,
    )


def move_products(directory: Path, destdir: Path, tokenizer: Tokenizer):
    """Move the files of a complete data-bin to their destination."""
    for name in dict.fromkeys((*tokenizer.files, *_PRODUCTS)):
        os.replace(directory / name, destdir / name)


def check(options: PreparationOptions):
    """Check the options.

    Raises:
        UserError: if a value is out of range or has no effect, or a file of the result exists.
    """
    if options.vocab_size is None and options.kind:
        raise UserError("--vocab-size is missing; give it, or an existing tokenizer with --tokenizer")
    default = PreparationOptions.character_coverage
    if options.character_coverage != default and options.kind in (None, "byte-bpe"):
        which = "byte-bpe, which has all characters" if options.kind else f"{options.tokenizer}, which is not trained"
        raise UserError(
            f"--character-coverage {options.character_coverage}: does nothing for the tokenizer {which}; remove it"
        )
    if options.merge and options.part:
        raise UserError("--part and --merge cannot be given together; use --merge when all parts are finished")
    for name in ("workers", "scheduler"):
        value = getattr(options, name)
        if options.merge and value is not None:
            raise UserError(f"--{name} {value}: does nothing with --merge, which encodes no text; remove it")
    if options.scheduler is not None and options.workers is not None:
        raise UserError(
            f"--workers {options.workers}: does nothing with --scheduler, whose cluster has its own workers; remove it"
        )
    given = None if options.kind else options.tokenizer
    names = (*TOKENIZER_FILES, *_PRODUCTS)
    products = [Path(directory, name) for directory in options.data_bins for name in names]
    if os.pathsep in str(options.destdir):
        raise UserError(
            f"--destdir {options.destdir}: fairseq splits paths of data at {os.pathsep}; choose another name"
        )
    if options.destdir.is_file():
        raise UserError(f"--destdir {options.destdir}: is a file; choose a directory")
    for path in (*products, options.destdir / MANIFEST):
        if path.exists() and not (given and Path(given).exists() and path.samefile(given)):
            raise UserError(f"{path}: exists already; choose another --destdir, or remove it")


@contextmanager
def _unfinished(destdir: Path, locked: bool) -> Iterator[Path]:
    """Create a directory for unfinished files; it is removed with its content when the block is left.

    If ``destdir`` is locked, the directory that a killed process has left is replaced.
    """
    directory = destdir / _UNFINISHED
    if locked and directory.is_dir():
        shutil.rmtree(directory)
    try:
        directory.mkdir()
    except FileExistsError:
        raise UserError(f"{directory}: exists; wait if another run is using it, otherwise remove it") from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _encode_splits(
    files: dict[str, list[Path]], tokenizer: Tokenizer, directory: Path, options: PreparationOptions
) -> dict[str, SplitStatistics]:
    """Write each split, and the dictionary with the counts of the training split."""
    statistics, counts = {}, {}
    with EncodingPool(tokenizer, options.processes) as pool:
        for split, paths in files.items():
            size = sum(path.stat().st_size for path in paths)
            bar = tqdm(desc=split, total=size, unit="B", unit_scale=True, mininterval=1)
            with bar, DataBinWriter(directory / split, len(tokenizer.symbols)) as writer:
                pieces, symbols = file_pieces(paths), len(tokenizer.symbols)
                running = encode_pieces(pieces, options.reading, symbols, pool.encode, writer, bar.update)
            statistics[split] = split_statistics(split, running, tokenizer, directory)
            check_unknown(split, statistics[split].unk_rate, running.unknown, options)
            counts[split] = running.counts
    tokenizer.write_dictionary(directory / DICTIONARY, counts["train"])
    return statistics


def split_statistics(split: str, running: RunningStatistics, tokenizer: Tokenizer, directory: Path) -> SplitStatistics:
    """Return the statistics of a finished split, after comparing them with the files on disk."""
    check_text(split, running.documents > 0, running.malformed)
    lines, tokens = check_data_bin(directory / split)
    if (lines, tokens) != (running.lines, running.tokens):
        raise UserError(
            f"{split}: {running.lines} lines and {running.tokens} tokens went in, {lines} and {tokens} came out; "
            "this is a bug; please report it"
        )
    unk = running.unknown_tokens(tokenizer)
    rate = unk / (tokens - lines)
    counts = (running.documents, lines, running.tokens, tokens, unk)
    return SplitStatistics(*counts, rate, running.malformed, running.lost_joiners)


def check_text(split: str, has_text: bool, malformed: int):
    """Raise a UserError if a split has no text, with the number of malformed records that were skipped."""
    if not has_text:
        skipped = f"; {malformed} malformed records were skipped" if malformed else ""
        raise UserError(f"--{split}: the files contain no text{skipped}")


def check_unknown(split: str, rate: float, unknown: Counter[str], options: PreparationOptions):
    """Raise a UserError if too large a fraction of a split's tokens is ``<unk>``."""
    if rate > options.max_unk_rate:
        worst = ", ".join(f"{c!r} ({count})" for c, count in unknown.most_common(10))
        raise UserError(
            f"--{split}: {rate:.3%} of the tokens are <unk>, more than --max-unk-rate "
            f"{options.max_unk_rate:.3%}; most frequent characters: {worst}"
        )

"""Data preparation: raw text to a data-bin with tokenizer, dictionary and manifest, in one go.

``preparation_in_parts`` makes shards, works on several machines, and can be resumed.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from itertools import chain
from pathlib import Path

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
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import uninterrupted

SAMPLE_BYTES = 50_000_000
CHARACTER_COVERAGE, MAX_UNK_RATE = 0.99999, 0.001
"""Defaults of ``--character-coverage`` and ``--max-unk-rate``."""
LARGEST_SHARDS = 256
"""Limit of ``--shards``: so many pairs of files are open at the same time."""
_MACHINES = ("workers", "part", "merge", "scheduler")
_UNFINISHED = "unfinished"
# In the order in which they are moved to their destination, after the tokenizer; the last one completes the data-bin.
_PRODUCTS = (DICTIONARY, "train.bin", "valid.bin", "train.idx", "valid.idx", MANIFEST)


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        train, valid: files, directories and globs.
        destdir: directory for the data-bin.
        vocab_size: vocabulary size of the tokenizer to train; optional with an existing one.
        sentencepiece_model: another name for ``tokenizer``, except for the names of kinds.
        character_coverage: see ``train_tokenizer``.
        max_unk_rate: maximum fraction of ``<unk>`` among the tokens of a split.
        workers: number of processes that encode.
        tokenizer: kind of tokenizer to train, or path of an existing one; None to train sentencepiece BPE.
        text_field: name of the field with the text, in files with records.
        skip_malformed: skip and count malformed records.
        shards: number of data-bins ``DIR/shard0`` ...; None for one data-bin in ``DIR``.
        part: (I, N), make only the I-th of N fractions of the parts.
        merge: only merge finished parts.
        scheduler: address of a Dask scheduler.
    """

    train: list[str]
    valid: list[str]
    destdir: str
    vocab_size: int | None
    sentencepiece_model: str | None
    character_coverage: float
    max_unk_rate: float
    workers: int
    tokenizer: str | None = None
    text_field: str = "text"
    skip_malformed: bool = False
    shards: int | None = None
    part: tuple[int, int] | None = None
    merge: bool = False
    scheduler: str | None = None

    @property
    def kind(self) -> str | None:
        """Kind of tokenizer to train; None to use an existing one."""
        if self.sentencepiece_model is not None:
            return None
        kind = DEFAULT_KIND if self.tokenizer is None else self.tokenizer
        return kind if kind in TRAINED_KINDS else None

    @property
    def given(self) -> str | None:
        """Path of an existing tokenizer; None to train one."""
        if self.sentencepiece_model is not None:
            return self.sentencepiece_model
        return None if self.kind else self.tokenizer

    @property
    def in_parts(self) -> bool:
        """Whether the text is prepared in parts."""
        return self.shards is not None or self.part is not None or self.merge or self.scheduler is not None

    @property
    def data_bins(self) -> list[Path]:
        """Directories of the data-bins."""
        directory = Path(self.destdir)
        return [directory] if self.shards is None else [directory / f"shard{number}" for number in range(self.shards)]

    @property
    def reading(self) -> Reading:
        """How records are read."""
        return Reading(self.text_field, self.skip_malformed)

    def recorded(self) -> dict[str, object]:
        """Return the options for the manifest, except those that choose machines.

        Options newer than the others are left out where they are not used.
        """
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if name not in _MACHINES and value != default}


def prepare(options: Options) -> Manifest:
    """Prepare the data-bin, or leave nothing behind.

    Raises:
        UserError: if preparation fails, or another process prepares a data-bin there; the message gives the reason.
    """
    check(options)
    files = find_splits(options)
    destdir = Path(options.destdir)
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


def find_splits(options: Options) -> dict[str, list[Path]]:
    """Return the files of each split.

    The short split is first, so that an unsuitable tokenizer is detected within seconds.

    Raises:
        UserError: if a path is invalid or contains ``destdir``, or a file is in both splits.
    """
    destdir = Path(options.destdir).resolve()
    for path in chain.from_iterable(map(expand, (*options.train, *options.valid))):
        if path.is_dir() and destdir.is_relative_to(path.resolve()):
            raise UserError(
                f"--destdir {options.destdir}: is in {path}, whose files are read as text; choose another one"
            )
    files = {split: open_corpus(getattr(options, split), options.reading) for split in ("valid", "train")}
    if common := {path.resolve() for path in files["train"]} & {path.resolve() for path in files["valid"]}:
        raise UserError(f"{min(common)}: in --train and in --valid; a file can only be in one of them")
    return files


def make_tokenizer(files: list[Path], options: Options) -> Tokenizer:
    """Return the tokenizer, given or newly trained.

    Raises:
        UserError: if it cannot be read or trained, or has another size than ``vocab_size``.
    """
    if options.kind is None:
        tokenizer = open_tokenizer_path(options.given)
    else:
        lines = sample_corpus(files, options.reading, SAMPLE_BYTES)
        bar = tqdm(lines, desc="sample for the tokenizer, then training", unit=" lines", unit_scale=True, mininterval=1)
        tokenizer = train_tokenizer(options.kind, bar, options.vocab_size, options.character_coverage)
    if options.vocab_size not in (None, tokenizer.model_size):
        raise UserError(
            f"{options.given}: has {tokenizer.model_size} pieces, not --vocab-size {options.vocab_size}; "
            "remove --vocab-size"
        )
    return tokenizer


def make_manifest(options: Options, tokenizer: Tokenizer, splits: dict[str, SplitStatistics]) -> Manifest:
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


def check(options: Options):
    """Check the options.

    Raises:
        UserError: if a value is out of range or has no effect, or a file of the result exists.
    """
    if options.tokenizer is not None and options.sentencepiece_model is not None:
        raise UserError("--tokenizer and --sentencepiece-model are two names of one option; give one of them")
    if options.vocab_size is None and options.kind:
        raise UserError("--vocab-size is missing; give it, or an existing tokenizer with --tokenizer")
    if options.vocab_size is not None and not SMALLEST_VOCABULARY <= options.vocab_size <= LARGEST_VOCABULARY:
        raise UserError(
            f"--vocab-size {options.vocab_size}: must be from {SMALLEST_VOCABULARY} to {LARGEST_VOCABULARY}, with "
            "<unk>, <s> and </s>"
        )
    if options.workers < 1:
        raise UserError(f"--workers {options.workers}: must be at least 1")
    if not LOWEST_COVERAGE <= options.character_coverage <= 1:
        raise UserError(f"--character-coverage {options.character_coverage}: must be from {LOWEST_COVERAGE} to 1")
    if options.character_coverage != CHARACTER_COVERAGE and options.kind in (None, "byte-bpe"):
        which = "byte-bpe, which has all characters" if options.kind else f"{options.given}, which is not trained"
        raise UserError(
            f"--character-coverage {options.character_coverage}: does nothing for the tokenizer {which}; remove it"
        )
    if not 0 <= options.max_unk_rate <= 1:
        raise UserError(f"--max-unk-rate {options.max_unk_rate}: must be from 0 to 1")
    if options.shards is not None and not 1 <= options.shards <= LARGEST_SHARDS:
        raise UserError(f"--shards {options.shards}: must be from 1 to {LARGEST_SHARDS}")
    if options.merge and options.part:
        raise UserError("--part and --merge cannot be given together; use --merge when all parts are finished")
    _check_names(options)
    given = options.given
    names = (*TOKENIZER_FILES, *_PRODUCTS)
    products = [Path(directory, name) for directory in options.data_bins for name in names]
    for path in (*products, Path(options.destdir, MANIFEST)):
        if path.exists() and not (given and Path(given).exists() and path.samefile(given)):
            raise UserError(f"{path}: exists already; choose another --destdir, or remove it")


def _check_names(options: Options):
    """Check that the manifest can hold the paths. Python reads bytes that are not UTF-8 as surrogates."""
    for name in map(str, (*options.train, *options.valid, options.destdir, options.given)):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"{name}: the name is not UTF-8; rename the file or directory") from None


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
    files: dict[str, list[Path]], tokenizer: Tokenizer, directory: Path, options: Options
) -> dict[str, SplitStatistics]:
    """Write each split, and the dictionary with the counts of the training split."""
    statistics, counts = {}, {}
    with EncodingPool(tokenizer, options.workers) as pool:
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
    if running.documents == 0:
        malformed = f"; {running.malformed} malformed records were skipped" if running.malformed else ""
        raise UserError(f"--{split}: the files contain no text{malformed}")
    lines, tokens = check_data_bin(directory / split)
    if (lines, tokens) != (running.lines, running.tokens):
        raise UserError(
            f"{split}: {running.lines} lines and {running.tokens} tokens went in, {lines} and {tokens} came out; "
            "this is a bug; please report it"
        )
    unk = running.unknown_tokens(tokenizer)
    rate = unk / (tokens - lines)
    return SplitStatistics(running.documents, lines, running.tokens, tokens, unk, rate, running.malformed)


def check_unknown(split: str, rate: float, unknown: Counter[str], options: Options):
    """Raise a UserError if too large a fraction of a split's tokens is ``<unk>``."""
    if rate > options.max_unk_rate:
        worst = ", ".join(f"{c!r} ({count})" for c, count in unknown.most_common(10))
        raise UserError(
            f"--{split}: {rate:.3%} of the tokens are <unk>, more than --max-unk-rate "
            f"{options.max_unk_rate:.3%}; most frequent characters: {worst}"
        )

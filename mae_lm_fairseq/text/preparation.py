"""Data preparation: raw text to a data-bin with tokenizer, dictionary and manifest. Used by prepare.py."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from mae_lm_fairseq.text.data_bin import DICTIONARY, DataBinWriter, check_data_bin, dictionary_fingerprint
from mae_lm_fairseq.text.encoding import EncodingPool, RunningStatistics, encode_files
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics, current_versions
from mae_lm_fairseq.text.sentencepiece_tokenizer import LARGEST_VOCABULARY, LOWEST_COVERAGE, SMALLEST_VOCABULARY
from mae_lm_fairseq.text.text_files import find_files, sample_lines
from mae_lm_fairseq.text.tokenizer import UNK, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import TOKENIZER_FILES, open_tokenizer_path
from mae_lm_fairseq.text.tokenizer_training import DEFAULT_KIND, TRAINED_KINDS, train_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_while_used

SAMPLE_BYTES = 50_000_000
_UNFINISHED = "unfinished"
# In the order in which they are moved to their destination, after the tokenizer; the last one completes the data-bin.
_PRODUCTS = (DICTIONARY, "train.bin", "valid.bin", "train.idx", "valid.idx", MANIFEST)


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        train, valid: text files and directories of text files.
        destdir: directory for the data-bin.
        vocab_size: vocabulary size of the tokenizer to train; optional with an existing one.
        sentencepiece_model: another name for ``tokenizer``, except for the names of kinds.
        character_coverage: see ``train_tokenizer``.
        max_unk_rate: maximum fraction of ``<unk>`` among the tokens of a split.
        workers: number of processes that encode.
        tokenizer: kind of tokenizer to train, or path of an existing one; None to train sentencepiece BPE.
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

    def recorded(self) -> dict[str, object]:
        """Return the options for the manifest. Options newer than the others are left out where they are not used."""
        values = asdict(self)
        return values if self.tokenizer else {name: values[name] for name in values if name != "tokenizer"}


def prepare(options: Options) -> Manifest:
    """Prepare the data-bin, or leave nothing behind.

    Raises:
        UserError: if preparation fails; the message gives the reason.
    """
    _check(options)
    # The short split is first, so that an unsuitable tokenizer is detected within seconds.
    files = {"valid": find_files(options.valid), "train": find_files(options.train)}
    if common := {path.resolve() for path in files["train"]} & {path.resolve() for path in files["valid"]}:
        raise UserError(f"{min(common)}: in --train and in --valid; a file can only be in one of them")
    destdir = Path(options.destdir)
    with directory_while_used(destdir), _unfinished(destdir) as directory:
        tokenizer = _tokenizer(files["train"], options)
        tokenizer.save(directory)
        if options.vocab_size not in (None, tokenizer.model_size):
            raise UserError(
                f"{options.given}: has {tokenizer.model_size} pieces, not --vocab-size "
                f"{options.vocab_size}; remove --vocab-size"
            )
        splits = _encode_splits(files, tokenizer, directory, options)
        manifest = Manifest(
            versions=current_versions() | {tokenizer.LIBRARY: version(tokenizer.LIBRARY)},
            options=options.recorded(),
            tokenizer_sha256=tokenizer.fingerprint,
            dictionary_sha256=dictionary_fingerprint(tokenizer.symbols),
            splits=splits,
        )
        manifest.write(directory / MANIFEST)
        for name in dict.fromkeys((*tokenizer.files, *_PRODUCTS)):
            os.replace(directory / name, destdir / name)
    return manifest


def _check(options: Options):
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
    if not 0 <= options.max_unk_rate <= 1:
        raise UserError(f"--max-unk-rate {options.max_unk_rate}: must be from 0 to 1")
    given = options.given
    for path in (Path(options.destdir, name) for name in (*TOKENIZER_FILES, *_PRODUCTS)):
        if path.exists() and not (given and Path(given).exists() and path.samefile(given)):
            raise UserError(f"{path}: exists already; choose another --destdir, or remove it")


@contextmanager
def _unfinished(destdir: Path) -> Iterator[Path]:
    """Create a directory for unfinished files; it is removed with its content when the block is left."""
    directory = destdir / _UNFINISHED
    try:
        directory.mkdir()
    except FileExistsError:
        raise UserError(f"{directory}: exists; wait if another run is using it, otherwise remove it") from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _tokenizer(files: list[Path], options: Options) -> Tokenizer:
    """Return the tokenizer, given or newly trained."""
    if options.kind is None:
        return open_tokenizer_path(options.given)
    lines = sample_lines(files, SAMPLE_BYTES)
    lines = tqdm(lines, desc="sample for the tokenizer, then training", unit=" lines", unit_scale=True, mininterval=1)
    return train_tokenizer(options.kind, lines, options.vocab_size, options.character_coverage)


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
                running = encode_files(paths, len(tokenizer.symbols), pool, writer, bar.update)
            statistics[split] = _statistics(split, running, directory)
            _check_unknown(split, statistics[split], running, options)
            counts[split] = running.counts
    tokenizer.write_dictionary(directory / DICTIONARY, counts["train"])
    return statistics


def _statistics(split: str, running: RunningStatistics, directory: Path) -> SplitStatistics:
    """Return the statistics of a finished split, after comparing them with the files on disk."""
    if running.documents == 0:
        raise UserError(f"--{split}: the files contain no text")
    lines, tokens = check_data_bin(directory / split)
    if (lines, tokens) != (running.lines, running.tokens):
        raise UserError(
            f"{split}: {running.lines} lines and {running.tokens} tokens went in, {lines} and {tokens} came out; "
            "this is a bug; please report it"
        )
    unk = int(running.counts[UNK])
    return SplitStatistics(running.documents, lines, running.tokens, tokens, unk, unk / (tokens - lines))


def _check_unknown(split: str, statistics: SplitStatistics, running: RunningStatistics, options: Options):
    if statistics.unk_rate > options.max_unk_rate:
        worst = ", ".join(f"{c!r} ({count})" for c, count in running.unknown.most_common(10))
        raise UserError(
            f"--{split}: {statistics.unk_rate:.3%} of the tokens are <unk>, more than --max-unk-rate "
            f"{options.max_unk_rate:.3%}; most frequent characters: {worst}"
        )

"""Data preparation: raw text to data-bins with tokenizer, dictionary and manifest.

The text is divided into parts, see ``parts``. ``DIR/parts`` holds tokenizer and finished parts until all parts are
merged into data-bins, which appear in their places when all of them are complete.
"""

import contextlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import as_completed
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from mae_lm_fairseq.text.corpus import open_corpus, sample_corpus
from mae_lm_fairseq.text.data_bin import DICTIONARY, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics, add_up
from mae_lm_fairseq.text.merging import merge_parts
from mae_lm_fairseq.text.moving import MERGED, PARTS, begin_move, find_interrupted_move
from mae_lm_fairseq.text.parts import (
    Encode,
    FinishedPart,
    Part,
    PartSettings,
    encode_by_all,
    encode_here,
    encode_part,
    load_tokenizer,
    plan_parts,
)
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.text.text_files import expand
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.text.tokenizer_training import train_tokenizer
from mae_lm_fairseq.utils.directories import temporary_directory
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_while_used, file_sha256
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.made import find_or_make, keyed
from mae_lm_fairseq.utils.versions import OF_DATA, versions
from mae_lm_fairseq.utils.workers import Workers, open_workers
from mae_lm_fairseq.utils.writing import create_file, finish_directory, remove, temporary_name

SAMPLE_BYTES, _UNKNOWN_BYTES = 50_000_000, 1_000_000


def prepare(options: PreparationOptions) -> Manifest | None:
    """Make the parts that the options select, and merge all parts unless ``--part`` selects some.

    Finished parts stay until they are merged, also after an error, and the next call uses them.

    Returns:
        The manifest, of all shards together; None if the parts were not merged.

    Raises:
        UserError: if preparation fails, or another process prepares or merges there; the message gives the reason.
    """
    directory = (options.destdir / PARTS).absolute()
    # Processes with --part work side by side.
    with contextlib.nullcontext() if options.part else directory_lock(options.destdir):
        if directory.is_symlink():
            raise UserError(f"{directory} is a link; remove it: the parts are made and removed in --destdir itself")
        files = find_splits(options)
        move = None if options.part else find_interrupted_move(options, files)
        options.check(() if move is None else move.done())
        if move is not None:
            return move.finish()
        with directory_while_used(directory):
            return _prepare(files, directory, options)


def find_splits(options: PreparationOptions) -> dict[str, list[Path]]:
    """Return the files of each split.

    The short split is first, so that an unsuitable tokenizer is detected within seconds.

    Raises:
        UserError: if a path is invalid or contains ``destdir``, or a file is in both splits.
    """
    destdir = options.destdir.resolve()
    paths = map(expand, (*options.train, *options.valid))
    for path in chain.from_iterable(paths):
        if path.is_dir() and destdir.is_relative_to(path.resolve()):
            raise UserError(
                f"--destdir {options.destdir}: is in {path}, whose files are read as text; choose another one"
            )
    record_options = options.record_options
    valid = open_corpus(options.valid, record_options)
    train = open_corpus(options.train, record_options)
    if common := set(map(Path.resolve, train)).intersection(map(Path.resolve, valid)):
        raise UserError(f"{min(common)}: in --train and in --valid; a file can only be in one of them")
    return {"valid": valid, "train": train}


def _prepare(files: Mapping[str, list[Path]], directory: Path, options: PreparationOptions) -> Manifest | None:
    with open_workers(options.processes, options.scheduler) as workers:
        path = _shared_tokenizer(directory, files["train"], options)
        tokenizer = load_tokenizer(path)
        settings = PartSettings(directory, path, _fingerprint(tokenizer), options.record_options)
        parts = {split: plan_parts(split, paths, settings) for split, paths in files.items()}
        if options.part is not None:
            number, count = options.part
            all_parts = list(chain.from_iterable(parts.values()))
            selected = all_parts[number - 1 :: count]
            _make(f"part {number}/{count}", selected, settings, workers)
            return None
        finished = {}
        for split, planned in parts.items():
            finished[split] = _make(split, planned, settings, workers)
            _check_split(split, files[split], finished[split], tokenizer, options)

    merged = directory / MERGED
    with temporary_directory(temporary_name(merged)) as new:
        _merge(finished, new, tokenizer, options)
        finish_directory(new)
        remove(merged)
        os.rename(new, merged)
    return begin_move(options, files).finish()


def _check_split(
    split: str, files: list[Path], parts: list[FinishedPart], tokenizer: Tokenizer, options: PreparationOptions
) -> None:
    """Raise a UserError if a split has no text, or too many unknown tokens."""
    total = add_up([part.record.statistics for part in parts])
    if total.tokens_out == total.lines:
        raise UserError(f"--{split}: the files contain no text, and {total.malformed} malformed records")
    if total.unk_rate > options.max_unk_rate:
        sample = list(sample_corpus(files, options.record_options, _UNKNOWN_BYTES))
        unknown = tokenizer.unknown_texts(sample).most_common(10)
        examples = ", ".join(f"{text!r} ({count})" for text, count in unknown)
        raise UserError(
            f"--{split}: {total.unk_rate:.3%} of the tokens are <unk>, more than --max-unk-rate "
            f"{options.max_unk_rate:.3%}; most frequent in a sample: {examples}. "
            "Raise --vocab-size or --character-coverage, use another --tokenizer (byte-bpe has no <unk>), or raise "
            "--max-unk-rate"
        )


def _shared_tokenizer(directory: Path, files: list[Path], options: PreparationOptions) -> Path:
    """Return the directory of the tokenizer among the parts, which the first process to finish has written."""
    if options.kind is None:
        depends_on = _fingerprint(open_tokenizer_path(options.tokenizer))
    else:
        sizes = []
        for path in files:
            status = path.stat()
            sizes.append((str(path.absolute()), status.st_size, status.st_mtime_ns))
        depends_on = repr((options.kind, options.vocab_size, options.character_coverage, options.text_field, sizes))

    def write(new: Path) -> bool:
        _make_tokenizer(files, options).save(new)
        return True

    def find(path: Path) -> bool | None:
        return path.exists() or None

    path = directory / keyed("tokenizer", depends_on)
    find_or_make(path, write, find)
    return path


def _fingerprint(tokenizer: Tokenizer) -> str:
    """Return a fingerprint of the tokenizer and of the order of its dictionary, which its own one leaves out."""
    return f"{tokenizer.fingerprint} {dictionary_fingerprint(tokenizer.symbols)}"


def _make_tokenizer(files: list[Path], options: PreparationOptions) -> Tokenizer:
    if options.kind is None:
        return open_tokenizer_path(options.tokenizer)
    lines = sample_corpus(files, options.record_options, SAMPLE_BYTES)
    bar = tqdm(lines, desc="sample for the tokenizer, then training", unit=" lines", unit_scale=True, mininterval=1)
    return train_tokenizer(options.kind, bar, options.vocab_size, options.character_coverage)


def _make(name: str, parts: list[Part], settings: PartSettings, workers: Workers) -> list[FinishedPart]:
    """Make parts, and return them.

    A worker makes a part. A part that is much larger than others is read by this process and encoded by all workers,
    unless every worker can have one.
    """
    executor, count = workers
    large = [part for part in parts if part.is_large]
    if executor is None:
        encode = encode_here
        read_by_this_process = parts
    else:
        encode = encode_by_all(executor, count)
        read_by_this_process = large if len(large) < count else []
    of_workers = set(parts).difference(read_by_this_process)

    records, reused = {}, 0
    size = sum(part.size for part in parts)
    with tqdm(desc=name, total=size, unit="B", unit_scale=True, mininterval=1) as bar:
        futures = {executor.submit(encode_part, part, settings): part for part in parts if part in of_workers}
        for future in as_completed(futures):
            part = futures[future]
            records[part.name], is_reused = future.result()
            reused += is_reused
            bar.update(part.size)
        for part in read_by_this_process:
            records[part.name], is_reused = encode_part(part, settings, _watched(encode, bar))
            reused += is_reused
    if reused:
        print(f"{name}: {reused} of {len(parts)} parts are from an earlier run", flush=True)
    return [FinishedPart(settings.directory / part.name, records[part.name]) for part in parts]


def _watched(encode: Encode, bar: tqdm) -> Encode:
    def watched(chunks, tokenizer):
        for chunk, encoded in encode(chunks, tokenizer):
            yield chunk, encoded
            bar.update(len(chunk.data))

    return watched


def _merge(
    parts: Mapping[str, list[FinishedPart]], directory: Path, tokenizer: Tokenizer, options: PreparationOptions
) -> None:
    """Write the data-bins to a directory, in subdirectories named by their numbers, and the manifest of all shards."""
    directories = [directory / str(number) for number in range(len(options.data_bins))]
    for data_bin in directories:
        data_bin.mkdir()
        tokenizer.save(data_bin)
    [valid] = _merge_split("valid", parts["valid"], directories[:1], tokenizer)
    for data_bin in directories[1:]:
        for name in ("valid.bin", "valid.idx"):
            source = directories[0] / name
            with open(source, "rb") as valid_file, create_file(data_bin / name) as file:
                shutil.copyfileobj(valid_file, file, 1 << 20)
    train = _merge_split("train", parts["train"], directories, tokenizer)

    manifests = []
    for data_bin, statistics in zip(directories, train, strict=True):
        manifest = Manifest(
            versions=versions(OF_DATA) | {tokenizer.LIBRARY: version(tokenizer.LIBRARY)},
            options=options.recorded(),
            tokenizer_sha256=tokenizer.fingerprint,
            dictionary_sha256=dictionary_fingerprint(tokenizer.symbols),
            splits={"valid": valid, "train": statistics},
            files={path.name: file_sha256(path) for path in sorted(data_bin.iterdir())},
        )
        manifest.write(data_bin / MANIFEST)
        manifests.append(manifest)
    if options.shards is not None:
        files = {}
        for number, manifest in enumerate(manifests):
            files |= {f"shard{number}/{name}": digest for name, digest in manifest.files.items()}
        splits = {"valid": valid, "train": add_up(train)}
        replace(manifests[0], splits=splits, files=files).write(directory / MANIFEST)


def _merge_split(
    split: str, parts: list[FinishedPart], directories: list[Path], tokenizer: Tokenizer
) -> list[SplitStatistics]:
    shards = merge_parts(parts, [directory / split for directory in directories], tokenizer)
    empty = sum(shard.documents == 0 for shard in shards)
    if empty:
        raise UserError(
            f"--shards {len(shards)}: the text has only {len(shards) - empty} documents; use fewer shards, or "
            "separate documents by blank lines"
        )
    counts = sum(shard.counts for shard in shards)
    for directory in directories:
        write_symbols(tokenizer.symbols, directory / DICTIONARY, counts)
    return [shard.of_split() for shard in shards]

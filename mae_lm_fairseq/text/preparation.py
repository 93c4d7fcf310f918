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
    Job,
    Part,
    PartRecord,
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

Made = list[tuple[Path, PartRecord]]
"""Directories and records of the finished parts of a split, in order."""


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
    for path in chain.from_iterable(map(expand, (*options.train, *options.valid))):
        if path.is_dir() and destdir.is_relative_to(path.resolve()):
            raise UserError(
                f"--destdir {options.destdir}: is in {path}, whose files are read as text; choose another one"
            )
    files = {split: open_corpus(getattr(options, split), options.reading) for split in ("valid", "train")}
    if common := {path.resolve() for path in files["train"]} & {path.resolve() for path in files["valid"]}:
        raise UserError(f"{min(common)}: in --train and in --valid; a file can only be in one of them")
    return files


def _prepare(files: Mapping[str, list[Path]], directory: Path, options: PreparationOptions) -> Manifest | None:
    with open_workers(options.processes, options.scheduler) as workers:
        path = _shared_tokenizer(directory, files["train"], options)
        tokenizer = load_tokenizer(path)
        job = Job(directory, path, _fingerprint(tokenizer), options.reading)
        parts = {split: plan_parts(split, paths, job) for split, paths in files.items()}
        if options.part is not None:
            number, count = options.part
            selected = list(chain.from_iterable(parts.values()))[number - 1 :: count]
            _make(f"part {number}/{count}", selected, job, workers)
            return None
        made = {}
        for split, planned in parts.items():
            records = _make(split, planned, job, workers)
            total = add_up([record.statistics for record in records])
            if total.tokens_out == total.lines:
                raise UserError(f"--{split}: the files contain no text, and {total.malformed} malformed records")
            if total.unk_rate > options.max_unk_rate:
                sample = list(sample_corpus(files[split], job.reading, _UNKNOWN_BYTES))
                unknown = load_tokenizer(job.tokenizer).unknown_texts(sample).most_common(10)
                raise UserError(
                    f"--{split}: {total.unk_rate:.3%} of the tokens are <unk>, more than --max-unk-rate "
                    f"{options.max_unk_rate:.3%}; most frequent in a sample: "
                    + ", ".join(f"{text!r} ({count})" for text, count in unknown)
                )
            made[split] = [(directory / part.name, record) for part, record in zip(planned, records, strict=True)]
    merged = directory / MERGED
    with temporary_directory(temporary_name(merged)) as new:
        _merge(made, new, tokenizer, options)
        finish_directory(new)
        remove(merged)
        os.rename(new, merged)
    return begin_move(options, files).finish()


def _shared_tokenizer(directory: Path, files: list[Path], options: PreparationOptions) -> Path:
    """Return the directory of the tokenizer among the parts, which the first process to finish has written."""
    if options.kind is None:
        content = _fingerprint(open_tokenizer_path(options.tokenizer))
    else:
        sizes = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        content = repr((options.kind, options.vocab_size, options.character_coverage, options.text_field, sizes))
    path = directory / keyed("tokenizer", content)

    def write(new: Path) -> Path:
        _make_tokenizer(files, options).save(new)
        return path

    def find(path: Path) -> Path | None:
        return path if path.exists() else None

    path, _ = find_or_make(path, write, find)
    return path


def _fingerprint(tokenizer: Tokenizer) -> str:
    """Return a fingerprint of the tokenizer and of the order of its dictionary, which its own one leaves out."""
    return f"{tokenizer.fingerprint} {dictionary_fingerprint(tokenizer.symbols)}"


def _make_tokenizer(files: list[Path], options: PreparationOptions) -> Tokenizer:
    if options.kind is None:
        return open_tokenizer_path(options.tokenizer)
    lines = sample_corpus(files, options.reading, SAMPLE_BYTES)
    bar = tqdm(lines, desc="sample for the tokenizer, then training", unit=" lines", unit_scale=True, mininterval=1)
    return train_tokenizer(options.kind, bar, options.vocab_size, options.character_coverage)


def _make(name: str, parts: list[Part], job: Job, workers: Workers) -> list[PartRecord]:
    """Make parts, and return their records.

    A worker makes a part. A part that is much larger than others is read by this process and encoded by all workers,
    unless every worker can have one.
    """
    executor, count = workers
    shares_large = sum(part.is_large for part in parts) < count
    encode = encode_here if executor is None else encode_by_all(executor, count)
    made, here = {}, [part for part in parts if executor is None or (part.is_large and shares_large)]
    with tqdm(desc=name, total=sum(part.size for part in parts), unit="B", unit_scale=True, mininterval=1) as bar:
        elsewhere = set(parts).difference(here)
        futures = {executor.submit(encode_part, part, job): part for part in parts if part in elsewhere}
        for future in as_completed(futures):
            made[futures[future].name] = future.result()
            bar.update(futures[future].size)
        for part in here:
            made[part.name] = encode_part(part, job, _watched(encode, bar))
    if reused := sum(is_reused for _, is_reused in made.values()):
        print(f"{name}: {reused} of {len(parts)} parts are from an earlier run", flush=True)
    return [made[part.name][0] for part in parts]


def _watched(encode: Encode, bar: tqdm) -> Encode:
    def watched(chunks, tokenizer):
        for chunk, block in encode(chunks, tokenizer):
            yield chunk, block
            bar.update(len(chunk.data))

    return watched


def _merge(made: Mapping[str, Made], directory: Path, tokenizer: Tokenizer, options: PreparationOptions) -> None:
    """Write the data-bins to a directory, in subdirectories named by their numbers, and the manifest of all shards."""
    directories = [directory / str(number) for number in range(len(options.data_bins))]
    for data_bin in directories:
        data_bin.mkdir()
        tokenizer.save(data_bin)
    [valid] = _merge_split("valid", made["valid"], directories[:1], tokenizer)
    for data_bin in directories[1:]:
        for suffix in ("bin", "idx"):
            name = f"valid.{suffix}"
            with open(directories[0] / name, "rb") as source, create_file(data_bin / name) as file:
                shutil.copyfileobj(source, file, 1 << 20)
    train = _merge_split("train", made["train"], directories, tokenizer)
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
        files = {f"shard{n}/{name}": digest for n, each in enumerate(manifests) for name, digest in each.files.items()}
        total = replace(manifests[0], splits={"valid": valid, "train": add_up(train)}, files=files)
        total.write(directory / MANIFEST)


def _merge_split(split: str, parts: Made, directories: list[Path], tokenizer: Tokenizer) -> list[SplitStatistics]:
    merged = merge_parts(parts, [directory / split for directory in directories], tokenizer)
    empty = sum(shard.documents == 0 for shard in merged)
    if empty:
        raise UserError(
            f"--shards {len(merged)}: the text has only {len(merged) - empty} documents; use fewer shards, or "
            "separate documents by blank lines"
        )
    for directory in directories:
        write_symbols(tokenizer.symbols, directory / DICTIONARY, sum(shard.counts for shard in merged))
    return [shard.of_split() for shard in merged]

"""Data preparation in parts: shards, several machines, and resuming. See ``parts``.

``DIR/parts`` holds tokenizer and finished parts until all parts are merged.
"""

import contextlib
import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from mae_lm_fairseq.text.data_bin import DICTIONARY, dictionary_fingerprint
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics, add_up
from mae_lm_fairseq.text.merging import merge_parts
from mae_lm_fairseq.text.parts import (
    RECORD,
    Job,
    Part,
    PartRecord,
    encode_part,
    estimate,
    plan_parts,
    rename_new,
    valid_record,
)
from mae_lm_fairseq.text.preparation import (
    PreparationOptions,
    check,
    check_text,
    check_unknown,
    find_splits,
    make_manifest,
    make_tokenizer,
    move_products,
    split_statistics,
)
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.errors import Interrupted, UserError
from mae_lm_fairseq.utils.files import directory_while_used, file_sha256
from mae_lm_fairseq.utils.locks import directory_lock
from mae_lm_fairseq.utils.signals import uninterrupted
from mae_lm_fairseq.utils.workers import open_executor

_PARTS, _TOKENIZER = "parts", "tokenizer-"


def prepare_in_parts(options: PreparationOptions) -> Manifest | None:
    """Make the parts that the options select, and merge them if these are all.

    Finished parts stay until they are merged, also after an error, and are reused.

    Returns:
        The statistics of all shards together; None if the parts were not merged.

    Raises:
        UserError: if preparation fails, or another process prepares or merges there; the message gives the reason.
        Interrupted: if it is interrupted.
    """
    check(options)
    files = find_splits(options)
    if options.part is not None:  # processes with --part work side by side
        return _prepare_in_parts(options, files)
    with directory_lock(options.destdir):
        check(options)  # again: another process may have made the data-bins in the meantime
        return _prepare_in_parts(options, files)


def _prepare_in_parts(options: PreparationOptions, files: dict[str, list[Path]]) -> Manifest | None:
    directory = (options.destdir / _PARTS).absolute()
    workers = contextlib.nullcontext() if options.merge else open_executor(options.processes, options.scheduler)
    with workers as executor, _kept_while_filled(directory, options):
        tokenizer = _shared_tokenizer(directory, files["train"], options)
        job = Job(directory, tokenizer.path.parent, _fingerprint(tokenizer), options.reading)
        parts = {split: plan_parts(split, paths, job) for split, paths in files.items()}
        if not options.merge:
            print(estimate(parts, tokenizer, options.reading, len(options.data_bins)), flush=True)
            _make_parts(parts, job, executor, options)
        if options.part is not None:
            return None
        manifest = _merge(parts, job, tokenizer, options)
    try:
        shutil.rmtree(directory)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; the result is complete; remove {directory}") from None
    return manifest


@contextmanager
def _kept_while_filled(directory: Path, options: PreparationOptions) -> Iterator[None]:
    """Create the directory of the parts; remove it if no part was finished, unless others may be working in it."""
    shared = options.part is not None or options.merge or directory.exists()
    with directory_while_used(directory):
        try:
            yield
        except KeyboardInterrupt:
            kept = len(_finished(directory))
            raise Interrupted(
                f"interrupted; {kept} finished parts are kept in {directory}; the same command resumes"
            ) from None
        finally:
            if not shared and not _finished(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _finished(directory: Path) -> list[Path]:
    return list(directory.glob(f"[!.]*/{RECORD}"))


def _shared_tokenizer(directory: Path, files: list[Path], options: PreparationOptions) -> Tokenizer:
    """Return the tokenizer in the directory of the parts; if it does not exist, write it.

    Several processes may train it at the same time. The first to finish decides.
    """
    path = directory / f"{_TOKENIZER}{_tokenizer_key(files, options)}"
    if not path.exists():
        if options.merge:
            raise UserError(f"{directory}: no part has been made with these options and this text; use --part first")
        with tempfile.TemporaryDirectory(prefix=".tokenizer.", dir=directory, ignore_cleanup_errors=True) as temporary:
            make_tokenizer(files, options).save(temporary)
            rename_new(Path(temporary), path)
    return open_tokenizer_path(path)


def _tokenizer_key(files: list[Path], options: PreparationOptions) -> str:
    """Return a digest of what the tokenizer depends on."""
    if options.kind is None:
        content = _fingerprint(open_tokenizer_path(options.tokenizer))
    else:
        sizes = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        content = repr((options.kind, options.vocab_size, options.character_coverage, options.text_field, sizes))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _fingerprint(tokenizer: Tokenizer) -> str:
    """Return a fingerprint of the tokenizer and of the order of its dictionary, which its own one leaves out."""
    return f"{tokenizer.fingerprint} {dictionary_fingerprint(tokenizer.symbols)}"


def _make_parts(parts: dict[str, list[Part]], job: Job, executor: Executor, options: PreparationOptions):
    """Make the parts that the options select, and print how many were reused."""
    if options.part is not None:
        number, count = options.part
        everything = [part for split in parts.values() for part in split]
        _make(f"part {number}/{count}", everything[number - 1 :: count], job, executor)
        return
    for split, selected in parts.items():
        _make(split, selected, job, executor)
        _check_records(split, _records(selected, job), options)


def _make(name: str, parts: list[Part], job: Job, executor: Executor):
    reused = 0
    with tqdm(desc=name, total=sum(part.size for part in parts), unit="B", unit_scale=True, mininterval=1) as bar:
        futures = {executor.submit(encode_part, part, job): part for part in parts}
        for future in as_completed(futures):
            reused += future.result()
            bar.update(futures[future].size)
    print(f"{name}: {len(parts)} parts are finished, {reused} of them from an earlier run", flush=True)


def _records(parts: list[Part], job: Job) -> list[PartRecord]:
    """Return the records of all parts of a split.

    Raises:
        UserError: if a part is missing.
    """
    records = {part.name: valid_record(job.directory / part.name) for part in parts}
    if missing := [name for name, record in records.items() if record is None]:
        raise UserError(
            f"{job.directory}: {len(missing)} of {len(parts)} parts are missing or damaged, the first is {missing[0]}; "
            "make them with --part, or with the same command without --part and --merge"
        )
    return list(records.values())


def _check_records(split: str, records: list[PartRecord], options: PreparationOptions):
    """Raise a UserError if a split has no text or too many ``<unk>``."""
    unknown = Counter()
    for record in records:
        unknown.update(record.unknown)
    lines, tokens, unk = (sum(getattr(record, name) for record in records) for name in ("lines", "tokens", "unk"))
    # Checked before the long split is encoded.
    check_text(split, tokens > lines, sum(record.malformed for record in records))
    check_unknown(split, unk / max(tokens - lines, 1), unknown, options)


def _merge(parts: dict[str, list[Part]], job: Job, tokenizer: Tokenizer, options: PreparationOptions) -> Manifest:
    """Merge the parts into data-bins, which appear in their places when all of them are complete."""
    with tempfile.TemporaryDirectory(prefix=".merged.", dir=job.directory) as name:
        directories = [Path(name, str(number)) for number in range(len(options.data_bins))]
        for directory in directories:
            directory.mkdir()
            tokenizer.save(directory)
        valid = _merge_split("valid", parts["valid"], job, tokenizer, directories[:1], options)
        for directory in directories[1:]:
            for suffix in ("bin", "idx"):
                shutil.copyfile(directories[0] / f"valid.{suffix}", directory / f"valid.{suffix}")
        train = _merge_split("train", parts["train"], job, tokenizer, directories, options)
        manifests = []
        for directory, statistics in zip(directories, train, strict=True):
            manifest = make_manifest(options, tokenizer, {"valid": valid[0], "train": statistics})
            manifests.append(replace(manifest, files=_checksums(directory)))
            manifests[-1].write(directory / MANIFEST)
        files = {f"shard{n}/{name}": digest for n, each in enumerate(manifests) for name, digest in each.files.items()}
        total = replace(manifests[0], splits={"valid": valid[0], "train": add_up(train)}, files=files)
        with uninterrupted():
            for directory, destination in zip(directories, options.data_bins, strict=True):
                destination.mkdir(exist_ok=True)
                move_products(directory, destination, tokenizer)
            if options.shards is not None:
                total.write(options.destdir / MANIFEST)
    return manifests[0] if options.shards is None else total


def _merge_split(
    split: str, parts: list[Part], job: Job, tokenizer: Tokenizer, directories: list[Path], options: PreparationOptions
) -> list[SplitStatistics]:
    """Merge the parts of a split, and write the dictionary with its counts."""
    records = _records(parts, job)
    _check_records(split, records, options)
    found = [(job.directory / part.name, record) for part, record in zip(parts, records, strict=True)]
    running = merge_parts(found, [directory / split for directory in directories], len(tokenizer.symbols))
    empty = sum(shard.documents == 0 for shard in running)
    if 0 < empty < len(running):
        raise UserError(
            f"--shards {options.shards}: the text has only {len(running) - empty} documents; use fewer shards, or "
            "separate documents by blank lines"
        )
    counts = sum(shard.counts for shard in running)
    for directory in directories:
        tokenizer.write_dictionary(directory / DICTIONARY, counts)
    return [split_statistics(split, shard, tokenizer, path) for shard, path in zip(running, directories, strict=True)]


def _checksums(directory: Path) -> dict[str, str]:
    names = [f"{split}.{suffix}" for split in ("train", "valid") for suffix in ("bin", "idx")]
    return {name: file_sha256(directory / name) for name in names}

"""Provenance of a data-bin: the ``manifest.json`` beside it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, leads_outside, read_record, write_record
from mae_lm_fairseq.utils.output import markdown_table
from mae_lm_fairseq.utils.typed import typed

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split.

    Attributes:
        documents: number of documents (runs of lines with text, separated by blank lines).
        lines: lines in the data-bin: all lines of the files, and a blank line between two files if neither has one
            there.
        tokens_in, tokens_out: number of tokens in the data-bin, with one end-of-line per line.
        unk: number of ``<unk>`` tokens, and of the tokenizer's own tokens for unknown characters.
        unk_rate: fraction of these among the tokens, without line ends.
        malformed: number of malformed records that were skipped.
        lost_joiners: number of zero-width joiners and non-joiners that the tokenizer has dropped or replaced by spaces.
    """

    documents: int
    lines: int
    tokens_in: int
    tokens_out: int
    unk: int
    unk_rate: float
    malformed: int = 0
    lost_joiners: int = 0


def check_files(directory: Path, most: float) -> bool:
    """Compare the files of a data-bin, or of its shards, with the hashes in its manifest.

    Files that do not exist are left to those who read them.

    Args:
        most: number of bytes above which nothing is compared.

    Returns:
        Whether the files were compared; a manifest of earlier versions, or of data that was not prepared here, may be
        missing or have no hashes.

    Raises:
        UserError: if a file or the manifest is damaged.
    """
    path = directory / MANIFEST
    hashes = Manifest.read(path).files if path.exists() else {}
    if any(leads_outside(name) for name in hashes):
        raise UserError(f"{path} is damaged: it names a file in another directory; prepare the data again")
    files = {directory / name: digest for name, digest in hashes.items()}
    present = {file: digest for file, digest in files.items() if file.is_file()}
    if not present or sum(file.stat().st_size for file in present) > most:
        return False
    for file, digest in present.items():
        if file_sha256(file) != digest:
            raise UserError(f"{file} is damaged: its hash is not the one in {MANIFEST}; prepare the data again")
    return True


def describe_splits(data_bin: Path) -> dict[str, dict[str, Any]]:
    """Return the fields of the :class:`SplitStatistics` of each split of a data-bin, by name."""
    splits = Manifest.read(data_bin / MANIFEST).splits
    return {name: asdict(split) for name, split in splits.items()}


def splits_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table of splits, given by name as the fields of :class:`SplitStatistics`."""
    rows = []
    for name, split in splits.items():
        counts = [f"{split[count]:,}" for count in ("documents", "lines", "tokens_out")]
        rows.append([name, *counts, f"{split['unk_rate']:.3%}"])
    return markdown_table(["split", "documents", "lines", "tokens", "unknown"], rows)


def add_up(shards: list[SplitStatistics]) -> SplitStatistics:
    """Return the statistics of all shards (or parts) together."""
    names = ("documents", "lines", "tokens_in", "tokens_out", "unk", "malformed", "lost_joiners")
    return with_rate({name: sum(getattr(shard, name) for shard in shards) for name in names})


def with_rate(counts: Mapping[str, int]) -> SplitStatistics:
    """Return the statistics of a split, given all but ``unk_rate``."""
    without_line_ends = counts["tokens_out"] - counts["lines"]
    return SplitStatistics(**counts, unk_rate=counts["unk"] / max(1, without_line_ends))


@dataclass(frozen=True)
class Manifest:
    """Provenance of a data-bin.

    Attributes:
        versions: versions of Python and of the packages involved.
        options: command-line options by name.
        tokenizer_sha256: ``fingerprint`` of the tokenizer.
        dictionary_sha256: ``dictionary_fingerprint`` of fairseq's dictionary.
        splits: statistics by name of the split; in the manifest of several shards, of all shards together.
        files: SHA-256 of the other files; of earlier versions, of those with token ids, or of none.
    """

    versions: Mapping[str, str]
    options: Mapping[str, Any]
    tokenizer_sha256: str
    dictionary_sha256: str
    splits: Mapping[str, SplitStatistics]
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: str | Path):
        """Write the manifest as JSON. Escapes stand for characters of paths that are not ASCII, or not UTF-8."""
        write_record(Path(path), asdict(self))

    @classmethod
    def read(cls, path: str | Path) -> "Manifest":
        """Read a manifest.

        Raises:
            UserError: if the file cannot be read or is not a manifest.
        """
        return read_record(path, lambda content: typed(content, cls), "prepare the data again")

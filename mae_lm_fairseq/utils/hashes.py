"""Hashes of the files of a directory, in the file ``SHA256SUMS``, by which damage is noticed.

``sha256sum --check SHA256SUMS`` also compares them. They do not protect against forgery: who changes a file can change
its hash. SHA-256 is the fastest hash of Python's library on processors with instructions for it.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_bytes, write_text

HASHES = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write_hashes(directory: Path, without: Collection[str] = ()) -> None:
    """Write the hashes of all files in a directory and its subdirectories, except for some names.

    Raises:
        UserError: if a file cannot be read or written.
    """
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    names = [str(path.relative_to(directory)) for path in paths]
    lines = [f"{file_sha256(directory / name)}  {name}\n" for name in names if name not in without]
    write_text(directory / HASHES, "".join(lines))


def read_hashes(directory: Path) -> dict[str, str] | None:
    """Return the hashes of a directory by the names of its files; None if it has no list of them.

    Raises:
        UserError: if the list is damaged, or names a file in another directory.
    """
    path = directory / HASHES
    if not os.path.lexists(path):
        return None
    lines = [_LINE.fullmatch(line) for line in read_bytes(path).decode(errors="replace").splitlines()]
    hashes = {line[2]: line[1] for line in lines if line is not None}
    if None in lines or not lines or any(Path(name).is_absolute() or ".." in Path(name).parts for name in hashes):
        raise UserError(f"{path} is damaged; restore it, or remove it to read the files without comparing them")
    return hashes


def check_hashes(directory: Path, needed: Collection[str] = ()) -> dict[str, str]:
    """Compare the files of a directory with its list of hashes, and return the hashes by name; none if it has no list.

    Args:
        needed: names that the list must have.

    Raises:
        UserError: if the list is damaged, or a file is missing or differs; the message names the file.
    """
    hashes = read_hashes(directory)
    if hashes is None:
        return {}
    if missing := set(needed) - hashes.keys():
        raise UserError(f"{directory / HASHES} is damaged: it lacks {min(missing)}; restore it")
    for name, stated in hashes.items():
        if file_sha256(directory / name) != stated:
            raise UserError(
                f"{directory / name} is damaged: its hash is not the one in {HASHES}; restore it. If you changed it, "
                f"remove {directory / HASHES}"
            )
    return hashes

"""Hashes of the files of a directory, in the file ``SHA256SUMS``, by which damage is noticed.

``sha256sum --check SHA256SUMS`` also compares them. They do not protect against forgery: who changes a file can change
its hash. SHA-256 is the fastest hash of Python's library on processors with instructions for it.
"""

import os
import re
from collections.abc import Collection
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, leads_outside, read_bytes, write_text

HASHES = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def write_hashes(directory: Path, without: Collection[str] = ()) -> None:
    """Write the hashes of all files in a directory and its subdirectories, except for some names.

    Raises:
        UserError: if a file cannot be read or written.
    """
    lines = []
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and name not in without:
            lines.append(f"{file_sha256(path)}  {name}\n")
    write_text(directory / HASHES, "".join(lines))


def read_hashes(directory: Path) -> dict[str, str] | None:
    """Return the hashes of a directory by the names of its files; None if it has no list of them.

    Raises:
        UserError: if the list is damaged, or names a file in another directory.
    """
    path = directory / HASHES
    if not os.path.lexists(path):
        return None
    lines = read_bytes(path).decode(errors="replace").splitlines()
    matches = list(map(_LINE.fullmatch, lines))
    is_intact = all(matches) and not any(leads_outside(match[2]) for match in matches)
    if not matches or not is_intact:
        raise UserError(f"{path} is damaged; restore it, or remove it to read the files without comparing them")
    return {match[2]: match[1] for match in matches}


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
        path = directory / name
        if file_sha256(path) != stated:
            raise UserError(
                f"{path} is damaged: its hash is not the one in {HASHES}; restore it. If you changed it, "
                f"remove {directory / HASHES}"
            )
    return hashes

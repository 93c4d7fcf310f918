"""Comparison of files with the hashes that this package has written: damage, not forgery, is noticed."""

import math
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq.text.manifest import MANIFEST, check_files
from mae_lm_fairseq.trained.checkpoint_file import check_sums, unreadable
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import HASH, KEPT, file_sha256, read_json, read_record
from mae_lm_fairseq.utils.hashes import HASHES, check_hashes


def compared_files(root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield each file, or list of hashes, below a directory that can be compared, and what is wrong, if anything.

    These are checkpoints, which have checksums; lists of hashes, with the files that they name; manifests, with the
    token ids; and records in JSON, with the second moments beside them. Other files have no hash.
    """
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        try:
            if path.is_file() and _compare(path):
                yield path, None
        except UserError as problem:
            yield path, str(problem)


def _compare(path: Path) -> bool:
    """Compare a file, and those that it names; return whether there was anything to compare."""
    if path.name == HASHES:
        return bool(check_hashes(path.parent))
    if path.name == MANIFEST:
        return check_files(path.parent, math.inf)
    if path.suffix == ".pt":
        try:
            check_sums(path)
        except Exception as error:  # a damaged file can raise anything
            raise UserError(f"{path} {unreadable(path, error, f'is damaged: {error}')}") from error
        return True
    return path.suffix == ".json" and _compare_record(path)


def _compare_record(path: Path) -> bool:
    content = read_json(path)
    if not isinstance(content, dict) or HASH not in content:
        return False
    record = read_record(path)
    result = record.get("result")
    kept = result.get(KEPT, {}) if isinstance(result, dict) else {}
    for name, stated in kept.items():
        moments = path.with_name(name)
        if moments.exists() and file_sha256(moments) != stated:
            raise UserError(f"{moments} is damaged: its hash is not the one in {path.name}; measure again")
    return True

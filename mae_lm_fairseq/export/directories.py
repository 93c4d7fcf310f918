"""New directories that appear complete or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError


@contextlib.contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory that gets its name ``out`` when the ``with`` block ends, and vanishes if it fails.

    Raises:
        UserError: there is something at ``out`` already, or it cannot be made.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists already; choose another directory")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None
    try:
        yield temporary
        # mkdtemp and safetensors keep what they make to its owner.
        for path in (temporary, *temporary.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.replace(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise

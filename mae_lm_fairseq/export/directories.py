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
        UserError: there is something at ``out`` already, or the directory or what is in it cannot be written.
    """
    if out.exists():
        raise UserError(f"{out} is there already; choose another --out, or take it away first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}") from None
    try:
        yield temporary
        # mkdtemp lets nobody else in, and safetensors nobody else read.
        for path in (temporary, *temporary.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.rename(temporary, out)
    except OSError as error:
        raise UserError(f"{out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

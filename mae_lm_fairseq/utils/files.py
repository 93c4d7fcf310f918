"""Files that appear complete or not at all, and that notice damage."""

import contextlib
import hashlib
import json
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.errors import UserError, first_line
from mae_lm_fairseq.utils.writing import replacing_file

HASH = "content_sha256"
"""Key of a record's hash."""
KEPT = "kept"
"""Key of the hashes of files beside a result file of a study, by name."""
MOST_BYTES, MOST_JSON_BYTES = 1 << 28, 1 << 26
"""Maximum sizes of a file that is read at once, and of one whose content takes many times its size in memory.

An archive of a few kilobytes can unpack to a file of any size. The largest tokenizers have less than 70 MB.
"""
_POINTER = b"version https://git-lfs"
_WRITE_AGAIN = "remove it, and run the command that wrote it again"


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically: readers see the old content or all of the new one.

    Raises:
        UserError: if the file cannot be written, for example because the disk is full.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        with replacing_file(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, content: Any) -> None:
    """Write data as JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_record(path: Path, content: Mapping[str, Any], indent: int | None = 2) -> None:
    """Write data as JSON, atomically, with a hash by which :func:`read_record` notices damage.

    The hash does not protect against forgery: who changes the data can also change the hash.
    """
    separators = None if indent else (",", ":")
    record = {**content, HASH: _content_hash(content)}
    write_text(path, json.dumps(record, indent=indent, separators=separators) + "\n")


def read_record(path: str | Path, part: Callable[[Any], Any] = lambda content: content, remedy: str = "") -> Any:
    """Return the content of a file that :func:`write_record` wrote, or the part of it that a function returns.

    Files of earlier versions have no hash, and are not compared.

    Raises:
        UserError: if it cannot be read or is damaged, or lacks that part; the message ends with the remedy.
    """

    def compared(content: dict[str, Any]) -> Any:
        stated = content.pop(HASH, None)
        if stated is not None and stated != _content_hash(content):
            raise UserError(f"{path} is damaged; {remedy or _WRITE_AGAIN}")
        return part(content)

    return read_json(path, compared, remedy)


def _content_hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def read_json(path: str | Path, part: Callable[[Any], Any] = lambda content: content, remedy: str = "") -> Any:
    """Return the content of a JSON file that this package wrote, or the part of it that a function returns.

    Raises:
        UserError: if it cannot be read or is damaged, or lacks that part; the message ends with the remedy.
    """
    return parse_json(read_bytes(path, MOST_JSON_BYTES), path, part, remedy)


def parse_json(content: bytes, source: str | Path, part: Callable[[Any], Any], remedy: str = "") -> Any:
    """Return the part of JSON that a function returns.

    Raises:
        UserError: if it is not JSON, or lacks that part; the message names the source, and ends with the remedy.
    """
    remedy = remedy or _WRITE_AGAIN
    try:
        parsed = json.loads(content)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{source} is damaged, or not JSON (line {error.lineno}, column {error.colno}: {error.msg}); {remedy}"
        ) from None
    except (ValueError, RecursionError):
        raise UserError(f"{source} is damaged; {remedy}") from None
    # From here on, the file may be intact, and of another program or version.
    try:
        return part(parsed)
    except KeyError as error:
        raise UserError(f"{source} lacks {error}; {remedy}") from error
    except (ValueError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{source} has other content than expected: {first_line(error):.200}; {remedy}") from error


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file.

    Args:
        most: its maximum size.

    Raises:
        UserError: if it cannot be read, is larger, or is a pointer of Git LFS.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if len(content) > most:
        raise UserError(f"{path}: has more than {most >> 20} MB, as no such file has; restore it")
    refuse_pointer(content, path)
    return content


def is_utf8(path: str) -> bool:
    """Return whether a path can be written to a file or passed to a library.

    Python stands for each byte that is not UTF-8 by half of a pair of surrogates. Records, reports and the libraries of
    weights and tokenizers, which need UTF-8, would fail with it at the end of the work.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_pointer(beginning: bytes, path: str | Path) -> None:
    """Raise a UserError if a file begins as the pointers do that Git LFS leaves in place of large files."""
    if beginning.startswith(_POINTER):
        raise UserError(f"{path}: is a pointer of Git LFS; fetch the file itself with git lfs pull")


def check_link(path: Path) -> None:
    """Check that a file is not a link to another directory.

    A link to the blobs of the Hugging Face hub's cache is accepted: there, a model's directory has nothing but links.

    Raises:
        UserError: if it is.
    """
    directory = path.parent.resolve()
    snapshots = next((parent for parent in directory.parents if parent.name == "snapshots"), None)
    blobs = snapshots.parent / "blobs" if snapshots else directory
    if path.resolve().parent not in (directory, blobs):
        raise UserError(f"{path} is a link to another directory; put the file itself there")


def leads_outside(name: str) -> bool:
    """Return whether the name of a file in a list leads out of the directory of the list."""
    path = Path(name)
    return path.is_absolute() or ".." in path.parts


def file_sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file; raise a UserError if it cannot be read."""
    if path.exists() and not path.is_file():  # a device such as /dev/zero has no end
        raise UserError(f"{path}: cannot be read: it is no file")
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _is_content(file: Path) -> bool:
    """Return whether a file is neither a log nor hidden."""
    return file.suffix != ".log" and not file.name.startswith(".")


def directory_sha256(path: Path, is_counted: Callable[[Path], bool] = _is_content) -> str:
    """Return the hash of a file, or of the names and hashes of the files in a directory and its subdirectories.

    Args:
        is_counted: whether a file counts, given its path in the directory; by default, logs and hidden files do not.

    Raises:
        UserError: if a file cannot be read.
    """
    if not path.is_dir():
        return file_sha256(path)
    lines = []
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if is_counted(name) and file.is_file():
            lines.append(f"{name} {file_sha256(file)}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def make_output_directory(path: Path) -> None:
    """Create the directory of the option ``--out``, and its parents, unless it exists.

    Raises:
        OSError: if it cannot be created.
        UserError: if it cannot be written to.
    """
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK):
        raise UserError(f"--out {path} is not a writable directory; choose another one")


@contextlib.contextmanager
def output_directory(path: Path) -> Iterator[None]:
    """Create the directory of the option ``--out``, see :func:`make_output_directory`; remove it if it stays empty."""
    with removed_if_empty(path):
        make_output_directory(path)
        yield


@contextlib.contextmanager
def directory_while_used(directory: Path) -> Iterator[None]:
    """Create a directory and its parents; those that are empty when the block ends are removed again."""
    with removed_if_empty(directory):
        directory.mkdir(parents=True, exist_ok=True)
        yield


@contextlib.contextmanager
def removed_if_empty(directory: Path) -> Iterator[None]:
    """Remove what the block creates of a directory and its parents, if it is empty when the block ends."""
    missing = [path for path in (directory, *directory.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # not empty, or never created
                path.rmdir()


def system_error(error: BaseException) -> str | None:
    """Return the operating system's error message behind a library's error, or None for any other error.

    torch raises its own error on top of the ``OSError``. safetensors and tokenizers, which are written in Rust, quote
    its number.
    """
    cause = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.filename:
            return f"{cause.filename}: {cause.strerror}"
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        if quoted := re.search(r"\(os error (\d+)\)", str(cause)):
            return os.strerror(int(quoted[1]))
        cause = cause.__cause__ or cause.__context__
    return None


def writable_file(text: str) -> Path:
    """Return the path of a file; raise ArgumentTypeError unless it can be written later."""
    path = Path(text)
    if path.exists() and not path.is_file():  # the new file would replace it: root would lose /dev/null
        kind = "directory" if path.is_dir() else "device or pipe"
        raise ArgumentTypeError(f"{text} is a {kind}; name a file")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ArgumentTypeError(f"{text}: {path.absolute().parent} is not a writable directory")
    return path

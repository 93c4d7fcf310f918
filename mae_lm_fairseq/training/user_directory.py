"""The directory of ``--user-dir``: code of the user, which processes import, and whose hash is in the keys of results.

Its modules register decoders, tasks, criteria, measures and mask functions. Options and plans then know their names.
Nothing but a command line names the directory.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq import PACKAGE, register
from mae_lm_fairseq.utils.command_line import Parser
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256, file_sha256
from mae_lm_fairseq.utils.own_code import import_directory, module_of_same_name, place_of

OPTION = "--user-dir"


@dataclass(frozen=True)
class UserDirectory:
    """A directory of code that this process has imported.

    Attributes:
        path: its path, as the command line states it.
        sha256: hash of its files when it was imported.
    """

    path: Path
    sha256: str


_imported: UserDirectory | None = None


def user_directory() -> UserDirectory | None:
    """Return the directory that this process has imported, if any."""
    return _imported


def take_user_directory(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the directory that a command line names, and the other words."""
    parser = Parser("mae-lm", add_help=False, allow_abbrev=False)
    parser.add_argument(OPTION, type=Path)
    parsed, others = parser.parse_known_args(words)
    return parsed.user_dir, others


def import_user_directory(directory: Path) -> None:
    """Import a directory of the user, with its folders ``tasks`` and ``models``, under its own name, as fairseq does.

    The components of this package are registered before. That of the package itself has no effect.

    Raises:
        UserError: if it cannot be imported; the message names the file and the error.
    """
    global _imported
    path = Path(os.path.abspath(directory))
    if path.resolve() == PACKAGE:
        return
    _check_name(path)
    register()
    sha256 = _code_sha256(path)
    try:
        import_directory(path)
    except Exception as error:
        place = place_of(error, path) or path
        raise UserError(f"{OPTION} {directory}: {place}: {type(error).__name__}: {error}") from error
    _imported = UserDirectory(directory, sha256)


def _check_name(path: Path) -> None:
    """Check that a directory can be imported under its name, which no other module has."""
    option = f"{OPTION} {path}"
    if not path.is_dir():
        raise UserError(f"{option} is not a directory; name the one that has your code")
    first_file = path / "__init__.py"
    if not first_file.is_file():
        raise UserError(f"{option}: {first_file} is missing; write it, and import there what registers something")
    if "." in path.name:
        raise UserError(f"{option}: Python cannot import a name with a dot; rename the directory")
    other = module_of_same_name(path)
    if other is not None:
        raise UserError(f"{option}: another module has this name, {other}; rename the directory")


def _code_sha256(path: Path) -> str:
    return directory_sha256(path, _is_code)


def _is_code(file: Path) -> bool:
    """Return whether a file of the directory counts: none that is hidden or compiled, or in such a folder."""
    is_hidden = any(part.startswith(".") for part in file.parts)
    return not is_hidden and "__pycache__" not in file.parts


def code_hashes() -> dict[str, str]:
    """Return the hashes of the directory as it was imported, and of its files, by option; empty without one."""
    if _imported is None:
        return {}
    path = _imported.path
    hashes = {f"{OPTION} {path}": _imported.sha256}
    for file in sorted(path.rglob("*")):
        if file.is_file() and _is_code(file.relative_to(path)):
            hashes[f"{OPTION} {file}"] = file_sha256(file)
    return hashes


def code_in_keys() -> dict[str, str]:
    """Return what the keys of trainings and measurements have of the directory; empty without one."""
    return {"user_dir": _imported.sha256} if _imported else {}


def check_unchanged() -> None:
    """Check that the files are those that were imported, because another process would import the new ones.

    Raises:
        UserError: if one has changed.
    """
    if _imported and _code_sha256(_imported.path) != _imported.sha256:
        advice = "run the command again, which makes new runs with the new code"
        raise UserError(f"{OPTION} {_imported.path}: a file has changed since the start; {advice}")


def check_outside(path: Path, option: str) -> None:
    """Check that a path is not in the directory, every file of which counts as code.

    Raises:
        UserError: if it is.
    """
    if _imported and path.resolve().is_relative_to(_imported.path.resolve()):
        advice = "a change of any file there makes new runs; choose a place outside of it"
        raise UserError(f"{option} {path} is in {OPTION} {_imported.path}: {advice}")

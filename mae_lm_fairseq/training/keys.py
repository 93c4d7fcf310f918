"""Keys: short hashes of what a result depends on, by which runs, measurements and products are named and found again.

A changed option, file or seed gives another key, so its result is made anew beside the old one. An unchanged one finds
its own.
"""

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.manifest import MANIFEST
from mae_lm_fairseq.training.command import arguments
from mae_lm_fairseq.training.user_directory import check_outside, code_in_keys
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import make_output_directory, read_record, write_record
from mae_lm_fairseq.utils.locks import LOCK
from mae_lm_fairseq.utils.training_options import OTHER_NAMES, SAVING, WITHOUT_EFFECT
from mae_lm_fairseq.utils.writing import remove

MADE, _COMMAND = "made.json", "command"
"""File in an output directory with the key of each product."""
_DIGITS = 10


def key_of(content: Any) -> str:
    """Return the key of JSON-serialisable content, which may have paths; the order of names does not count."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=os.fspath)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def run_key(options: Mapping[str, Any], extra: Sequence[str], threads: int, inputs: Mapping[str, Any]) -> str:
    """Return the key of a training.

    Logging, workers and paths of output do not count. Nor does saving, unless fairseq validates when it saves, as the
    best checkpoint depends on it. The code of ``--user-dir`` counts.

    Args:
        options: its options of fairseq-train, with the total number of updates as ``max-update``.
        extra: further words of its command line, which take precedence.
        threads: number of threads, on which results depend in their last digits.
        inputs: fingerprints of what it reads. Those named as an option take the place of its path.
    """
    fingerprints = {name: key_of(content) for name, content in inputs.items()}
    values = values_of_words(arguments("", {**options, **fingerprints}, extra))
    ignored = WITHOUT_EFFECT
    if "disable-validation" in values:
        ignored = WITHOUT_EFFECT | SAVING
    kept = {name: list(map(_number, words)) for name, words in values.items() if name not in ignored}
    return key_of({"options": kept, "threads": threads, **code_in_keys()})


def values_of_words(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of the options of a command line of fairseq-train, without dashes, by their first names.

    Of a repeated option, they are the last ones.
    """
    values: dict[str, list[str]] = {}
    name = None
    for word in words:
        long = f"--arch={word[2:]}".removesuffix("=") if word.startswith("-a") else word
        if long.startswith("--"):
            name, equals, value = long.removeprefix("--").partition("=")
            name = OTHER_NAMES.get(name, name)
            values[name] = [value] if equals else []
        elif name is not None:
            values[name].append(word)
    return values


def _number(word: str) -> str:
    try:
        return repr(float(word))
    except ValueError:
        return word


def check_maker(out: Path, *commands: str | None) -> bool:
    """Return whether an output directory has the products of one of some commands.

    Raises:
        UserError: if another command made them.
    """
    record = out / MADE
    if not record.exists():
        return False
    recorded = read_record(record, dict).get(_COMMAND)
    if recorded not in commands:
        raise UserError(f"--out {out} has the results of {recorded}; choose another --out")
    return True


class Products:
    """Files and directories in an output directory, each of which is made again if what it is made from has changed.

    As a context manager, it removes its record if the block fails before it has made anything.

    Args:
        out: the output directory, which is created.
        command: the command that makes them.
        owned: names in it, or patterns of names, that the command writes, replaces or removes.
        former_command: what earlier versions recorded as the command.

    Raises:
        UserError: if one of the names exists in a directory that this command has not used before, which it would lose,
            or a data-bin, or if the directory cannot be written, or is in that of ``--user-dir``.
    """

    def __init__(self, out: Path, command: str, owned: Sequence[str], former_command: str | None = None):
        check_outside(out, "--out")
        make_output_directory(out)
        self.out, self.record = out, out / MADE
        if check_maker(out, command, former_command):
            return
        names = os.listdir(out)
        for pattern in (*owned, DICTIONARY, MANIFEST):
            for name in fnmatch.filter(names, pattern):
                raise UserError(
                    f"--out {out} has {name} but no {MADE}, so another command made it; move it, or choose another "
                    "--out"
                )
        write_record(self.record, {_COMMAND: command})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None and {MADE, LOCK}.issuperset(os.listdir(self.out)):
            remove(self.record)

    def _keys(self) -> dict[str, str]:
        return read_record(self.record, dict)

    def has(self, name: str, made_from: Any) -> bool:
        """Return whether a product was made from this before."""
        return self._keys().get(name) == key_of(made_from) and (self.out / name).exists()

    def make(self, name: str, made_from: Any, function: Callable[[Path], Any], kept: str | None = None) -> Path:
        """Make a product, unless it was made from the same before; return its path.

        Args:
            made_from: what it depends on, JSON-serialisable.
            function: makes it, given its path, where nothing exists but ``kept``.
            kept: what the function leaves in the directory if it is interrupted, and uses the next time.
        """
        path, key = self.out / name, key_of(made_from)
        if self.has(name, made_from):
            print(f"done before, reusing {path}", flush=True)
            return path
        keys = self._keys()
        if keys.pop(name, None):
            write_record(self.record, keys)
        if kept is not None and path.is_dir() and not path.is_symlink():
            for old in path.iterdir():
                if old.name != kept:
                    remove(old, below=self.out)
        else:
            remove(path, below=self.out)
        function(path)
        write_record(self.record, keys | {name: key})
        return path

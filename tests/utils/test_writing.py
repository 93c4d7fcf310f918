"""Writing and removing beside links that somebody else has planted, and permissions."""

import ast
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.trained.checkpoint_file import save_safetensors
from mae_lm_fairseq.utils.directories import new_directory, replacing_files, write_results
from mae_lm_fairseq.utils.files import write_record, write_text
from mae_lm_fairseq.utils.writing import append_to_file, create_file, finish_directory, remove, replacing_file
from tests.support.refusals import refused

FILES = {"write_text", "write_bytes", "touch", "mkstemp", "NamedTemporaryFile", "tofile", "FileHandler"}
CHANGES = {
    *("unlink", "rmdir", "rename", "chmod", "symlink_to", "hardlink_to", "rmtree", "copy2", "copyfile", "copytree"),
}
OF_MODULES = {"remove", "replace", "removedirs", "truncate", "ftruncate", "chown", "fchmod", "move", "copy", "link"}
"""Functions of ``os`` and ``shutil`` whose names others also have."""
LIBRARIES = {"save_file", "save_pretrained", "savefig"}
ALLOWED = {
    "utils/writing.py": "the functions that all others use",
    "utils/locks.py": "locks are files that stay where they are",
    "utils/made.py": "gives a new directory its name",
    "utils/directories.py": "renames what was written to a directory of its own",
    "utils/files.py": "removes directories that are empty",
    "text/moving.py": "moves files after it has checked what is in their places",
    "text/preparation.py": "gives a new directory its name",
    "measures/figures.py": "figures are drawn in a new directory",
    "study/report.py": "figures are drawn in a new directory",
    "trained/huggingface/stock.py": "models are exported to a new directory",
    "trained/huggingface/tokenizer.py": "tokenizers are written to a new directory",
    "trained/checkpoint_file.py": "weights go to a new directory, checkpoints to a file that is open",
    "trained/huggingface/modeling.py": "a method of transformers, which its user calls",
}
"""Modules that write or remove, and why no link is followed there."""


def is_writing(call: ast.Call) -> bool:
    """Return whether a call may write to, rename or remove a file, other than by our functions."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in LIBRARIES or (function.id == "open" and _writes(call, 1))
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if function.attr == "open":
        return owner == "os" or _writes(call, 0)
    if function.attr in OF_MODULES:
        return owner in ("os", "shutil")
    if function.attr == "save":
        return owner == "torch"
    if function.attr == "memmap":
        return not any(keyword.arg == "mode" and ast.unparse(keyword.value) == "'r'" for keyword in call.keywords)
    return function.attr in FILES | CHANGES | LIBRARIES


def _writes(call: ast.Call, place: int) -> bool:
    modes = [*call.args[place : place + 1], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)


def test_no_other_module_opens_a_file_for_writing_or_removes_one():
    writing = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and is_writing(node)]
        if lines:
            writing[str(path.relative_to(PACKAGE))] = lines
    assert {name: lines for name, lines in writing.items() if name not in ALLOWED} == {}
    assert not ALLOWED.keys() - writing.keys(), "these need no exception any more"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("open(path)", False),
        ("open(path, 'rb')", False),
        ("open(path, 'ab')", True),
        ("open(path, mode='w')", True),
        ("os.open(path, 0)", True),
        ("path.open('x')", True),
        ("os.replace(a, b)", True),
        ("text.replace('a', 'b')", False),
        ("shutil.copy(a, b)", True),
        ("weights.copy()", False),
        ("Path(x).write_text('a')", True),
        ("write_text(path, 'a')", False),
        ("figure.savefig(path)", True),
        ("torch.save(state, path)", True),
        ("tokenizer.save(directory)", False),
    ],
)
def test_calls_that_write_are_recognised(source, expected):
    assert is_writing(ast.parse(source).body[0].value) is expected


def write_data_bin(path: Path) -> None:
    with DataBinWriter(path.with_suffix(""), 10) as writer:
        writer.write(torch.tensor([5, 2]).numpy(), torch.tensor([2]).numpy())


def write_together(path: Path) -> None:
    with replacing_files(path.parent, "results.json", stale=["old*"]) as made:
        write_text(made / path.name, "new")
        write_text(made / "results.json", "{}")


def write_directory(path: Path) -> None:
    if path.is_symlink() or path.exists():
        remove(path)
    with new_directory(path) as directory:
        save_safetensors({"a": torch.zeros(3)}, directory / "weights")


def create(path: Path) -> None:
    with create_file(path) as file:
        file.write(b"new")


def replace(path: Path) -> None:
    with replacing_file(path) as file:
        file.write(b"new")


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "create": ("file", create),
    "replace": ("file", replace),
    "text": ("file.txt", lambda path: write_text(path, "new")),
    "record": ("file.json", lambda path: write_record(path, {"a": 1})),
    "weights": ("file.safetensors", lambda path: save_safetensors({"a": torch.zeros(3)}, path)),
    "data-bin": ("train.idx", write_data_bin),
    "results": ("report.md", lambda path: write_results(path.parent, {"a": 1}, "new")),
    "files": ("figure.png", write_together),
    "directory": ("bundle", write_directory),
}
"""A file that each function writes, and the function."""
TEMPORARY = (
    *(".{}.partial", ".{}.unaligned", "{}.partial", "{}.tmp", ".partial"),
    *("results.json", "train.bin", "old-file"),
)
"""Names beside a file that may be written or removed as well."""


def snapshot(path: Path) -> tuple:
    status = path.lstat()
    content = path.read_bytes() if path.is_file() else sorted(os.listdir(path))
    return content, stat.S_IMODE(status.st_mode), status.st_mtime_ns


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_link_is_written_through(tmp_path, writer, kind):
    """Links are planted at every name that the function uses; what they point to keeps content, mode and time."""
    name, write = WRITERS[writer]
    victim, out = tmp_path / "victim", tmp_path / "out"
    if kind == "directory":
        victim.mkdir()
        (victim / "mine").write_text("mine")
        (victim / "new").mkdir()
        (victim / "new/mine").write_text("mine")
    else:
        victim.write_text("mine")
    victim.chmod(0o700 if kind == "directory" else 0o600)
    out.mkdir()
    for pattern in ("{}", *TEMPORARY):
        link = out / pattern.format(name)
        if not os.path.lexists(link) and not (kind == "directory" and pattern == "{}"):
            link.symlink_to(victim)
    expected = [(path, snapshot(path)) for path in (victim, *victim.rglob("*"))]
    write(out / name)
    assert [(path, snapshot(path)) for path in (victim, *victim.rglob("*"))] == expected
    assert (out / name).exists()
    assert not (out / name).is_symlink()


def test_a_dangling_link_is_not_written_through(tmp_path):
    for pattern in ("file", ".file.partial"):
        (tmp_path / pattern).symlink_to(tmp_path / "elsewhere")
    write_text(tmp_path / "file", "new")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_a_new_directory_is_not_put_behind_a_link(tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with refused("out exists already"), new_directory(tmp_path / "out"):
        pass


def test_a_log_is_not_appended_to_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with refused("log is a link"):
        append_to_file(tmp_path / "log")
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("kind", ["hard link", "pipe"])
def test_a_log_that_is_no_file_of_its_own_is_not_appended_to(tmp_path, kind):
    (tmp_path / "victim").write_text("mine")
    os.link(tmp_path / "victim", tmp_path / "log") if kind == "hard link" else os.mkfifo(tmp_path / "log")
    with refused("log is a"):
        append_to_file(tmp_path / "log")
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_directory_that_is_a_link_is_written_to(tmp_path, writer):
    """As to scratch disks."""
    name, write = WRITERS[writer]
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    write(tmp_path / "out" / name)
    assert (tmp_path / "scratch" / name).exists()


def test_removing_does_not_follow_links(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/mine").touch()
    (tmp_path / "out/runs").mkdir(parents=True)
    for name in ("out/link", "out/runs/link"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    remove(tmp_path / "out/link", below=tmp_path / "out")
    with refused("link leads to another directory"):
        remove(tmp_path / "out/runs/link/mine", below=tmp_path / "out")
    remove(tmp_path / "out/runs", below=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["mine", "out", "victim"]


UMASKS = [(0o077, 0o700, 0o600), (0o022, 0o755, 0o644), (0, 0o777, 0o666)]
"""Each with the permissions of directories and files that follow from it."""


@pytest.mark.parametrize(("umask", "directory", "file"), UMASKS)
@pytest.mark.parametrize("writer", WRITERS)
def test_permissions_follow_the_umask(tmp_path, writer, umask, directory, file):
    name, write = WRITERS[writer]
    before = os.umask(umask)
    try:
        (tmp_path / "out").mkdir()
        write(tmp_path / "out" / name)
        with append_to_file(tmp_path / "out/log"):
            pass
    finally:
        os.umask(before)
    for path in (tmp_path / "out").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (directory if path.is_dir() else file), path


def test_a_finished_directory_is_readable_by_those_who_may_enter_it(tmp_path):
    (tmp_path / "new").mkdir(mode=0o750)
    (tmp_path / "new").chmod(0o750)
    (tmp_path / "new/below").mkdir(mode=0o700)
    (tmp_path / "new/file").touch(mode=0o600)
    finish_directory(tmp_path / "new")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"new": 0o750, "below": 0o750, "file": 0o640}


def test_files_that_belong_together_are_replaced_together(tmp_path):
    for name in ("results.json", "report.md", "old.png", "mine.txt"):
        (tmp_path / name).write_text("old")
    with replacing_files(tmp_path, "results.json", stale=["*.png"]) as made:
        (made / "report.md").write_text("new")
        (made / "results.json").write_text("new")
        assert {path.read_text() for path in tmp_path.glob("*.*") if path.is_file()} == {"old"}
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"results.json": "new", "report.md": "new", "mine.txt": "old"}


def test_files_that_cannot_be_written_replace_none(tmp_path):
    write_results(tmp_path, {"a": 1}, "old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail():
        with replacing_files(tmp_path, "results.json") as made:
            (made / "report.md").write_text("new")
            raise OSError(28, "No space left on device")

    with refused("No space left on device"):
        fail()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

"""Conventions of the verbs of ``mae-lm`` and of the programs in scripts/ and preprocess/."""

import re
import shlex
import subprocess
import sys
from importlib.metadata import version

import pytest

from mae_lm_fairseq import cli
from tests.support import ROOT

HELP = """
import contextlib, importlib.abc, io, runpy, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "matplotlib", "torch", "transformers"):
            raise ModuleNotFoundError(f"help imports {name}")

sys.meta_path.insert(0, Refuse())
for program in sys.argv[1:]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if program == "mae-lm":
                sys.argv, called = [program, "--help"], program
                runpy.run_module("mae_lm_fairseq", run_name="__main__")
            else:
                directory, _, called = program.rpartition("/")
                sys.argv = [program, "--help"]
                sys.path.insert(0, directory)  # as for a program that python starts
                runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        assert not end.code, f"{program}: {end.code}"
    assert printed.getvalue().startswith(f"usage: {called} "), f"{program}: {printed.getvalue()}"
    print(program)
"""
LEFT_OUT = ("golden_probe.py",)
"""Only golden.py runs the probe."""
PROGRAMS = [
    path for path in sorted((*ROOT.glob("scripts/*.py"), *ROOT.glob("preprocess/*/*.py"))) if path.name not in LEFT_OUT
]


def test_help_imports_neither_torch_nor_fairseq():
    """These imports take many seconds on a loaded machine, during which nothing is printed.

    The modules of verbs have the options and what works with them, which needs torch.
    """
    programs = ["mae-lm", *map(str, PROGRAMS)]
    done = subprocess.run([sys.executable, "-c", HELP, *programs], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == programs


@pytest.mark.parametrize("words", [["rank", "--help"], ["--help"], ["plan", "mae_lm_tiny"]])
def test_python_without_docstrings_is_refused(words):
    command = [sys.executable, "-OO", "-m", "mae_lm_fairseq", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "PYTHONOPTIMIZE" in line


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["pretrain", "--help"], 0, "usage: mae-lm pretrain "),
        (["pretrain", "mae_lm_tiny", "data", "saved", "--arch=x"], 2, "error: --arch is the argument PRESET here"),
        (["finetune", "squad", "m", "--trian=t"], 2, "error: unrecognized arguments: --trian; is --train meant?"),
        (["pretrain", "mae_lm_tini", "data", "saved"], 1, "error: no preset mae_lm_tini"),
    ],
)
def test_options_of_trainings_are_read_without_torch(words, code, printed):
    command = [sys.executable, "-X", "importtime", "-m", "mae_lm_fairseq", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code
    assert printed in done.stdout + done.stderr
    assert not re.search(r"\| +(torch|fairseq)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_examples_in_the_help_are_understood(verb, capsys):
    with pytest.raises(SystemExit) as done:
        cli.parsed(verb, ["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out.replace("\\\n", " ")
    examples = re.findall(rf"mae-lm {verb}\b(.*)", text.split("\nExample")[1].split("\n\n")[0])
    assert examples
    for example in examples:
        cli.parsed(verb, shlex.split(example))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetune", "gleu"], "unknown verb 'finetune'; choose finetune glue or finetune squad or "),
        (["--smoke"], "unknown verb '--smoke'; mae-lm --help lists the verbs"),
    ],
)
def test_unknown_verbs(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mae-lm", *words])
    assert cli.main() == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


NO_UTF8 = "caf\udce9"
"""Name in Latin-1, as Python reads it."""


@pytest.mark.parametrize("verb", sorted(cli.VERBS.keys() - {"plan"}))  # which takes no path
def test_a_name_that_is_not_utf8_is_refused_at_the_start(verb, capsys):
    """Records, reports and libraries would fail with it, at the end of the work or as if a file were damaged."""
    with pytest.raises(SystemExit):
        cli.parsed(verb, ["--help"])
    text = capsys.readouterr().out.replace("\\\n", " ")
    examples = re.findall(rf"mae-lm {verb}\b(.*)", text.split("\nExample")[1].split("\n\n")[0])
    [words, *_] = (words for words in map(shlex.split, examples) if words and not words[-1].startswith("--"))
    option = "--out" if "--out" in words else words[-2] if words[-2:-1] == ["--save-dir"] else None
    changed = [*words[:-1], f"{words[-1]}{NO_UTF8}"] if option is None else list(words)
    if option is not None:
        changed[changed.index(option) + 1] += NO_UTF8
    with pytest.raises(SystemExit) as done:
        cli.parsed(verb, changed)
    assert done.value.code == 2
    assert "is not UTF-8" in capsys.readouterr().err


def test_a_name_is_utf8_in_all_of_its_directories(tmp_path, monkeypatch, capsys):
    directory = tmp_path / NO_UTF8
    directory.mkdir()
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.chdir(directory)
    for out in ("bundle", str(tmp_path / "link/bundle")):
        with pytest.raises(SystemExit):
            cli.parsed("bundle", ["model", "--data-bin", str(tmp_path), "--out", out])
        assert "is not UTF-8" in capsys.readouterr().err


def test_version(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mae-lm", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"mae-lm {version('mae_lm_fairseq')}\n"


def test_help_of_a_verb_with_several_kinds(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mae-lm", "finetune", "--help"])
    assert cli.main() == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in listed] == [
        ["mae-lm", *verb.split()] for verb in cli.VERBS if verb.startswith("finetune ")
    ]


def test_the_overview_has_every_verb_once():
    grouped = [verb for verbs in cli.GROUPS.values() for verb in verbs]
    assert sorted(grouped) == sorted(cli.VERBS)
    assert all(f"  {verb} " in cli.overview() for verb in cli.VERBS)

"""The directory of --user-dir: how it is imported, what is refused, and what its hash depends on."""

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import fairseq.utils
import pytest
from fairseq.tasks import TASK_REGISTRY

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.cli import main
from mae_lm_fairseq.core.decoder import DECODER_ATTENTIONS, DECODERS, SelfAttentionDecoder, register_decoder
from mae_lm_fairseq.measures.registry import MEASURES
from mae_lm_fairseq.training import user_directory
from mae_lm_fairseq.training.command import common_settings, train_command
from mae_lm_fairseq.training.keys import Products, run_key
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.training.user_directory import import_user_directory, take_user_directory
from tests.support.refusals import refused

DECODER = """
from mae_lm_fairseq.core.decoder import SelfAttentionDecoder, register_decoder

class Mine(SelfAttentionDecoder):
    pass

register_decoder("mine", Mine)
"""
TASK = """
from fairseq.tasks import register_task
from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMTask

@register_task({!r})
class {}(MaskedAutoencoderLMTask):
    pass
"""
MEASURE = """from mae_lm_fairseq.measures.measure import Measure
from mae_lm_fairseq.measures.registry import register_measure

register_measure(type("Norms", (Measure,), {{"__doc__": "Mean length.", "kind": "{}", "__module__": __name__}}))
"""


BEFORE = "17e6a5a46c"
"""Key of a training in versions without the option."""


@pytest.fixture
def write(tmp_path, monkeypatch) -> Callable[..., Path]:
    """Return a function that writes files into a directory that can be imported until the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_directory, "_imported", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a file that is written again in the same second
    decoders, attentions, tasks, measures = {**DECODERS}, [*DECODER_ATTENTIONS], {**TASK_REGISTRY}, {**MEASURES}

    def write(directory: str = "ideas", **files: str) -> Path:
        for name, text in files.items():
            path = Path(directory, *name.split("__")).with_suffix(".py") if name != "init" else Path(directory)
            path = path / "__init__.py" if name == "init" else path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Path(directory)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "ideas"]:
        del sys.modules[name]
    for registry, before in ((DECODERS, decoders), (TASK_REGISTRY, tasks), (MEASURES, measures)):
        registry.clear()
        registry.update(before)
    DECODER_ATTENTIONS[:] = attentions


@pytest.mark.parametrize(
    ("words", "directory", "others"),
    [
        ("study plan --user-dir ideas --out out", "ideas", "study plan --out out"),
        ("study --user-dir=a/ideas plan", "a/ideas", "study plan"),
        ("--user-dir ideas adapt model -- --lr 1e-3", "ideas", "adapt model -- --lr 1e-3"),
        ("finetune glue RTE -- --user-dir ideas", None, "finetune glue RTE -- --user-dir ideas"),
        ("pretrain mae_lm_tiny data saved --user-d x", None, "pretrain mae_lm_tiny data saved --user-d x"),
    ],
)
def test_the_option_is_taken_from_the_words(words, directory, others):
    taken, rest = take_user_directory(words.split())
    assert (taken and str(taken), rest) == (directory, others.split())


def test_what_it_registers_is_known_to_options_and_to_fairseq(write):
    """Modules of tasks/ are also imported; fairseq then finds the directory imported."""
    files = {"init": "from ideas import decoders", "decoders": DECODER, "tasks__own": TASK.format("own_1", "Own1")}
    import_user_directory(write(**files))
    assert DECODERS["mine"].__module__ == "ideas.decoders"
    assert TASK_REGISTRY["own_1"].__module__ == "ideas.tasks.own"
    first = sys.modules["ideas"]
    fairseq.utils.import_user_module(Namespace(user_dir="ideas"))
    assert sys.modules["ideas"] is first
    assert common_settings()["common"]["user_dir"] == Path("ideas")
    assert train_command("data", {})[2] == "mae_lm_fairseq.training.fairseq_train"


def test_the_package_itself_is_no_directory_of_the_user(write):
    import_user_directory(PACKAGE)
    assert common_settings()["common"]["user_dir"] == PACKAGE
    assert train_command("data", {})[2] == "fairseq_cli.train"


@pytest.mark.parametrize(
    ("directory", "files", "problem"),
    [
        ("missing", {}, "is not a directory"),
        ("ideas", {"decoders": DECODER}, r"ideas/__init__\.py is missing"),
        ("json", {"init": ""}, r"another module has this name, .*json/__init__\.py; rename"),
        ("ideas-0.2", {"init": ""}, "a name with a dot"),
        ("ideas", {"init": "import nothing_of_this_name"}, r"ideas/__init__\.py, line 1: ModuleNotFoundError"),
        ("ideas", {"init": "from ideas import a", "a": "\n1 / 0"}, r"ideas/a\.py, line 2: ZeroDivisionError"),
        ("ideas", {"init": "from ideas import a", "a": "\n\nx = ("}, r"ideas/a\.py, line 3: SyntaxError"),
        ("ideas", {"init": DECODER.replace('"mine"', '"self"')}, "line 7: UserError: self is the name of .*decoder"),
        ("ideas", {"init": DECODER + DECODER.replace("Mine", "Other")}, r"line 14: .* mine is the name of ideas\.Mine"),
        ("ideas", {"init": "from ideas import a", "a": MEASURE.format("loss")}, r"ideas/a\.py, line 4: .*measure loss"),
        ("ideas", {"tasks__own": TASK.format("masked_lm", "Own2"), "init": ""}, r"masked_lm is the name of fairseq"),
    ],
)
def test_what_cannot_be_imported_is_one_message(write, directory, files, problem):
    with refused(f"--user-dir .*{directory}.*{problem}"):
        import_user_directory(write(directory, **files))
    assert user_directory.user_directory() is None


def test_its_measures_are_verbs_of_the_help(write, monkeypatch, capsys):
    """A misspelt verb gets a suggestion."""
    write(init=MEASURE.format("norms"))
    for words, code in ((["--help"], 0), (["nroms"], 2)):
        monkeypatch.setattr(sys, "argv", ["mae-lm", *words, "--user-dir", "ideas"])
        assert main() == code
    printed = capsys.readouterr()
    assert re.search(r"\n  norms +Mean length\.\n", printed.out)
    assert "unknown verb 'nroms'; is norms meant?" in printed.err


def test_a_class_of_a_module_that_is_imported_again_replaces_itself(write):
    again = type("Mine", (SelfAttentionDecoder,), {"__module__": "ideas", "__qualname__": "Mine"})
    import_user_directory(write(init=DECODER))
    register_decoder("mine", again)
    assert DECODERS["mine"] is again


def key() -> str:
    return run_key({"arch": "mae_lm_tiny"}, (), 1, {"data": "1a"})


def test_the_key_of_a_run_has_the_hash_of_the_files(write):
    """Without a directory, the key is that of earlier versions."""
    assert key() == BEFORE
    import_user_directory(write(init="", data="x = 1"))
    first = key()
    assert first != BEFORE
    for path in ("ideas/__pycache__/a.pyc", "ideas/.git/index", "ideas/.hidden"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("changed")
    import_user_directory(Path("ideas"))
    assert key() == first
    Path("ideas/words.txt").write_text("changed")
    import_user_directory(Path("./ideas"))
    assert key() not in (first, BEFORE)


def test_no_run_starts_with_code_that_has_changed(write, tmp_path):
    import_user_directory(write(init=""))
    write(init="x = 1")
    run = Run("a run", (), tmp_path / "runs/key/result.json", dict)
    with refused("--user-dir ideas"):
        run_all([run])


SHADOWS = ("json", "zipapp")
"""Modules of Python, of which fairseq has not imported the second one."""


@pytest.mark.parametrize(
    "import_", [import_user_directory, lambda path: fairseq.utils.import_user_module(Namespace(user_dir=str(path)))]
)
def test_what_is_beside_it_hides_no_module(write, import_):
    for name in SHADOWS:
        write(name, init="raise ImportError")
    sys.modules.pop("zipapp", None)
    import_(write(init="import zipapp"))
    assert sys.path.index(os.getcwd()) == len(sys.path) - 1


def test_no_process_of_a_run_imports_what_is_beside_it(write, tmp_path):
    for name in SHADOWS:
        write(name, init="raise ImportError")
    import_user_directory(write(init=""))
    command = (sys.executable, "-c", "import json")
    run = Run("a run", command, tmp_path / "runs" / "key" / "result.json", nothing)
    assert run_all([run]) == [{}]


def nothing(run: Run) -> dict:
    return {}


def test_output_is_not_code(write):
    import_user_directory(write(init=""))
    with refused("--out ideas/out .*--user-dir ideas"):
        Products(Path("ideas/out"), "mae-lm study", ())
    assert not Path("ideas/out").exists()

"""Registration with fairseq: exactly once however the package is loaded, and an error message for two copies."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import mae_lm_fairseq

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mae_lm_fairseq"
# Prints the entries of this package in fairseq's registries, after checking that they are the classes of its modules.
DESCRIBE = """
import importlib, json
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.tasks import TASK_REGISTRY

def ours(registry):
    found = {name: cls for name, cls in registry.items() if cls.__module__.startswith("mae_lm_fairseq")}
    for cls in found.values():
        assert getattr(importlib.import_module(cls.__module__), cls.__name__) is cls
    return {name: f"{cls.__module__}.{cls.__name__}" for name, cls in found.items()}

assert sorted(ARCH_MODEL_INV_REGISTRY["mae_lm"]) == sorted(ours(ARCH_MODEL_REGISTRY))
registries = {"models": MODEL_REGISTRY, "tasks": TASK_REGISTRY, "criterions": CRITERION_REGISTRY}
registries["optimizers"] = OPTIMIZER_REGISTRY
found = {kind: ours(registry) for kind, registry in registries.items()}
print(json.dumps({**found, "architectures": sorted(ours(ARCH_MODEL_REGISTRY))}))
"""
USER_DIR = """
import sys
from fairseq import options
for user_dir in {}:
    sys.argv = ["fairseq-train", "--user-dir", user_dir]
    options.get_training_parser()
"""
IMPORT = "import mae_lm_fairseq; assert mae_lm_fairseq.MAELMModel.__name__ == 'MAELMModel'\n"


PRELOAD = "import hydra, sacrebleu, safetensors.torch, sentencepiece, sklearn.metrics, torch._dynamo\n"
"""Imports of fairseq and of this package."""
SERVER = """
import json, os, sys

for line in sys.stdin:
    program, path, cwd, *outputs = json.loads(line)
    if (pid := os.fork()) == 0:
        for number, output in enumerate(outputs, 1):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), number)
        os.chdir(cwd)
        sys.path[:0] = ["", *path]
        exec(program, {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def run_python(tmp_path_factory):
    """Return a function that runs a program outside the checkout, with the given package directories.

    It runs in a child of a process that has imported torch, but not fairseq.
    """
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    outputs = [elsewhere / name for name in ("stdout", "stderr")]
    command, pipes = [sys.executable, "-c", PRELOAD + SERVER], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": ""}
    with subprocess.Popen(command, **pipes, text=True, cwd=elsewhere, env=environment) as server:

        def run(program: str, *path: Path, cwd: Path = elsewhere) -> subprocess.CompletedProcess:
            for output in outputs:
                output.unlink(missing_ok=True)
            print(json.dumps([program, [*map(str, path)], *map(str, (cwd, *outputs))]), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
            return subprocess.CompletedProcess(program, code, *(output.read_text() for output in outputs))

        yield run
        server.stdin.close()


@pytest.fixture(scope="module")
def other_copy(tmp_path_factory) -> Path:
    destination = tmp_path_factory.mktemp("other") / "mae_lm_fairseq"
    return Path(shutil.copytree(PACKAGE, destination, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="module")
def spellings(tmp_path_factory) -> list[str]:
    """Return different paths to the package directory."""
    links = tmp_path_factory.mktemp("links")
    (links / "mae_lm_fairseq").symlink_to(PACKAGE)
    (links / "short").symlink_to(PACKAGE)
    inside = f"{PACKAGE}/../{PACKAGE.name}"
    return [str(PACKAGE), f"{PACKAGE}/", inside, f"{links}/mae_lm_fairseq", f"{links}/short"]


def registered(done: subprocess.CompletedProcess) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def complaint(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def expected() -> dict:
    """Return what is registered in this process."""
    mae_lm_fairseq.register()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(DESCRIBE, {})
    return json.loads(printed.getvalue())


def test_user_dir(run_python, spellings, expected):
    links = Path(spellings[3]).parent
    program = USER_DIR.format(["mae_lm_fairseq", *spellings]) + IMPORT + DESCRIBE
    assert registered(run_python(program, cwd=links)) == expected


def test_fairseq_first_then_user_dir(run_python, spellings, expected):
    program = "import fairseq, mae_lm_fairseq\n" + DESCRIBE + USER_DIR.format(spellings) + IMPORT + DESCRIBE
    done = run_python(program, ROOT)
    assert registered(done) == expected
    assert done.stdout.splitlines()[-2] == done.stdout.splitlines()[-1]


def test_command_that_names_the_directory(run_cli):
    done = run_cli(["python", "-m", "mae_lm_fairseq"])
    assert done.stdout == f"{PACKAGE}\n"


def test_public_names():
    from mae_lm_fairseq.models.mae_lm import MAELMModel

    assert mae_lm_fairseq.MAELMModel is MAELMModel


MANNERS = """
import importlib, logging, os, sys
import torch  # it changes the environment itself

before = logging.root.level, logging.root.handlers.copy(), dict(os.environ)
import mae_lm_fairseq.core
assert "fairseq" not in sys.modules
mae_lm_fairseq.MAELMModel
assert "fairseq" in sys.modules  # which itself counts GPUs
assert before == (logging.root.level, logging.root.handlers, dict(os.environ)), (before, dict(os.environ))

def refused(*arguments):
    raise AssertionError("an import asks for GPUs")

for name in ("is_available", "device_count", "get_device_properties", "_lazy_init"):
    setattr(torch.cuda, name, refused)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_an_import_changes_neither_logging_nor_the_environment_and_asks_for_no_gpus(run_cli, tmp_path):
    """The number of GPUs would hold for the process, and may initialise CUDA, after which none can be forked."""
    paths = [path for path in PACKAGE.rglob("*.py") if "torch.cuda" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert len(names) > 10
    done = run_cli(["python", "-c", MANNERS, *names], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_core_first_needs_register(run_python, expected):
    """fairseq ignores a --user-dir that is already imported."""
    first = "import mae_lm_fairseq.core, fairseq\n"
    unknown = USER_DIR.format([str(PACKAGE)]) + "from fairseq.tasks import TASK_REGISTRY\n"
    done = run_python(first + unknown + "assert 'masked_autoencoder_lm' not in TASK_REGISTRY", ROOT)
    assert done.returncode == 0, done.stderr
    assert registered(run_python(first + "mae_lm_fairseq.register()\n" + DESCRIBE, ROOT)) == expected


EACH_MODULE_FIRST = f"""
{PRELOAD}import importlib, os, sys
import fairseq.models, fairseq.tasks, fairseq_cli.train
fairseq = sys.modules.pop("fairseq")  # so that importing the package does not register yet
import mae_lm_fairseq
sys.modules["fairseq"] = fairseq
assert "mae_lm_fairseq.models" not in sys.modules
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


def test_every_module_that_registers_can_be_imported_first(run_cli, tmp_path, expected):
    """Importing a module of models/ registers the tasks, some of which derive from classes of other modules."""
    kinds = (kind.values() for kind in expected.values() if isinstance(kind, dict))
    names = {name.rpartition(".")[0] for kind in kinds for name in kind}
    assert len(names) > 5
    done = run_cli(["python", "-c", EACH_MODULE_FIRST, *names], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_the_model_needs_few_modules():
    """Training must not import what measures, fine-tunes or exports; imports inside functions count."""
    needed = grimp.build_graph("mae_lm_fairseq").find_upstream_modules("mae_lm_fairseq.models.mae_lm")
    assert len(needed) <= 47, sorted(needed)


class TestSecondCopy:
    def test_imported_first(self, run_python, other_copy):
        message = complaint(run_python(IMPORT + USER_DIR.format([str(other_copy)]), ROOT))
        assert str(other_copy) in message
        assert str(PACKAGE) in message

    def test_other_directory_name(self, run_python, spellings):
        message = complaint(run_python(USER_DIR.format([spellings[4]])))
        assert "must end in mae_lm_fairseq" in message

    def test_taken_name(self, run_python):
        program = (
            "from fairseq.models import FairseqEncoderModel, register_model\n"
            "register_model('mae_lm')(type('Taken', (FairseqEncoderModel,), {}))\n"
        )
        assert "has already registered the name mae_lm" in complaint(
            run_python(program + USER_DIR.format([str(PACKAGE)]))
        )

"""Registration with fairseq: exactly once however the package is loaded, and an error message for two copies."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import grimp
import pytest

import mae_lm_fairseq

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mae_lm_fairseq"
PRESETS = ("mae_lm", "mae_lm_roberta", "mae_lm_3ml_self", "mae_lm_3ml_cross", "mae_lm_mask_later")
PRESETS += ("mae_lm_exlm", "mae_lm_exlm_decoder")
SIZES = [f"{preset}_{size}" for preset in PRESETS for size in ("tiny", "small", "base", "large")]
REGISTERED = {
    "models": {"mae_lm": "mae_lm_fairseq.models.mae_lm.MAELMModel"},
    "architectures": sorted(["mae_lm", *SIZES]),
    "tasks": {
        "masked_autoencoder_lm": "mae_lm_fairseq.tasks.masked_autoencoder_lm.MaskedAutoencoderLMTask",
        "question_answering": "mae_lm_fairseq.finetuning.squad.task.QuestionAnsweringTask",
        "token_classification": "mae_lm_fairseq.finetuning.tagging.task.TokenClassificationTask",
    },
    "criterions": {
        "masked_autoencoder_lm": "mae_lm_fairseq.criterions.masked_autoencoder_lm.MaskedAutoencoderLMCriterion",
        "question_answering": "mae_lm_fairseq.finetuning.squad.task.QuestionAnsweringCriterion",
        "token_classification": "mae_lm_fairseq.finetuning.tagging.task.TokenClassificationCriterion",
    },
    "optimizers": {"fused_adamw": "mae_lm_fairseq.optim.fused_adamw.FusedAdamW"},
}
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


@pytest.fixture(scope="module")
def run_python(run_cli, tmp_path_factory):
    """Return a function that runs a program outside the checkout, with the given package directories."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(program: str, *path: Path, cwd: Path = elsewhere) -> subprocess.CompletedProcess:
        return run_cli(["python", "-c", program], cwd=cwd, env={"PYTHONPATH": os.pathsep.join(map(str, path))})

    return run


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


def test_user_dir(run_python, spellings):
    links = Path(spellings[3]).parent
    program = USER_DIR.format(["mae_lm_fairseq", *spellings]) + IMPORT + DESCRIBE
    assert registered(run_python(program, cwd=links)) == REGISTERED


def test_import_then_user_dir(run_python, spellings):
    program = IMPORT + DESCRIBE + USER_DIR.format(spellings) + IMPORT + DESCRIBE
    done = run_python(program, ROOT)
    assert registered(done) == REGISTERED
    assert done.stdout.splitlines()[-2] == done.stdout.splitlines()[-1]


def test_command_that_names_the_directory(run_cli):
    done = run_cli(["python", "-m", "mae_lm_fairseq"])
    assert done.stdout == f"{PACKAGE}\n"


def test_public_names():
    from mae_lm_fairseq.models.mae_lm import MAELMModel

    assert mae_lm_fairseq.MAELMModel is MAELMModel
    with pytest.raises(AttributeError, match="no attribute 'Absent'"):
        mae_lm_fairseq.Absent  # noqa: B018


MANNERS = """
import logging, os, sys
import torch  # it changes the environment itself

before = logging.root.level, logging.root.handlers.copy(), dict(os.environ)
import mae_lm_fairseq.core
assert "fairseq" not in sys.modules
mae_lm_fairseq.MAELMModel
assert "fairseq" in sys.modules
assert before == (logging.root.level, logging.root.handlers, dict(os.environ)), (before, dict(os.environ))
"""


def test_an_import_changes_neither_logging_nor_the_environment(run_python):
    done = run_python(MANNERS, ROOT)
    assert done.returncode == 0, done.stderr


IMPORT_WITHOUT_CUDA = """
import importlib, sys
import fairseq, torch  # fairseq itself counts GPUs

def refused(*arguments):
    raise AssertionError("an import asks for GPUs")

for name in ("is_available", "device_count", "get_device_properties", "_lazy_init"):
    setattr(torch.cuda, name, refused)
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_an_import_asks_for_no_gpus(run_cli, tmp_path):
    """The answer would hold for the process, and may initialise CUDA, after which processes cannot be forked."""
    paths = [path for path in PACKAGE.rglob("*.py") if "torch.cuda" in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert len(names) > 10
    done = run_cli(["python", "-c", IMPORT_WITHOUT_CUDA, *names], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


def test_core_first_needs_register(run_python):
    """fairseq ignores a --user-dir that is already imported."""
    first = "import mae_lm_fairseq.core, fairseq\n"
    unknown = USER_DIR.format([str(PACKAGE)]) + "from fairseq.tasks import TASK_REGISTRY\n"
    done = run_python(first + unknown + "assert 'masked_autoencoder_lm' not in TASK_REGISTRY", ROOT)
    assert done.returncode == 0, done.stderr
    assert registered(run_python(first + "mae_lm_fairseq.register()\n" + DESCRIBE, ROOT)) == REGISTERED


def test_fairseq_first(run_python):
    program = "import fairseq, mae_lm_fairseq\n" + DESCRIBE
    assert registered(run_python(program, ROOT)) == REGISTERED


EACH_MODULE_FIRST = """
import importlib, os, sys
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


def test_every_module_of_the_tasks_can_be_imported_first(run_cli, tmp_path):
    """Importing a module of models/ registers the tasks, some of which derive from classes of other modules."""
    paths = [
        path
        for name in ("criterions", "finetuning", "models", "optim", "tasks")
        for path in PACKAGE.glob(f"{name}/**/*.py")
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    assert len(names) > 30
    done = run_cli(["python", "-c", EACH_MODULE_FIRST, *names], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hide", ["importlib.util.find_spec = lambda name: None", "sys.modules['fairseq'] = None"])
def test_without_fairseq(hide, run_python):
    program = f"import sys, importlib.util; {hide}\nimport mae_lm_fairseq.core.autoencoder\n"
    heavy = "('fairseq.', 'hydra', 'transformers', 'mae_lm_fairseq.models', 'mae_lm_fairseq.checkpoints')"
    done = run_python(f"{program}assert not any(name.startswith({heavy}) for name in sys.modules)", ROOT)
    assert done.returncode == 0, done.stderr


def test_the_model_needs_few_modules():
    """Training must not import what measures, fine-tunes or exports; imports inside functions count, too."""
    needed = grimp.build_graph("mae_lm_fairseq").find_upstream_modules("mae_lm_fairseq.models.mae_lm")
    assert len(needed) <= 35, sorted(needed)


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


@pytest.mark.slow  # Linux forks its workers
def test_spawned_workers(run_cli, data_bin, tmp_path):
    """Data workers are spawned, as on macOS, and must find all registered classes."""
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing\n"
        "from fairseq_cli.train import cli_main\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.set_start_method('spawn', force=True)\n"
        "    cli_main()\n"
    )
    names = ["--task", "masked_autoencoder_lm", "--criterion", "masked_autoencoder_lm", "--arch", "mae_lm_tiny"]
    sizes = ["--tokens-per-sample", "32", "--batch-size", "4", "--max-update", "2", "--num-workers", "1"]
    rest = ["--optimizer", "adam", "--lr", "1e-3", "--lr-scheduler", "fixed", "--cpu", "--no-save"]
    done = run_cli(["python", script, data_bin, "--user-dir", PACKAGE, *names, *sizes, *rest], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "num_updates 2" in done.stdout

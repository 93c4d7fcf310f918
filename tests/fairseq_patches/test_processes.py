"""Exit codes and error messages of fairseq's commands and processes; each test fails without its patch."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils

import mae_lm_fairseq
from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches import option_checks, parsing, processes
from mae_lm_fairseq.utils.errors import UserError
from tests.support.fairseq_commands import SETTINGS, complaint

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra warns several times per configuration

mae_lm_fairseq.register()


@pytest.mark.parametrize(("code", "expected"), [(1, SystemExit), (3, torch.multiprocessing.ProcessExitedException)])
def test_error_in_a_started_process(capfd, monkeypatch, code, expected):
    """fairseq starts such a process for each GPU."""
    monkeypatch.setattr(processes, "join_started_processes", lambda cfg: None)
    monkeypatch.setattr(processes, "check_settings", lambda cfg: None)
    monkeypatch.setattr(processes, "fairseq_distributed_main", _fail)

    def call_main(cfg):
        arguments = {"args": (code,), "nprocs": 2, "start_method": "fork"}
        torch.multiprocessing.start_processes(distributed_utils.distributed_main, **arguments)

    with pytest.raises(expected) as caught:
        processes._call_main(call_main, SimpleNamespace(common=SimpleNamespace(cpu=False)))
    assert expected is not SystemExit or caught.value.code == 1
    assert capfd.readouterr().err == ("error: no such file\n" if code == 1 else "")


@pytest.mark.parametrize("given", [None, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize("start", ["command", "trainer"])
def test_allocator_is_set_before_cuda_starts(monkeypatch, start, given):
    """fairseq-hydra-train loads this package when the trainer is made. The check of options already asks for GPUs."""
    names = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(given, "max_split_size_mb:64")
    seen = {}
    first = option_checks.Check("--cpu", lambda cfg: seen.update(os.environ) or 1 / 0, "")
    monkeypatch.setattr(option_checks, "CHECKS", [first])
    cfg = SimpleNamespace(common=SimpleNamespace(cpu=False, user_dir=None), model=None)
    monkeypatch.setattr(processes, "join_started_processes", lambda cfg: None)
    with pytest.raises(ZeroDivisionError):
        processes._call_main(print, cfg) if start == "command" else parsing._init_trainer(print, None, cfg)
    expected = dict.fromkeys(names, "expandable_segments:True") if given is None else {given: "max_split_size_mb:64"}
    assert {name: value for name, value in seen.items() if name in names} == expected


def _fail(rank: int, code: int) -> None:
    if rank == 1:
        raise UserError("no such file") if code == 1 else SystemExit(code)
    time.sleep(60)


@pytest.fixture(scope="module")
def train(data_bin, run_cli):
    def train(save_dir: Path, *arguments) -> subprocess.CompletedProcess:
        saving = ["--save-dir", save_dir, "--no-epoch-checkpoints", "--cpu"]
        return run_cli(["fairseq-train", data_bin, *SETTINGS, *saving, *arguments])

    return train


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("trained")
    done = train(directory, "--max-update", "2")
    assert done.returncode == 0, done.stderr
    return directory / "checkpoint_last.pt"


class TestTraining:
    """Errors and resuming through fairseq's own commands."""

    def test_resume(self, train, trained, tmp_path):
        done = train(tmp_path, "--max-update", "4", "--restore-file", trained)
        assert done.returncode == 0, done.stderr
        assert "(epoch 1 @ 2 updates)" in done.stdout
        last = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))
        assert last["optimizer_history"][-1]["num_updates"] == 4

    def test_checkpoint_of_another_size(self, train, trained):
        done = train(trained.parent, "--max-update", "4", "--encoder-embed-dim", "32", "--dropout", "0.3")
        assert complaint(done) == (
            f"error: the checkpoint {trained} does not fit this model: "
            "dropout is 0.1 in the checkpoint and 0.3 here; encoder_embed_dim is 16 in the checkpoint and 32 here"
        )

    def test_checkpoint_that_does_not_exist(self, train, tmp_path):
        done = train(tmp_path / "run", "--restore-file", tmp_path / "missing.pt")
        assert str(tmp_path / "missing.pt") in complaint(done)
        assert not (tmp_path / "run").exists()

    def test_hydra(self, data_bin, run_cli, tmp_path):
        arguments = {
            "task": "masked_lm",
            "task.data": data_bin,
            "criterion": "masked_lm",
            "+model._name": "roberta_base",
            "+model.encoder_layers": 1,
            "dataset.batch_size": 8,
            "optimizer": "adam",
            "lr_scheduler": "fixed",
            "common.user_dir": PACKAGE,
            "common.cpu": "true",
            "common.bf16": "true",
        }
        command = ["fairseq-hydra-train", *(f"{key}={value}" for key, value in arguments.items())]
        done = run_cli(command, cwd=tmp_path)
        assert done.returncode == 1
        assert "--bf16 needs a GPU" in done.stderr

    def test_task_checks_checkpoint(self, data_bin, trained, run_cli, tmp_path):
        script = tmp_path / "train.py"
        script.write_text(
            "from fairseq.tasks.masked_lm import MaskedLMTask\n"
            "from fairseq_cli.train import cli_main\n"
            "from mae_lm_fairseq.utils.errors import UserError\n"
            "def check_checkpoint(task, filename, state, resumes):\n"
            '    raise UserError(f\'{filename} has {len(state["model"])} weights, {state["task_state"]}\')\n'
            "MaskedLMTask.check_checkpoint = check_checkpoint\n"
            "cli_main()\n"
        )
        saving = ["--save-dir", trained.parent, "--max-update", "2", "--cpu"]
        done = run_cli(["python", script, data_bin, *SETTINGS, *saving], env={"PYTHONPATH": str(PACKAGE.parent)})
        weights = len(torch.load(trained)["model"])
        assert complaint(done) == f"error: {trained} has {weights} weights, {{}}"


SPAWNING = """
import sys
import fairseq_cli.train
import torch

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 2  # fairseq starts a process for each GPU
    fairseq_cli.train.cli_main()
"""


def test_error_in_the_processes_that_fairseq_spawns(run_cli, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    (tmp_path / "empty").mkdir()
    together = ["--distributed-init-method", f"file://{tmp_path}/meet", "--distributed-world-size", "2"]
    backends = ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", "--cpu"]
    options = ["--task", "masked_autoencoder_lm", "--criterion", "masked_autoencoder_lm", "--arch", "mae_lm_tiny"]
    rest = ["--optimizer", "adam", "--lr", "1e-3", "--batch-size", "4", "--user-dir", PACKAGE]
    done = run_cli(["python", script, tmp_path / "empty", *together, *backends, *options, *rest])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    # torch's launcher may log afterwards that it stops the other process.
    assert f"\nerror: {tmp_path}/empty/dict.txt does not exist" in done.stderr


def test_error_under_torchrun(run_cli, data_bin, tmp_path):
    command = ["torchrun", "--nproc-per-node", "2", "--no-python", "fairseq-train", data_bin, *SETTINGS, "--bf16"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_cli([*command, "--cpu", "--save-dir", tmp_path / "saved"], env={"PATH": path})
    assert done.returncode == 1
    of_ranks = done.stderr.partition("ChildFailedError")[0]
    assert "error: --bf16 needs a GPU" in of_ranks
    assert "fairseq_cli/train.py" not in of_ranks  # no traceback of a rank; torchrun prints its own


LOADING_AHEAD = """
import torch
import mae_lm_fairseq

mae_lm_fairseq.register()

from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self):
        return 10**6

    def __iter__(self):
        states = torch.randn(400, 400)
        while True:
            yield states @ states

next(iter(BufferedIterator(10, Batches())))
"""


def test_exit_while_batches_are_prefetched(run_cli, tmp_path):
    script = tmp_path / "stop.py"
    script.write_text(LOADING_AHEAD)
    done = run_cli(["python", script], env={"PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stderr  # -6 without the patch

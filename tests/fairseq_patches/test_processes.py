"""Exit codes and error messages of fairseq's commands and processes; each test fails without its patch."""

import io
import logging
import os
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

import mae_lm_fairseq
from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches import option_checks, parsing, processes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # hydra warns several times per configuration

mae_lm_fairseq.register()


@pytest.mark.parametrize("variable", [None, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
@pytest.mark.parametrize("start", ["command", "trainer"])
def test_allocator_is_set_before_cuda_starts(monkeypatch, start, variable):
    """fairseq-hydra-train loads this package when the trainer is made. The check of options already asks for GPUs."""
    names = {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    seen = {}
    first = option_checks.Check("--cpu", lambda cfg: seen.update(os.environ) or 1 / 0, "")
    monkeypatch.setattr(option_checks, "CHECKS", [first])
    cfg = SimpleNamespace(common=SimpleNamespace(cpu=False, user_dir=None), model=None)
    monkeypatch.setattr(processes, "join_started_processes", lambda cfg: None)
    init = parsing.check_options_of_the_trainer.__wrapped__
    with pytest.raises(ZeroDivisionError):
        processes._call_main(print, cfg) if start == "command" else init(print, None, cfg)
    expected = (
        dict.fromkeys(names, "expandable_segments:True") if variable is None else {variable: "max_split_size_mb:64"}
    )
    assert {name: value for name, value in seen.items() if name in names} == expected


def test_hydra(data_bin, run_cli, tmp_path):
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_files_and_pipes_get_the_configuration(monkeypatch, is_terminal):
    printed = io.StringIO()
    printed.isatty = lambda: is_terminal
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(printed)])
    monkeypatch.setattr(processes, "join_started_processes", lambda cfg: None)
    monkeypatch.setattr(processes, "check_settings", lambda cfg: None)
    cfg = OmegaConf.create({"distributed_training": {"distributed_rank": 0}, "task": None, "common": {"cpu": True}})
    log = logging.getLogger("fairseq_cli.train").warning

    def train(call, cfg):
        log("before")
        log(cfg)
        log("after")

    for _ in range(2):  # a filter is added once
        processes._call_main(lambda cfg, main: main(None, cfg), cfg, train)
    lines = ["before", *([] if is_terminal else [str(cfg)]), "after"]
    assert printed.getvalue().splitlines() == 2 * lines


SPAWNING = """
import sys
import fairseq_cli.train
import torch

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 2  # fairseq starts a process for each GPU
    fairseq_cli.train.cli_main()
"""


@pytest.mark.slow  # two processes that import everything
def test_error_in_the_processes_that_fairseq_spawns(run_cli, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    (tmp_path / "empty").mkdir()
    together = ["--distributed-init-method", f"file://{tmp_path}/meet", "--distributed-world-size 2"]
    backends = ["--distributed-backend gloo --ddp-backend legacy_ddp --cpu"]
    options = ["--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny"]
    rest = ["--optimizer adam --lr 1e-3 --batch-size 4 --user-dir", PACKAGE]
    done = run_cli(["python", script, tmp_path / "empty", *together, *backends, *options, *rest])
    assert done.returncode == 1
    assert f"error: {tmp_path}/empty/dict.txt: No such file or directory" in done.stderr


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

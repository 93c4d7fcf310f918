"""The options of fairseq-train that each user of the builder trains with; all other values are fairseq's defaults."""

import re
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.finetuning.adapter import TaskSetup
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.recipes import Recipe
from mae_lm_fairseq.finetuning.sweep import Sweep
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.command import train_command
from tests.support.tokenizers import make

COMMON = {f"user-dir {PACKAGE}", "required-batch-size-multiple 1", "no-epoch-checkpoints"}
COMMON |= {"adam-betas (0.9, 0.98)", "adam-eps 1e-06", "lr-scheduler polynomial_decay"}
RUN = {"log-format json", "cpu", "seed 3", "keep-interval-updates 1"}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def options(command):
    """Return the options of a command, without dashes, after a check that none is given twice."""
    words = " ".join(command).split(" --")[1:]
    assert len({option.split()[0] for option in words}) == len(words)
    return set(words)


def test_fine_tuning(tmp_path):
    config = preset_config("mae_lm", "base", relative_buckets=64)
    start = Description(Path("start.pt"), config, ModelInfo(architecture="mae_lm_base"))
    chosen = FinetuningOptions(model=start.path, out=tmp_path, seeds=3, extra=("--bf16",))
    setup = TaskSetup(
        content={},
        data=Path("data"),
        sequences=1600,
        recipe=Recipe((2e-5,), batch_size=16, weight_decay=0.1, epochs=10),
        settings={},
        inputs={},
        evaluate=len,
        selection="score",
    )
    [[*_, run]] = Sweep(chosen, start, make("byte-bpe"), setup).runs().values()
    assert options(run.command) == COMMON | RUN | {
        *("arch mae_lm_base", "relative-buckets 64", "max-positions 512", "finetune-from-model start.pt"),
        *("optimizer fused_adamw", "weight-decay 0.1", "clip-norm 0.0", "dropout 0.1", "attention-dropout 0.1"),
        *("lr 2e-05", "max-update 1000", "total-num-update 1000", "warmup-updates 60", "save-interval-updates 2000"),
        *("batch-size 16", "batch-size-valid 64", "num-workers 0", "log-interval 10", "bf16"),
        f"save-dir {run.result.parent}/checkpoints",
    }


def test_flags_and_further_words():
    words = train_command("data", {"lr": 0.1, "cpu": True, "fp16": False}, ["--lr", "0.2"])
    assert words[1:] == ["-m", "fairseq_cli.train", "data", "--lr", "0.1", "--cpu", "--lr", "0.2"]


def test_every_training_of_the_package_is_a_fairseq_train_process():
    """So what is promised of fairseq-train also holds in studies, adaptation and fine-tuning."""
    modules = (
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(r'"-m", training_module|import cli_main|\bTrainer\(', path.read_text())
    )
    assert {str(path.relative_to(PACKAGE)) for path in modules} == {
        "training/command.py",
        "training/fairseq_train.py",
        "training/pretrain.py",
        "training/untrained.py",  # which saves what a training would begin with, and trains nothing
    }

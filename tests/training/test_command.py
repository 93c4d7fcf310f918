"""The options of fairseq-train that each user of the builder trains with; all other values are fairseq's defaults."""

import re
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq import adapt as adaptation
from mae_lm_fairseq.finetuning.adapter import Recipe, TaskSetup
from mae_lm_fairseq.finetuning.options import FinetuningOptions
from mae_lm_fairseq.finetuning.sweep import Origin, Sweep
from mae_lm_fairseq.huggingface.importer import network_options
from mae_lm_fairseq.study.options import AdaptOptions
from mae_lm_fairseq.study.plan import read_plan
from mae_lm_fairseq.study.results import Training
from mae_lm_fairseq.study.training import train_options
from mae_lm_fairseq.training.command import train_command
from mae_lm_fairseq.training.pretrain import configure
from tests.support.exports import pretrained
from tests.support.tokenizers import make

COMMON = {f"user-dir {PACKAGE}", "required-batch-size-multiple 1", "no-epoch-checkpoints"}
COMMON |= {"adam-betas (0.9, 0.98)", "adam-eps 1e-06", "lr-scheduler polynomial_decay"}
RUN = {"log-format json", "cpu", "seed 3", "keep-interval-updates 1"}
RECIPE = {"criterion masked_autoencoder_lm", "task masked_autoencoder_lm", "sample-break-mode complete_doc"}
TINY = COMMON | RECIPE | {"arch mae_lm_tiny", "optimizer adam", "weight-decay 0.01", "clip-norm 2.0", "num-workers 1"}
TINY |= {"tokens-per-sample 64", "mask-prob 0.15", "leave-unmasked-prob 0.0", "random-token-prob 0.0", "lr 0.001"}
TINY |= {"dropout 0.0", "attention-dropout 0.0", "batch-size 32", "update-freq 1", "log-interval 10"}
TINY |= {"validate-interval-updates 200"}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def options(command):
    """Return the options of a command, without dashes, after a check that none is given twice."""
    found = " ".join(command).split(" --")[1:]
    assert len({option.split()[0] for option in found}) == len(found)
    return set(found)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's
def test_pretraining():
    schedule = {"max-update 2000", "total-num-update 2000", "warmup-updates 500"}
    saving = {"save-dir saved", "save-interval-updates 200", "keep-interval-updates 1"}
    assert options(configure("mae_lm_tiny", "data", "saved", [])[0]) == TINY | schedule | saving


def test_a_study(tmp_path):
    plan = read_plan("quickstart")
    [model] = [model for model in plan.models if model.arch == "mae_lm_tiny"]
    chosen = train_options(plan, Training(model, None, 3), plan.train.updates, tmp_path / "saved")
    words = train_command(plan.data.data_bin, chosen)
    schedule = {f"{name} {plan.train.updates}" for name in ("max-update", "total-num-update")}
    schedule |= {f"warmup-updates {plan.train.warmup}", f"save-interval-updates {plan.train.updates // 20}"}
    given = {f"{name} {value}" for name, value in (plan.options | model.options).items()}
    replaced = {option for option in TINY if option.split()[0] in plan.options | model.options}
    assert options(words) == (TINY - replaced) | given | RUN | schedule | {f"save-dir {tmp_path / 'saved'}"} | {
        "disable-validation"
    }


def test_fine_tuning(tmp_path):
    start = Origin(Path("start.pt"), {"_name": "mae_lm_base", "relative_buckets": 64}, 512)
    chosen = FinetuningOptions(model=start.checkpoint, out=tmp_path, seeds=3, extra=("--bf16",))
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


def test_adaptation(tmp_path, monkeypatch):
    monkeypatch.setattr(adaptation, "batch_tokens", lambda: 2048)
    taken = {"model": Path("m"), "train": [], "valid": [], "out": tmp_path, "data_bin": None, "text_field": "text"}
    taken |= {"objective": "3ml", "updates": 1000, "learning_rate": 1e-4, "batch_size": 8192, "seed": 3}
    taken |= {"tokens_per_sample": 20, "mask_prob": None, "freeze_encoder_updates": 0, "layer_lr_decay": 0.8}
    chosen = AdaptOptions(**taken)
    model = adaptation.as_objective(pretrained(tokenizer=make("byte-bpe")), chosen)
    plan = adaptation.plan_of(model, chosen, [])
    given = train_options(plan, Training(plan.models[0], None, 3), 1000, tmp_path / "saved")
    found = options(train_command("data", given))
    assert found - options(["data", *network_options(model)]) == COMMON | RUN | RECIPE | {
        *("tokens-per-sample 20", "mask-in-encoder 0.0", "mask-prob 0.5", "freeze-encoder-updates 0"),
        *("optimizer fused_adamw", "layer-lr-decay 0.8", "weight-decay 0.01", "clip-norm 1.0", "lr 0.0001"),
        *("max-update 1000", "total-num-update 1000", "warmup-updates 60", "save-interval-updates 50"),
        *("max-tokens 2048", "update-freq 4", "num-workers 1", "disable-validation", "log-interval 1"),
        *("save-interval 1001", f"save-dir {tmp_path}/saved", f"finetune-from-model {tmp_path}/initial"),
    }


def test_flags_and_further_words():
    words = train_command("data", {"lr": 0.1, "cpu": True, "fp16": False}, ["--lr", "0.2"])
    assert words[1:] == ["-m", "fairseq_cli.train", "data", "--lr", "0.1", "--cpu", "--lr", "0.2"]


def test_every_training_of_the_package_is_a_fairseq_train_process():
    """So what is promised of fairseq-train holds in studies, adaptation and fine-tuning, too."""
    modules = (path for path in PACKAGE.rglob("*.py") if re.search(r"fairseq_cli\.train|\bTrainer\(", path.read_text()))
    assert {str(path.relative_to(PACKAGE)) for path in modules} == {
        "training/command.py",
        "training/pretrain.py",
    }

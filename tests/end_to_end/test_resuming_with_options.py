"""Interrupted runs end as one run does, with each option of docs/reference/options.md and a value of its own."""

import contextlib
import os
import re
import runpy
import shutil
import signal
from functools import partial
from unittest import mock

import pytest
import torch
from fairseq.trainer import Trainer
from fairseq_cli.train import main
from torch.utils._pytree import keystr, tree_leaves_with_path

from mae_lm_fairseq.fairseq_patches import preemption
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.end_to_end.test_fairseq_options import UNSCHEDULED
from tests.support import ROOT
from tests.support.finetuning import train_here
from tests.support.processes import wait_for
from tests.support.refusals import refused
from tests.support.training import RECIPE

OPTIONS = "--arch mae_lm_tiny --num-workers 0 --batch-size 96 --max-update 14 "
OPTIONS += "--save-interval-updates 2 --validate-interval-updates 2"
UPDATES = (3, 6, 8)
"""Updates after which a start is interrupted; an epoch has six batches."""


class Killed(Exception):
    pass


@contextlib.contextmanager
def killed_after(updates):
    step = Trainer.train_step

    def train_step(trainer, *args, **kwargs):
        if trainer.get_num_updates() >= updates:
            raise Killed
        return step(trainer, *args, **kwargs)

    with mock.patch.object(Trainer, "train_step", train_step), contextlib.suppress(Killed):
        yield


@contextlib.contextmanager
def ended_after(updates):
    """Send a signal in the update before, which is then finished and saved."""
    step = Trainer.train_step

    def train_step(trainer, *args, **kwargs):
        if trainer.get_num_updates() + 1 >= updates and not preemption.signal_received():
            os.kill(os.getpid(), signal.SIGTERM)
            wait_for(preemption.signal_received)
        return step(trainer, *args, **kwargs)

    with (
        mock.patch.object(Trainer, "train_step", train_step),
        preemption.saves_before_it_ends(main),
        contextlib.suppress(SystemExit),
    ):
        yield


def outcome(directory):
    [*_, newest] = sorted(directory.glob("checkpoint_*.pt"), key=saved_updates)
    state = torch.load(newest, weights_only=False)
    for name in ("metrics", "previous_training_time"):
        state["extra_state"].pop(name, None)
    del state["optimizer_history"][:-1]  # it grows with every start
    return state | {"cfg": None, "files": sorted(path.name for path in directory.glob("*.pt"))}


def assert_equal(resumed, expected):
    pairs = zip(*(tree_leaves_with_path(state) for state in (resumed, expected)), strict=True)
    for (path, value), (other_path, other) in pairs:
        assert path == other_path
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other, keystr(path)


@pytest.fixture
def train(tmp_path, data_bin, monkeypatch):
    """Return ``train(name, *options)``, which trains in this process and returns the directory ``name`` of the run."""
    monkeypatch.chdir(tmp_path)

    def run(name, options="--seed 1", data=data_bin):
        recipe = UNSCHEDULED if "--lr-scheduler" in options else RECIPE
        if CHECKPOINT in options and not (tmp_path / CHECKPOINT).exists():
            train_here(data, *RECIPE, OPTIONS, "--max-update 3 --save-dir start --store-ema --ema-decay 0.9")
        train_here(data, *recipe, OPTIONS, "--save-dir", tmp_path / name, options)
        return tmp_path / name

    return run


EIGHTY_TEN_TEN = "--leave-unmasked-prob 0.1 --random-token-prob 0.1"
CHECKPOINT = "start/checkpoint_last.pt"
"""Stands for a checkpoint of another run, which is made where a case names it."""
COMBINED = (
    "--update-freq 1,2 --curriculum 2 --max-valid-steps 2 --patience 9 --num-workers 2 "
    "--store-ema --ema-decay 0.9 --ema-fp32 --ema-update-freq 2 --freeze-encoder-updates 5 "
    "--keep-best-checkpoints 3 --keep-interval-updates 2 --keep-last-epochs 2 --batch-size-valid 3 "
    "--optimizer fused_adamw --layer-lr-decay 0.9 --mask-prob-end 0.4 --valid-subset valid,valid1"
)
AT_RISK = [
    COMBINED,
    "--update-freq 1,2,3",
    "--update-freq 2,1 --skip-remainder-batch",
    "--store-ema --ema-decay 0.9 --ema-update-freq 3 --ema-start-update 5",
    "--patience 3 --lr 0",
    "--keep-best-checkpoints 2 --keep-interval-updates 2 --keep-interval-updates-pattern 4",
    "--lr-scheduler reduce_lr_on_plateau --batch-size 200 --lr-patience 1 --lr-threshold 0.5",
]
OTHERS = [
    "--update-freq 3",
    "--skip-remainder-batch",
    "--store-ema --ema-decay 0.9 --ema-fp32 --ema-update-freq 2",
    "--save-interval 2 --no-epoch-checkpoints",
    "--validate-interval 2 --validate-after-updates 5",
    "--keep-last-epochs 2 --batch-size 200",
    "--keep-best-checkpoints 3 --best-checkpoint-metric ppl --maximize-best-checkpoint-metric",
    "--patience 2 --lr 0 --best-checkpoint-metric loss --maximize-best-checkpoint-metric",
    "--max-epoch 2",
    "--max-tokens 500",
    "--max-valid-steps 2 --batch-size-valid 3",
    "--curriculum 2",
    "--fixed-validation-seed 3 --seed 5",
    "--num-workers 2 --data-buffer-size 2",
    "--checkpoint-activations",
    "--required-batch-size-multiple 2",
    "--criterion masked_lm",
    "--task masked_lm --tokens-per-sample 64",
    *(f"--sample-break-mode {mode}" for mode in ("none", "eos", "complete")),
    "--mask-prob-end 0.4 --mask-prob-schedule cosine",
    "--mask-prob-range 0.1,0.4",
    "--mask-prob-range 0.001,0.999 --loss-weight inverse-rate",
    "--mask-multiple-length 2 --mask-stdev 0.5",
    f"{EIGHTY_TEN_TEN} --freq-weighted-replacement",
    "--mask-whole-words",
    "--mask-in-encoder 0.5",
    "--repeat-tokens 2",
    "--effective-rank-interval 3",
    "--freeze-encoder-updates 5",
    "--optimizer fused_adamw --layer-lr-decay 0.9 --weight-decay 0.1",
    f"--store-ema --ema-decay 0.9 --ema-seed-model {CHECKPOINT}",
    f"--restore-file {CHECKPOINT} --reset-optimizer --reset-dataloader --reset-meters",
    f"--finetune-from-model {CHECKPOINT}",
    f"--continue-once {CHECKPOINT}",
    "--tensorboard-logdir logs",
    "--valid-subset valid,valid1 --keep-best-checkpoints 2",
    "--dataset-impl mmap --max-tokens-valid 100 --skip-invalid-size-inputs-valid-test",
    "--stop-min-lr 8e-4 --warmup-updates 0",
    "--stop-time-hours 1 --log-file training.log",
    "--no-last-checkpoints --keep-interval-updates 3",
    "--mask-prob-end 0.4 --mask-prob-updates 9",
    "--tokens-per-sample 12 --shorten-method truncate --shorten-data-split-list train",
    "--autocast bf16",
    "--required-seq-len-multiple 8 --empty-cache-freq 2 --heartbeat-timeout 60",
    "--attention-backend sdpa --dropout 0.2 --attention-dropout 0.2 --decoder-dropout 0.3",
    "--pre-norm --untie-output-weights --relative-buckets 8 --relative-bucketing symmetric",
    "--decoder-layers 2 --decoder-attention-heads 2 --decoder-ffn-embed-dim 24 --decoder-share-positions",
    *(f"--arch mae_lm_{preset}_tiny" for preset in ("3ml_self", "exlm_decoder")),
    "--arch mae_lm_exlm_tiny --pre-norm",
    "--arch mae_lm_roberta_tiny --leave-unmasked-prob 0.5 --random-token-prob 0.5",
    f"--arch mae_lm_mask_later_tiny --repeat-tokens 2 {EIGHTY_TEN_TEN}",
    f"--arch mae_lm_3ml_cross_tiny --mask-in-encoder 0.5 --mask-prob-range 0.15,0.5 {EIGHTY_TEN_TEN}",
    "--lr-scheduler fixed --warmup-updates 3 --lr 1e-3,5e-4 --force-anneal 2 --lr-shrink 0.5",
    "--lr-scheduler inverse_sqrt --warmup-updates 3",
    "--lr-scheduler cosine --warmup-updates 2 --lr-period-updates 4 --t-mult 2 --lr-shrink 0.5",
    "--lr-scheduler polynomial_decay --warmup-updates 3 --total-num-update 20 --power 2",
    "--lr-scheduler tri_stage --warmup-steps 3 --hold-steps 3 --decay-steps 4",
    "--lr-scheduler triangular --max-lr 2e-3 --lr-period-updates 5 --lr-shrink 0.5 --shrink-min",
    """--lr-scheduler manual --update2lr '{"1-5": 0.0005, "6": 0.0002}'""",
    "--lr-scheduler step --lr-deacy-period 5 --lr-decay 0.5 --warmup-updates 3",
]


ELSEWHERE = {
    "--ddp-backend": "needs several processes: test_torchrun.py",
    "--wandb-project": "needs wandb",
}
"""Options that the page calls working and that no case here has, and why."""


def test_every_option_that_the_page_calls_working_is_interrupted():
    working = " ".join(runpy.run_path(str(ROOT / "scripts/write_docs.py"))["WORKING"])
    options = {word for case in (OPTIONS, *AT_RISK, *OTHERS) for word in case.split()}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]+", working)) - options == ELSEWHERE.keys()


@pytest.mark.parametrize(
    "options",
    [*AT_RISK, *(pytest.param(options, marks=pytest.mark.slow) for options in OTHERS)],
    ids=lambda options: options[:60],
)
def test_interruptions_change_nothing(train, options, two_validation_splits):
    if "valid,valid1" in options:  # fairseq refuses a split that it would not use
        train = partial(train, data=two_validation_splits)
    expected = outcome(train("one", options))
    for interrupted in (killed_after, ended_after):
        for updates in UPDATES:
            with interrupted(updates):
                train(interrupted.__name__, options)
        last = train(interrupted.__name__, options) / "checkpoint_last.pt"
        if "--no-last-checkpoints" in options:  # that of a signal stays, and the newest one counts
            last.unlink(missing_ok=True)
        assert_equal(outcome(last.parent), expected)


@pytest.mark.slow
def test_interruptions_change_nothing_with_shards(train, data_bin, tmp_path):
    shutil.copytree(data_bin, tmp_path / "second")
    for suffix in ("bin", "idx"):
        shutil.copy(data_bin / f"valid.{suffix}", tmp_path / "second" / f"train.{suffix}")
    data = f"{data_bin}:{tmp_path / 'second'}"
    expected = outcome(train("one", data=data))
    for updates in UPDATES:
        with killed_after(updates):
            train("many", data=data)
    assert_equal(outcome(train("many", data=data)), expected)


def test_a_position_is_not_applied_to_another_text(train, data_bin, tmp_path):
    """fairseq skipped the beginning of a longer text, and ended in a traceback for a shorter one."""
    start = train("first", "--max-update 2") / "checkpoint_last.pt"
    shutil.copytree(data_bin, tmp_path / "other")
    for suffix in ("bin", "idx"):
        shutil.copy(data_bin / f"valid.{suffix}", tmp_path / "other" / f"train.{suffix}")
    for batch_size in (2, 96):  # more batches than before, and fewer
        with refused("--reset-dataloader"):
            train("second", f"--restore-file {start} --batch-size {batch_size}", data=tmp_path / "other")
    directory = train("second", f"--restore-file {start} --reset-dataloader --max-update 4", data=tmp_path / "other")
    assert outcome(directory)["optimizer_history"][-1]["num_updates"] == 4


def test_a_run_whose_time_is_over_does_not_train_again(train):
    options = "--stop-time-hours 1e-9"
    before = outcome(train("run", options))
    assert before["optimizer_history"][-1]["num_updates"] == 1
    assert outcome(train("run", options))["optimizer_history"] == before["optimizer_history"]


def test_a_run_that_resumes_names_other_options(train, caplog):
    caplog.set_level("INFO")
    train("run", "--max-update 2 --mask-prob 0.3")
    caplog.clear()
    train("run", "--max-update 2 --mask-prob 0.3 --log-interval 5 --num-workers 1 --save-interval 7")
    assert "other options" not in caplog.text
    train("run", "--max-update 4 --mask-prob 0.15 --lr 5e-4")
    [line] = [line for line in caplog.messages if "other options" in line]
    assert line.partition(": ")[2] == "max_update 2 -> 4, lr 0.001 -> 0.0005, mask_prob 0.3 -> 0.15"

"""``mae-lm pretrain``: configuration from a preset, flags and the machine, and a short training."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.commands.pretrain import Options
from mae_lm_fairseq.core.config import PRESETS, SIZES
from mae_lm_fairseq.cost.planned_run import kind_of_gpu
from mae_lm_fairseq.cost.planner import flops_per_token
from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from mae_lm_fairseq.fairseq_patches.started_processes import join_started_processes
from mae_lm_fairseq.text.data_bin import check_data_bin
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.training.batch_size import BatchSize
from mae_lm_fairseq.training.command import as_options, split_global_batch
from mae_lm_fairseq.training.estimate import (
    describe_length,
    duration,
    planned_run,
    warnings_about,
)
from mae_lm_fairseq.training.pretrain import configure, parse_configuration, processes
from mae_lm_fairseq.training.settings import ARCHITECTURES, describe_amount, recipe, settings
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.errors import UserError
from tests.support import words_of
from tests.support.commands import run_verb
from tests.support.processes import kill_with_children, wait_for
from tests.support.refusals import refused

# Most tests take a second of CPU time. Hydra warns several times per configuration.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::UserWarning")]

PRETRAIN = [sys.executable, "-m", "mae_lm_fairseq", "pretrain"]
ELSEWHERE = ["--distributed-init-method tcp://localhost:1 --distributed-rank 0 --distributed-world-size"]


def configured(architecture, *extra):
    return parse_configuration(configure(architecture, "data", "saved", words_of(*extra))[0])


@pytest.mark.parametrize("architecture", [f"{one}_{size}" for one in ("mae_lm", "mae_lm_3ml_self") for size in SIZES])
def test_fairseq_understands_every_recipe(architecture):
    cfg = configured(architecture)
    rows = {row: cell.value for row, cell in recipe(architecture).items()}
    assert cfg.model._name == architecture
    understood = {
        "tokens": cfg.task.tokens_per_sample,
        "sequences": cfg.dataset.batch_size * cfg.optimization.update_freq[0],
        "updates": cfg.optimization.max_update,
        "lr": cfg.optimization.lr[0],
        "warmup": cfg.lr_scheduler.warmup_updates,
        "dropout": cfg.model.dropout,
        "attention_dropout": cfg.model.attention_dropout,
        "weight_decay": cfg.optimizer.weight_decay,
        "betas": tuple(float(beta) for beta in cfg.optimizer.adam_betas.strip("()").split(",")),
        "eps": cfg.optimizer.adam_eps,
        "clip_norm": cfg.optimization.clip_norm,
        "mask_prob": cfg.task.mask_prob,
        "kept": cfg.task.leave_unmasked_prob,
        "random": cfg.task.random_token_prob,
    }
    assert understood == {row: rows[row] for row in understood}
    assert cfg.lr_scheduler.total_num_update == rows["updates"]
    # Or fairseq drops up to seven sequences of an epoch, and splits that have no more.
    assert cfg.dataset.required_batch_size_multiple == 1


@pytest.mark.parametrize("size", SIZES)
def test_presets_of_a_size_differ_in_the_architecture_alone(size):
    of_mae_lm = as_options(settings(f"mae_lm_{size}"))
    for preset in {preset for preset, other in ARCHITECTURES.values() if other == size} - {"mae_lm"}:
        of_preset = as_options(settings(f"{preset}_{size}"))
        differing = {name for name, value in of_mae_lm.items() if of_preset[name] != value}
        assert differing == ({"arch", "mask-prob"} if "3ml" in preset else {"arch"})
        assert of_preset.keys() == of_mae_lm.keys()


def test_flags_win_and_the_number_of_sequences_is_kept():
    cfg = configured("mae_lm_base", "--lr 1e-5 --batch-size 16 --mask-prob 0.4")
    assert (cfg.optimization.lr, cfg.task.mask_prob) == ([1e-5], 0.4)
    assert (cfg.dataset.batch_size, cfg.optimization.update_freq) == (16, [128])
    assert configured("mae_lm_base", *ELSEWHERE, "16").optimization.update_freq == [4]
    many = configured("mae_lm_base", *ELSEWHERE, "256")
    assert (many.dataset.batch_size, many.optimization.update_freq) == (8, [1])
    both = configured("mae_lm_base", "--batch-size 48 --update-freq 1")
    assert (both.dataset.batch_size, both.optimization.update_freq) == (48, [1])


def test_max_tokens_needs_update_freq():
    """The option makes batches smaller than --batch-size, of which --update-freq is computed otherwise."""
    with refused("^--max-tokens 8192: .*--update-freq$"):
        configured("mae_lm_base", "--max-tokens 8192")
    cfg = configured("mae_lm_base", "--max-tokens 8192 --update-freq 4 --max-update 100")
    assert (cfg.dataset.max_tokens, cfg.optimization.update_freq) == (8192, [4])
    assert describe_amount(cfg, processes=2) == (
        "at most 8,192 tokens and 32 sequences per batch x 4 accumulated x 2 processes; 100 updates"
    )


@pytest.mark.parametrize(
    ("number", "batch_size", "smaller", "expected"),
    [(1, 32, True, (32, 64)), (8, 32, True, (32, 8)), (128, 32, True, (16, 1)), (8, 64, False, (64, 4))],
)
def test_sequences_are_divided_among_processes(number, batch_size, smaller, expected):
    assert split_global_batch(2048, number, batch_size, smaller) == expected


def test_unequal_divisions_are_refused():
    with refused(r"2,048 .*24 processes"):
        split_global_batch(2048, 24, 32, smaller=True)


class TestOnGPUs:
    """Configuration of a process on a simulated node with GPUs; nothing is trained."""

    @pytest.fixture
    def node(self, monkeypatch):
        """Return ``pretend(gpus, NAME=value...)``, which simulates the GPUs and the environment of a node.

        The recipe's batches fit into their memory.
        """
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        of_recipe = lambda cfg, *_: BatchSize(cfg.dataset.batch_size)  # noqa: E731
        monkeypatch.setattr("mae_lm_fairseq.training.pretrain.batch_size_on_gpus", of_recipe)

        def pretend(gpus, **environment):
            monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
            for name, value in environment.items():
                monkeypatch.setenv(name, str(value))

        return pretend

    def test_precision(self, node):
        node(1)
        assert configured("mae_lm_base").common.fp16
        for other in (["--bf16"], ["--autocast bf16"], ["--cpu"]):
            assert not configured("mae_lm_base", *other).common.fp16
        assert configured("mae_lm_base", "--bf16").common.bf16
        assert configured("mae_lm_base", "--memory-efficient-fp16").common.memory_efficient_fp16

    def test_fused_adamw_replaces_adam_without_apex(self, node, monkeypatch):
        node(1)
        cfg = configured("mae_lm_base")
        assert (cfg.optimizer._name, cfg.optimizer.adam_eps) == ("fused_adamw", 1e-6)
        assert configured("mae_lm_base", "--bf16 --lr 1e-4").optimizer._name == "fused_adamw"
        for options in (["--optimizer adam"], ["--optimizer=adam"], ["--use-old-adam"], ["--memory-efficient-fp16"]):
            assert configured("mae_lm_base", *options).optimizer._name == "adam"
        assert configured("mae_lm_base", "--cpu").optimizer._name == "adam"
        monkeypatch.setattr("fairseq.optim.fused_adam.get_fused_adam_class", lambda: object)
        assert configured("mae_lm_base").optimizer._name == "adam"

    def test_one_node(self, node):
        node(8)
        cfg = configured("mae_lm_base", "--distributed-world-size 8")  # fairseq's own value if it sees 8
        assert processes(cfg) == (8, 0)
        assert cfg.optimization.update_freq == [8]

    @pytest.mark.parametrize("gpus", [1, 8])
    def test_torchrun(self, node, gpus):
        node(gpus, MASTER_ADDR="node0", MASTER_PORT=29500, WORLD_SIZE=4 * gpus, RANK=0)
        cfg = configured("mae_lm_base")
        assert processes(cfg) == (4 * gpus, 0)
        assert cfg.optimization.update_freq == [64 // (4 * gpus)]

    @pytest.mark.parametrize(("tasks_per_node", "gpus"), [(1, 8), (8, 8), (1, 1)])
    def test_slurm(self, node, tmp_path, monkeypatch, tasks_per_node, gpus):
        scontrol = tmp_path / "scontrol"
        scontrol.write_text("#!/bin/sh\necho node0; echo node1\n")
        scontrol.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        tasks = 2 * tasks_per_node
        job = {"SLURM_JOB_ID": 123456, "SLURM_STEP_NODELIST": "node[0-1]", "SLURM_NNODES": 2, "SLURM_NODEID": 0}
        job |= {"SLURM_STEP_NUM_TASKS": tasks, "SLURM_NTASKS": tasks, "SLURM_PROCID": 0, "SLURM_LOCALID": 0}
        node(gpus, **job)
        cfg = configured("mae_lm_base")
        assert processes(cfg) == (2 * gpus, 0)
        assert cfg.optimization.update_freq == [64 // (2 * gpus)]
        join_started_processes(cfg)
        assert 10_000 <= cfg.distributed_training.distributed_port < 60_000


def test_warnings():
    def warnings(*options):
        return [*warnings_about(configured("mae_lm_base", "--cpu", *options))]

    assert warnings() == warnings("--max-update 0") == warnings("--pre-norm --relative-buckets 0") == []
    [warning] = warnings("--pre-norm")
    assert "--relative-buckets 0" in warning
    [warning] = warnings("--max-update 500")
    assert warning.endswith("add --total-num-update 500")


STARTS_REFUSED = {
    "--finetune-from-model missing.pt": "--finetune-from-model missing.pt: no such file; check the path",
    "--finetune-from-model missing": "--finetune-from-model missing: no such file; check the path",
    "--mask-in-encoder 2": "--mask-in-encoder 2.0 must be at least 0 and at most 1",
    "--encoder-attention-heads 3": "--encoder-embed-dim 128 is not divisible by --encoder-attention-heads 3",
    "--max-positions 32": "--tokens-per-sample 64 is more than the 32 positions of the model",
    "--reset-mask-states": "--reset-mask-states has no effect with --mask-in-encoder 0",
    "--classifier-dropout 0.1": "--classifier-dropout 0.1 has no effect in pretraining",
}


@pytest.mark.parametrize("words", STARTS_REFUSED)
def test_a_dry_run_refuses_what_a_training_refuses_at_its_start(words, data_bin, capsys):
    with pytest.raises(UserError) as caught:
        run_verb("pretrain", "mae_lm_tiny", data_bin, "saved", "--cpu", "--dry-run", *words.split())
    assert STARTS_REFUSED[words] in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("preset", PRESETS)
def test_a_dry_run_accepts_every_preset(preset, data_bin, tmp_path, capsys):
    """Also without data. Nothing is written."""
    save_dir = tmp_path / "saved"
    for data in (str(data_bin), "none"):
        run_verb("pretrain", f"{preset}_tiny", data, save_dir, "--cpu", "--dry-run")
        *_, command = capsys.readouterr().out.splitlines()
        assert command.startswith(f"fairseq-train {data} ")
    assert not save_dir.exists()


def test_trains_on_a_cpu(mae_lm, data_bin, tmp_path):
    few = ["--cpu --max-update 3 --num-workers 0 --disable-validation --batch-size 16"]
    done = mae_lm("pretrain", "mae_lm_tiny", data_bin, tmp_path / "saved", *few)
    assert done.returncode == 0, done.stderr
    summary, length, at_risk, command, *_ = done.stdout.splitlines()
    assert at_risk.startswith("a checkpoint every 200 updates: a kill costs at most about ")
    assert "32 sequences (16 per batch x 2 accumulated x 1 process) x 64 tokens = 2,048 tokens per update" in summary
    assert summary.endswith("3 updates = 6,144 tokens")
    _, tokens = check_data_bin(data_bin / "train")
    assert length.startswith(f"at most {6144 / tokens:.3g} epochs of this text ({tokens:,} tokens); about ")
    assert "on this CPU, at 50% of its" in length
    assert "warning: --max-update 3 ends the training before the learning rate has decayed" in done.stderr
    assert command.startswith(f"fairseq-train {data_bin} ")
    _, _, further = done.stdout.partition(command)
    assert [text.count("'no_progress_bar'") for text in (done.stdout, further, done.stderr)] == [1, 1, 0]
    trained = torch.load(tmp_path / "saved/checkpoint_last.pt", weights_only=False)  # written by this test
    assert trained["optimizer_history"][-1]["num_updates"] == 3
    assert trained["cfg"]["model"]["dropout"] == 0


def test_a_recipe_is_an_option_among_the_flags(data_bin):
    words = words_of("mae_lm_base", data_bin, "saved", "--cpu --recipe academic --lr 1e-4 --seed 3")
    options = parse(Options, words, None, "mae-lm pretrain")
    assert (options.recipe, options.flags) == ("academic", ("--cpu", "--lr", "1e-4", "--seed", "3"))
    cfg = parse_configuration(configure("mae_lm_base", "data", "saved", options.flags, options.recipe)[0])
    assert (cfg.optimization.max_update, cfg.task.tokens_per_sample, cfg.optimization.lr) == (23_000, 128, [1e-4])
    assert cfg.dataset.batch_size * cfg.optimization.update_freq[0] == 4096
    assert cfg.checkpoint.save_interval_updates == 10_000


def test_the_estimate_is_the_planners(data_bin, monkeypatch):
    """One teraFLOP/s of matrix products, of which half is assumed to be reached."""
    monkeypatch.setattr("mae_lm_fairseq.training.estimate.matrix_rate", lambda: 1e12)
    cfg = configured("mae_lm_tiny", "--cpu --max-update 1000000")
    run = planned_run(cfg, len(read_symbols(data_bin / "dict.txt")), 1_000_000, kind="h100", precision="fp32")
    hours = run.tokens * flops_per_token(run).total / 0.5e12 / 3600
    assert run.tokens == 1_000_000 * 2048
    length, *_ = describe_length(cfg, 1, [data_bin])
    assert f"about {duration(hours)} on this CPU" in length


def test_the_risk_of_a_kill_is_the_time_between_checkpoints(data_bin, monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.training.estimate.matrix_rate", lambda: 1e12)
    cfg = configured("mae_lm_tiny", "--cpu --max-update 1000000 --save-interval-updates 5000")
    run = planned_run(cfg, len(read_symbols(data_bin / "dict.txt")), 5000, kind="h100", precision="fp32")
    at_risk = duration(run.tokens * flops_per_token(run).total / 0.5e12 / 3600)
    _, risk = describe_length(cfg, 1, [data_bin])
    assert risk == f"a checkpoint every 5,000 updates: a kill costs at most about {at_risk} of training"
    without_interval = configured("mae_lm_tiny", "--save-interval-updates 0")
    assert len(list(describe_length(without_interval, 1, [data_bin]))) == 1


def test_no_estimate_without_a_number_of_updates(data_bin):
    cfg = configured("mae_lm_tiny", "--cpu --max-update 0 --max-epoch 2")
    [sentence] = describe_length(cfg, 1, [data_bin])
    assert sentence == "no estimate of the duration: --max-update does not limit it"
    assert describe_amount(cfg, 1).endswith("2,048 tokens per update at most; any number of updates")


@pytest.mark.parametrize(("options", "batch"), [(["--max-tokens 128"], 2), ([], 32), (["--max-tokens 9999"], 32)])
def test_the_planner_takes_the_tighter_limit_of_a_batch(options, batch):
    cfg = configured("mae_lm_tiny", "--cpu --tokens-per-sample 64 --batch-size 32 --update-freq 1", *options)
    assert planned_run(cfg, 200, 100, kind="h100", precision="fp32").batch_size == batch


def test_the_planner_takes_the_mean_of_moving_masking_rates():
    cfg = configured("mae_lm_tiny", "--cpu --mask-prob 0.3")
    for changes, mean in (
        ({"mask_prob_end": 0.1, "mask_prob_updates": 100}, 0.2),
        ({"mask_prob_schedule": "cosine"}, 0.2),
        ({"mask_prob_updates": 50}, (0.2 + 0.1) / 2),
        ({"mask_prob_end": None, "mask_prob_schedule": "linear", "mask_prob_updates": None}, 0.3),
        ({"mask_prob_range": "0.2,0.6"}, 0.4),
    ):
        cfg.task.update(changes)
        assert planned_run(cfg, 200, 100, kind="h100", precision="fp32").mask_prob == pytest.approx(mean)


def test_the_planner_knows_what_the_encoder_sees():
    cfg = configured("mae_lm_tiny", "--cpu --mask-prob 0.5 --tokens-per-sample 100 --pre-norm")
    for changes, visible in (
        ({}, 50),
        ({"mask_in_encoder": 0.5}, 75),
        ({"leave_unmasked_prob": 0.1, "random_token_prob": 0.1}, 80),  # 10 kept and random, 20 of 40 [MASK]
        ({"leave_unmasked_prob": 0.0, "random_token_prob": 1.0}, 100),
    ):
        cfg.task.update(changes)
        planned = planned_run(cfg, 200, 100, kind="h100", precision="fp32")
        assert planned.positions == (100, visible, 50, None)
        assert planned.config.pre_norm


@pytest.mark.parametrize(
    ("name", "memory", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", 42e9, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 85e9, "a100-80"),
        ("NVIDIA H100 80GB HBM3", 85e9, "h100"),
        ("NVIDIA H100 PCIe", 85e9, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10e9, None),
        ("NVIDIA A10G", 24e9, None),  # half of an A10
    ],
)
def test_gpus_are_recognised(name, memory, kind):
    assert kind_of_gpu(SimpleNamespace(name=name, total_memory=memory)) == kind


@pytest.fixture
def start(data_bin, tmp_path):
    """Return a function that starts ``mae-lm pretrain`` in a group of its own; it does not survive the test."""
    command = words_of(*PRETRAIN, "mae_lm_tiny", data_bin, tmp_path / "saved", "--cpu --num-workers 2")
    options = {
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        "start_new_session": True,
        # A shell's background jobs ignore SIGINT.
        "preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    }
    started = []

    def start(log: Path) -> subprocess.Popen:
        with open(log, "w") as output:
            started.append(subprocess.Popen(command, stdout=output, stderr=output, **options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            kill_with_children(process)


def test_ctrl_c_saves_the_update_in_progress(start, tmp_path):
    """A terminal sends the signal to all processes of the command, including data workers."""
    log = tmp_path / "log"
    process = start(log)
    wait_for(lambda: "begin training epoch" in log.read_text() or process.poll() is not None, 240)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=240) == 128 + signal.SIGINT
    assert "Traceback" not in log.read_text()
    update = saved_updates(tmp_path / "saved/checkpoint_last.pt")
    assert log.read_text().splitlines()[-1] == f"SIGINT: saved update {update}; the same command resumes"


@pytest.mark.parametrize(("moment", "number"), [("", signal.SIGTERM), ("fairseq-train", signal.SIGUSR1)])
def test_a_signal_while_training_starts(start, tmp_path, moment, number):
    """Before the configuration is printed, and in the imports of the program that trains."""
    log = tmp_path / "log"
    process = start(log)
    wait_for(lambda: handles(process.pid, number) and moment in log.read_text(), 240)
    process.send_signal(number)
    assert process.wait(timeout=240) == 128 + number
    assert number.name in log.read_text().splitlines()[-1]
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "saved/checkpoint_last.pt").exists()


def handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler of a signal, or holds the signal back until it has one."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return any(int(fields[name], 16) >> (number - 1) & 1 for name in ("SigCgt", "SigBlk"))

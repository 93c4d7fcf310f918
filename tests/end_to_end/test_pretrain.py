"""Pretraining through fairseq-train."""

import functools
import json
import re
import shutil

import numpy as np
import pytest
import torch

from mae_lm_fairseq.training.training_log import loss_curve
from tests.support.comparisons import assert_close, assert_equal
from tests.support.training import RECIPE

ENCODER_SHARE = {
    "mae_lm_tiny": 85,
    "mae_lm_roberta_tiny": 100,
    "mae_lm_3ml_self_tiny": 85,
    "mae_lm_3ml_cross_tiny": 85,
    "mae_lm_mask_later_tiny": 92.5,
    "mae_lm_exlm_tiny": 145,
    "mae_lm_exlm_decoder_tiny": 85,
}
"""Percentage of tokens that an encoder layer sees, averaged over the two layers of each preset, with 15 % masked.

ExLM's has four states for each masked one."""

FALLING_RATE = ["--mask-prob 0.4 --mask-prob-end 0.1 --mask-prob-updates 18"]


@pytest.fixture(scope="module")
def train(fairseq_train, data_bin):
    """Return ``train(save_dir, *options)``, which runs fairseq-train on the test data and checks its exit code."""

    def run(save_dir, *options, data=data_bin, arch="mae_lm_tiny", fails=False, threads=1):
        command = [data, *RECIPE, "--user-dir mae_lm_fairseq --arch", arch]
        done = fairseq_train(*command, "--save-dir", save_dir, "--num-workers 0", *options, threads=threads)
        assert (done.returncode != 0) is fails, done.stderr
        return done

    return run


def checkpoint(directory, name="checkpoint_last.pt"):
    # weights_only is not needed for a file that this test has written.
    return torch.load(directory / name, weights_only=False)


def assert_same_training_state(a, b):
    assert_equal(a["model"], b["model"])
    moments, expected = (state["last_optimizer_state"]["state"] for state in (a, b))
    assert moments
    assert_equal(moments, expected)


@pytest.mark.parametrize(
    ("updates", "threads", "options"),
    [
        pytest.param(10, 2, [], marks=pytest.mark.slow),
        (20, 1, ["--batch-size 32 --update-freq 2 --num-workers 2 --mask-whole-words", *FALLING_RATE]),
    ],
    ids=["within an epoch, two threads", "across epochs, update-freq, two workers, whole words, falling rate"],
)
def test_stopping_and_resuming_ends_where_one_run_ends(train, tmp_path, updates, threads, options):
    """Dropout is on. test_resuming_with_options.py interrupts more runs, and scripts/fault_injection.py at any update.

    Sums of two threads are rounded in another order than those of one, but the same every time.
    """
    train = functools.partial(train, threads=threads)
    options = [*options, "--total-num-update 80 --no-epoch-checkpoints"]
    train(tmp_path / "once", *options, "--max-update", updates)
    train(tmp_path / "twice", *options, "--max-update", updates // 2)
    half = checkpoint(tmp_path / "twice")
    assert half["optimizer_history"][-1]["num_updates"] == updates // 2
    resumed = train(tmp_path / "twice", *options, "--max-update", updates)
    assert "Loaded checkpoint" in resumed.stderr + resumed.stdout
    if FALLING_RATE[0] in options:  # of updates 11 to 20; per update of 2,000 tokens, whole words cover about the rate
        rates = [
            float(rate) for rate in re.findall(r"train_inner .*mask_prob=([\d.]+)", resumed.stdout + resumed.stderr)
        ]
        np.testing.assert_allclose(rates, [0.4 - 0.3 * min(done / 18, 1) for done in range(10, 20)], atol=0.02)
    once, twice = checkpoint(tmp_path / "once"), checkpoint(tmp_path / "twice")
    assert once["optimizer_history"][-1]["num_updates"] == updates
    epochs = [x["extra_state"]["train_iterator"]["epoch"] for x in (half, once)]
    assert (epochs[1] > epochs[0]) is (updates == 20)
    assert_same_training_state(once, twice)
    assert any(not torch.equal(half["model"][name], once["model"][name]) for name in half["model"])


def test_training_does_not_depend_on_data_workers(train, tmp_path):
    """Bit for bit, with dropout on, across the end of an epoch: training is deterministic for any number of workers."""
    for workers in (0, 2):
        train(tmp_path / str(workers), "--max-update 40 --batch-size 16 --num-workers", workers)
    without_workers, with_workers = (checkpoint(tmp_path / workers) for workers in "02")
    assert without_workers["extra_state"]["train_iterator"]["epoch"] > 1
    assert_same_training_state(without_workers, with_workers)


@pytest.mark.parametrize(
    "arch",
    [
        *("mae_lm_tiny", "mae_lm_roberta_tiny", "mae_lm_mask_later_tiny"),
        *(pytest.param(f"mae_lm_{kind}_tiny", marks=pytest.mark.slow) for kind in ("exlm", "exlm_decoder")),
        # They differ only in the decoder, which tests/core compares with plain implementations.
        *(pytest.param(f"mae_lm_3ml_{kind}_tiny", marks=pytest.mark.slow) for kind in ("self", "cross")),
    ],
)
def test_learns_validates_and_keeps_the_best(train, tmp_path, arch):
    log = tmp_path / "log"
    options = ["--max-update 120 --total-num-update 120 --lr 0.005 --validate-interval-updates 40"]
    options += ["--save-interval-updates 40 --no-epoch-checkpoints --log-format json --log-file", log]
    options += ["--tensorboard-logdir", tmp_path / "board", "--best-checkpoint-metric accuracy"]
    train(tmp_path / "saved", *options, "--maximize-best-checkpoint-metric", arch=arch)
    lines = [json.loads(line[line.index("{") :]) for line in log.read_text().splitlines() if '"valid_loss"' in line]
    losses = [float(line["valid_loss"]) for line in lines]
    assert len(losses) >= 3
    assert losses[-1] < losses[0] - 0.2  # in bits
    # In small batches the masked fraction is not exactly 15 %.
    assert float(lines[-1]["valid_encoder_share"]) == pytest.approx(ENCODER_SHARE[arch], abs=2)
    best = checkpoint(tmp_path / "saved", "checkpoint_best.pt")
    accuracies = [float(line["valid_accuracy"]) for line in lines]
    assert float(best["extra_state"]["best"]) == pytest.approx(max(accuracies), abs=0.01)
    assert len(list((tmp_path / "board").glob("valid/events*"))) == 1
    assert not list((tmp_path / "saved").glob(".*.partial"))


def test_a_training_ends_with_what_it_has_reached_and_without_warnings(train, tmp_path, data_bin):
    done = train(tmp_path / "saved", "--max-update 2")
    path = tmp_path / "saved/checkpoint_best.pt"
    assert done.stdout.splitlines()[-2:] == [
        f"training has ended; {path} is from update 2",
        f"next: mae-lm bundle {path} --data-bin {data_bin} --out BUNDLE",
    ]
    assert "Warning" not in done.stderr


def test_bfloat16_on_a_cpu_learns_what_float32_learns(train, tmp_path):
    curves = []
    for precision in ("none", "bf16"):
        options = ["--max-update 120 --total-num-update 120 --lr 0.005 --log-interval 12"]
        options += ["--log-format json --encoder-embed-dim 64 --autocast", precision]
        log = tmp_path / f"{precision}.log"
        done = train(tmp_path / precision, *options, "--no-save")
        log.write_text(done.stdout + done.stderr)
        curves.append(loss_curve(log, "train_inner")[1])
    assert len(curves[0]) == len(curves[1]) == 10
    assert curves[0][-1] < curves[0][0] - 0.3
    assert not np.array_equal(*curves)
    # Same batches, masks and dropout; matrix products keep 8 bits.
    np.testing.assert_allclose(curves[1], curves[0], rtol=0.01)


def test_fairseqs_own_criterion_gives_the_same_training(train, tmp_path):
    for criterion in ("masked_autoencoder_lm", "masked_lm"):
        train(tmp_path / criterion, "--max-update 5 --criterion", criterion)
    ours, theirs = (checkpoint(tmp_path / name) for name in ("masked_autoencoder_lm", "masked_lm"))
    for name in ours["model"]:
        # Adam divides by the root of the squared gradient, so rounding of 1e-7 in a small gradient becomes 1e-5.
        assert_close(ours["model"][name], theirs["model"][name], 2e-5)


def test_a_checkpoint_of_other_data_or_another_model_is_refused_and_kept(train, data_bin, tmp_path):
    saved = tmp_path / "saved"
    train(saved, "--max-update 1")
    before = (saved / "checkpoint_last.pt").read_bytes()
    data = shutil.copytree(data_bin, tmp_path / "data")
    words = (data / "dict.txt").read_text().splitlines()
    (data / "dict.txt").write_text("\n".join([*words[1:], words[0]]) + "\n")
    assert_one_line(train(saved, "--max-update 2", data=data, fails=True), "another dictionary")
    other = train(saved, "--max-update 2 --optimizer sgd", fails=True)
    assert "--reset-optimizer" in other.stderr  # fairseq's own error
    assert (saved / "checkpoint_last.pt").read_bytes() == before


def test_a_run_of_adam_resumes_with_fused_adamw(train, tmp_path):
    """As when it moves to a GPU; the weights are the same but for the rounding of ten updates of 1e-3."""
    train(tmp_path / "one", "--max-update 20")
    train(tmp_path / "two", "--max-update 10")
    done = train(tmp_path / "two", "--max-update 20 --optimizer fused_adamw")
    assert "@ 10 updates" in done.stdout + done.stderr
    of_adam, of_both = (checkpoint(tmp_path / name) for name in ("one", "two"))
    assert of_both["optimizer_history"][-1]["optimizer_name"] == "FusedAdamW"
    for name in of_adam["model"]:
        assert_close(of_both["model"][name], of_adam["model"][name], 1e-5)
    back = train(tmp_path / "two", "--max-update 30", fails=True)
    assert_one_line(back, "checkpoint_last.pt was trained with --optimizer fused_adamw; add this option")


def assert_one_line(done, named):
    lines = done.stderr.strip().splitlines()
    assert named in lines[-1], done.stderr
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in done.stderr + done.stdout

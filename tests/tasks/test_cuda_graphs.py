"""``--cuda-graphs`` on a CPU, where it is a rehearsal: dummies and buffers, but no capture."""

import logging

import pytest
import torch
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.trainer import Trainer

from mae_lm_fairseq.core.graphs import GraphedStep
from mae_lm_fairseq.core.packing import restore
from mae_lm_fairseq.tasks.graphs import problem_of_graphs
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support.finetuning import WITHOUT_EPOCHS, train_here
from tests.support.training import RECIPE, batches, set_up

WITHOUT_DROPOUT = ["--dropout 0 --attention-dropout 0"]
SAVING = [*WITHOUT_EPOCHS, "--disable-validation"]


@pytest.fixture
def pretrain(data_bin, monkeypatch):
    """Return ``pretrain(save_dir, *options)``: train in this process, and return what each update logs."""
    logged = []
    buckets = []
    step = Trainer.train_step
    graphed_step = GraphedStep.__call__

    def counted(self, bucket, *args):
        buckets.append(bucket)
        return graphed_step(self, bucket, *args)

    monkeypatch.setattr(GraphedStep, "__call__", counted)

    def recorded(*args, **kwargs):
        values = step(*args, **kwargs)
        logged.append(values)
        return values

    monkeypatch.setattr(Trainer, "train_step", recorded)

    def run(save_dir, *options, arch="mae_lm_tiny"):
        logged.clear()
        buckets.clear()
        train_here(data_bin, *RECIPE, "--arch", arch, "--save-dir", save_dir, *SAVING, *options)
        assert len(set(buckets)) > 1 if "--cuda-graphs" in options else not buckets
        return list(logged)

    return run


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("mae_lm_tiny", ["--update-freq 2"]),
        ("mae_lm_roberta_tiny", ["--leave-unmasked-prob 0.1 --random-token-prob 0.1"]),
        ("mae_lm_3ml_cross_tiny", ["--optimizer fused_adamw --store-ema --ema-decay 0.5"]),
    ],
)
def test_updates_log_what_they_log_without(pretrain, tmp_path, arch, options):
    """Loss, accuracy, norm, share of the encoder, numbers of tokens; also at the short batches that end an epoch."""
    options = [*options, *WITHOUT_DROPOUT, "--batch-size 24 --max-update 20"]
    ragged = pretrain(tmp_path / "ragged", *options, arch=arch)
    fixed = pretrain(tmp_path / "fixed", *options, "--cuda-graphs", arch=arch)
    assert len(ragged) == len(fixed) == 20
    for ours, reference in zip(fixed, ragged, strict=True):
        assert ours.keys() == reference.keys()
        for name in ("loss", "ppl", "accuracy", "encoder_share", "gnorm", "sample_size", "ntokens"):
            if name in reference:
                # Sums in another order, and what 20 updates make of the difference.
                assert ours[name] == pytest.approx(reference[name], rel=1e-5), name


@pytest.mark.parametrize("optimizer_type", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_gradients_have_the_loss_scale_of_fp16(data_bin, optimizer_type):
    norms = []
    for options in ([], ["--cuda-graphs"]):
        cfg, task, model, criterion = set_up(
            data_bin, *WITHOUT_DROPOUT, "--fp16-init-scale 64 --fp16-no-flatten-grads", *options
        )
        model.half()
        optimizer = optimizer_type.build_optimizer(cfg, list(model.parameters()))
        optimizer.zero_grad()
        for batch in batches(task)[:2]:
            task.train_step(batch, model, criterion, optimizer, update_num=0)
        norms.append(float(optimizer.clip_grad_norm(0.0)))
    # Sums in half precision, in another order.
    assert norms[1] == pytest.approx(norms[0], rel=4e-3) != 0


@pytest.mark.integration
def test_a_resumed_run_is_bit_equal(pretrain, tmp_path):
    options = ["--cuda-graphs", "--batch-size 24"]
    pretrain(tmp_path / "once", *options, "--max-update 20")
    pretrain(tmp_path / "twice", *options, "--max-update 12")
    pretrain(tmp_path / "twice", *options, "--max-update 20")
    assert_same_training_state(checkpoint(tmp_path / "once"), checkpoint(tmp_path / "twice"))


def test_batches_count_without_their_dummies(data_bin):
    """A batch with dummies logs the numbers of the same one without, in training and where gradients are ignored."""
    outputs = []
    for options in ([], ["--cuda-graphs"]):
        _, task, model, criterion = set_up(data_bin, *WITHOUT_DROPOUT, *options)
        outputs.append([criterion(model.train(), batch) for batch in batches(task)])
    assert len(outputs[0]) == len(outputs[1])
    for (loss, size, log), (fixed_loss, fixed_size, fixed_log) in zip(*outputs, strict=True):
        torch.testing.assert_close(fixed_loss, loss, rtol=1e-5, atol=0)
        assert fixed_size == size
        assert {**fixed_log, "loss": None} == {**log, "loss": None}


def test_only_training_batches_have_dummies(data_bin):
    task = set_up(data_bin, "--cuda-graphs").task
    for split in ("train", "valid"):
        task.load_dataset(split)
    widths = {restore(batch["layout"]).visible.width for batch in batches(task)}
    assert widths == {task.cfg.tokens_per_sample}
    assert not any("bucket" in batch for batch in batches(task, "valid"))


def test_a_batch_of_another_size_trains_without_a_graph(data_bin, caplog):
    """More sequences than the batches of a training have, as no bucket is that large."""
    task = set_up(data_bin, "--cuda-graphs").task
    [batch, *_] = batches(task, batch_size=16)
    with caplog.at_level(logging.INFO):
        assert not task.graphs.covers(batch)
        assert not task.graphs.covers(batch)
    assert [record.args for record in caplog.records if "cuda-graphs" in record.message] == [(16,)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--mask-prob-range 0.1,0.5"], "rates"),
        (["--mask-stdev 0.1"], "rates"),
        (["--mask-in-encoder 0.5"], "--mask-in-encoder 0.5"),
        (["--freeze-encoder-updates 3"], "--freeze-encoder-updates 3"),
        (["--arch mae_lm_exlm_tiny"], "--mask-states"),
        (["--checkpoint-activations"], "--checkpoint-activations"),
        (["--amp"], "--amp"),
        (["--criterion masked_lm"], "--criterion masked_lm"),
        (["--distributed-world-size 2"], "pytorch_ddp"),
    ],
)
def test_what_has_no_graphs_says_so(data_bin, caplog, options, named):
    with caplog.at_level(logging.WARNING):
        task = set_up(data_bin, "--cuda-graphs", *options).task
    assert task.graphs is None
    assert named in caplog.text


def test_batches_of_max_tokens_have_no_graphs(data_bin):
    _, task, model, _ = set_up(data_bin)
    task.cfg.batch_size = None
    assert "--max-tokens" in problem_of_graphs(task.cfg, model.autoencoder)


def test_legacy_ddp_has_graphs(data_bin):
    task = set_up(data_bin, "--cuda-graphs --distributed-world-size 2 --ddp-backend legacy_ddp").task
    assert task.graphs is not None

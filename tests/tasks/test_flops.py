"""FLOPs of batches, and the rates that training logs from them."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import meters, metrics
from fairseq.trainer import Trainer

from mae_lm_fairseq.cost.flops import TRAINING, Positions, forward_flops
from mae_lm_fairseq.models.architectures import Autocast
from mae_lm_fairseq.tasks.monitoring import peak_flops
from tests.support.training import batches, set_up

SETTINGS = [
    "mae_lm_tiny",
    "mae_lm_roberta_tiny --leave-unmasked-prob 0.1 --random-token-prob 0.1",
    "mae_lm_3ml_cross_tiny --decoder-layers 2",
    "mae_lm_mask_later_tiny",
    "mae_lm_tiny --mask-in-encoder 0.5",
    "mae_lm_exlm_tiny",
    "mae_lm_exlm_decoder_tiny --mask-in-encoder 0.5",
]


def flops_of(batch, task, model):
    """Return the FLOPs of a training step, counted row by row from the tokens."""
    pad, config = task.dictionary.pad(), model.autoencoder.config
    sequences = []
    early = batch["net_input"].get("early_masks", torch.zeros_like(batch["target"]))
    for tokens, target, seen in zip(batch["net_input"]["src_tokens"], batch["target"], early, strict=True):
        sequence, masked = int(tokens.ne(pad).sum()), int((tokens.eq(task.mask_idx) & ~seen.bool()).sum())
        sequences.append(Positions(sequence, sequence - masked, int(target.ne(pad).sum())))
    return TRAINING * forward_flops(config, len(task.dictionary), sequences).total


@pytest.mark.parametrize("setting", SETTINGS)
def test_batches_have_their_flops(setting, data_bin):
    arch, *options = setting.split()
    _, task, model, criterion = set_up(data_bin, *options, arch=arch)
    for batch in batches(task, workers=1)[::5]:
        assert batch["flops"] == flops_of(batch, task, model) > 0
    assert criterion(model.train(), batch)[2]["flops"] == batch["flops"]
    assert "flops" not in criterion(model.eval(), batch)[2]


def test_logged_rates(data_bin, monkeypatch):
    """Several batches per update; the meter starts with the end of the first update, as that of fairseq's ``wps``."""
    cfg, task, model, criterion = set_up(data_bin, "--update-freq", 2)
    trainer = Trainer(cfg, task, model, criterion)
    trainer.begin_epoch(1)
    assert task.peak_flops is None  # of a CPU
    monkeypatch.setattr(task, "peak_flops", 2e12)
    ticks = itertools.count()  # fairseq divides by the time since the meter's start
    clock = SimpleNamespace(perf_counter=lambda: 2e-4 * trainer.get_num_updates() + 1e-12 * next(ticks))
    monkeypatch.setattr(meters, "time", clock)
    metrics.reset()
    updates = batches(task)[:10]
    with metrics.aggregate("updates") as logged:
        for first in range(0, 10, 2):
            trainer.train_step(updates[first : first + 2])
    values = logged.get_smoothed_values()
    expected = sum(flops_of(batch, task, model) for batch in updates[2:]) / 1e12 / (4 * 2e-4)
    assert values["tflops"] == pytest.approx(expected, abs=5.1e-5)  # logged with four digits
    assert values["mfu"] == pytest.approx(expected / 2, abs=5.1e-5)
    assert values["tflops"] > 0.01  # so that a wrong factor is not within the tolerance
    assert values["wps"] == pytest.approx(sum(batch["ntokens"] for batch in updates[2:]) / (4 * 2e-4), rel=1e-6)
    with metrics.aggregate("validation", new_root=True) as logged:
        trainer.valid_step(updates[0])
    assert logged.get_smoothed_values().keys().isdisjoint({"tflops", "mfu"})


@pytest.mark.parametrize(
    ("name", "dtype", "autocast", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", torch.float16, Autocast.none, 989.5e12),
        ("NVIDIA H100 80GB HBM3", torch.float32, Autocast.bf16, 989.5e12),
        ("NVIDIA H100 80GB HBM3", torch.float32, Autocast.none, None),
        ("Another GPU", torch.bfloat16, Autocast.none, None),
    ],
)
def test_peak_of_a_gpu(name, dtype, autocast, expected, monkeypatch):
    properties = SimpleNamespace(name=name, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    weight = SimpleNamespace(dtype=dtype, device=torch.device("cuda"), is_cuda=True)
    assert peak_flops(SimpleNamespace(parameters=lambda: iter([weight]), autocast=autocast)) == expected

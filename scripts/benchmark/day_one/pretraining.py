"""Stage 2: real pretraining by ``mae-lm pretrain`` in every precision, and where the time of a step goes."""

from functools import partial
from pathlib import Path

import torch

from benchmark.day_one.corpus import write_data_bin
from benchmark.day_one.measures import Model, data_sheet_rate, matrix_rate
from benchmark.day_one.scale import FP32, Scale
from benchmark.day_one.training import flags, fp32_arguments, train
from benchmark.operators import by_kind
from benchmark.workers.training import operator_seconds

PROFILED_STEPS = 3


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements."""
    data = write_data_bin(work / "data-bin", scale.vocabulary, scale.tokens)
    listed = [
        (f"pretraining, {name}", partial(_pretrain, scale, data, work / str(number), options))
        for number, (name, options) in enumerate(scale.precisions.items())
    ]
    profiles = {"fp32": "none", "autocast bf16": "bf16"}
    return listed + [
        (f"profile, {name}", partial(_profile, scale, data, work, autocast))
        for name, autocast in profiles.items()
        if name in scale.precisions
    ]


def _options(scale: Scale) -> tuple[str, ...]:
    """Return the options of the stage's trainings: a short schedule with batches of the given size."""
    shape = {"batch-size": scale.rows, "update-freq": scale.accumulated, "tokens-per-sample": scale.length}
    shape |= {"max-update": scale.updates, "total-num-update": scale.updates, "warmup-updates": 3}
    return (*flags(shape), "--no-save")


def _pretrain(scale: Scale, data: Path, work: Path, options: tuple[str, ...]) -> dict:
    """Train, and return speed, MFU, memory and losses; the first third of the updates is not timed."""
    training = train(scale, scale.preset, data, work, (*_options(scale), *options))
    speed = training.tokens_per_second(scale.updates // 3)
    arguments = fp32_arguments(scale, scale.preset, data, work / "checkpoints", _options(scale))
    flops = speed * Model(scale, arguments).flops_per_token()
    half = next((name for name in ("fp16", "bf16") if any(name in option for option in options)), "fp32")
    sheet = data_sheet_rate(scale, half)
    losses = training.values("loss")
    return {
        "tokens_per_second": speed,
        "mfu": sheet and flops / sheet,
        "of_matrix_rate": flops / matrix_rate(scale, half),
        "peak_gpu_bytes": training.peak_gpu_memory(),
        "peak_host_bytes": training.peak_resident,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "losses": losses,
    }


def _profile(scale: Scale, data: Path, work: Path, autocast: str) -> dict:
    """Return the fraction of the time of each kind of operator, in steps of a model in this process."""
    options = (*_options(scale), "--autocast", autocast, FP32)
    training = Model(scale, fp32_arguments(scale, scale.preset, data, work / "profile", options))
    sample = training.batch()
    model = training.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def steps() -> None:
        for _ in range(PROFILED_STEPS):
            training.criterion(model, sample)[0].backward()
            optimizer.step()
            optimizer.zero_grad()

    steps()
    seconds = operator_seconds(steps, scale.on_gpu)
    return {"milliseconds_per_step": 1e3 * sum(seconds.values()) / PROFILED_STEPS, "time_by_kind": by_kind(seconds)}

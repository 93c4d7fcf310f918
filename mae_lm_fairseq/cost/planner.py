"""Estimated cost of a pretraining run: parameters, FLOPs, memory, communication and hours, and a table of two runs."""

from dataclasses import dataclass, fields

import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Flops, forward_flops
from mae_lm_fairseq.cost.memory import PAD, PRECISIONS, FakeTrainingStep, Memory, training_memory
from mae_lm_fairseq.cost.planned_run import Run

ROWS = (
    ("masked, %", "mask_prob", 0.01, ".0f"),
    ("parameters, million", "parameters.total", 1e6, ",.1f"),
    ("  encoder, kept afterwards", "parameters.kept", 1e6, ",.1f"),
    ("  decoder", "parameters.decoder", 1e6, ",.1f"),
    ("  head, without embeddings", "parameters.head", 1e6, ",.1f"),
    ("training MFLOP per token of text", "flops_per_token.total", 1e6, ",.1f"),
    ("  encoder", "flops_per_token.encoder", 1e6, ",.1f"),
    ("  decoder", "flops_per_token.decoder", 1e6, ",.1f"),
    ("  head", "flops_per_token.head", 1e6, ",.1f"),
    ("memory per device at its peak, GB", "memory.total", 1e9, ",.2f"),
    ("  weights", "memory.weights", 1e9, ",.2f"),
    ("  gradients", "memory.gradients", 1e9, ",.2f"),
    ("  optimizer, fp32 copies", "memory.optimizer", 1e9, ",.2f"),
    ("  buffer of the exchange", "memory.exchange", 1e9, ",.2f"),
    ("  activations of the encoder", "memory.encoder", 1e9, ",.2f"),
    ("  activations of the decoder", "memory.decoder", 1e9, ",.2f"),
    ("  head, loss, chunk of logits", "memory.head", 1e9, ",.2f"),
    ("  backward pass", "memory.backward", 1e9, ",.2f"),
    ("sent per device and update, GB", "exchanged_bytes_per_update", 1e9, ",.2f"),
    ("updates", "updates", 1, ",.0f"),
    ("hours", "hours", 1, ",.1f"),
    ("device-hours", "device_hours", 1, ",.0f"),
)
"""Label, path in :meth:`Plan.as_json`, unit, format."""


@dataclass(frozen=True)
class Parameters:
    """Number of parameters by part. Shared parameters count only for the first part that uses them."""

    encoder: int
    """Parameters kept after pretraining. They include the embeddings, which are also the head's output weights."""
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return self.encoder + self.decoder + self.head


@dataclass(frozen=True)
class Plan:
    """Cost of a run."""

    run: Run
    parameters: Parameters
    flops: Flops
    """Per token of the text, masked or not: forward and backward pass, and with ``--checkpoint-activations`` the second
    forward pass."""
    memory: Memory
    """Bytes per device."""
    exchange_buffer: int
    """Bytes per device of DistributedDataParallel's gradient buckets."""
    exchanged: float
    """Bytes that each device sends per update: a ring all-reduce sends every gradient 2 (N - 1) / N times (Patarasuk
    and Yuan, 2009)."""
    hours: float

    @property
    def memory_total(self) -> int:
        return self.memory.total + self.exchange_buffer

    @property
    def fits(self) -> bool:
        return self.memory_total <= self.run.device.memory

    def as_json(self) -> dict:
        """Return all figures, in the units of the fields."""
        run = self.run
        return {
            **{field.name: getattr(run, field.name) for field in fields(Run)},
            "parameters": {**vars(self.parameters), "total": self.parameters.total, "kept": self.parameters.encoder},
            "flops_per_token": {**self.flops._asdict(), "total": self.flops.total},
            "memory": {**vars(self.memory), "exchange": self.exchange_buffer, "total": self.memory_total},
            "fits": self.fits,
            "exchanged_bytes_per_update": self.exchanged,
            "updates": run.updates,
            "hours": self.hours,
            "device_hours": self.hours * run.devices,
        }


def plan(run: Run) -> Plan:
    """Estimate the cost of a run."""
    memory = training_memory(
        FakeTrainingStep(
            run.config,
            run.vocab_size,
            run.sample,
            run.batch_size,
            PRECISIONS[run.precision],
            run.checkpoint_activations,
            fused=run.precision != "fp32",
        ),
        accumulate=run.update_freq > 1,
    )
    parameters, flops = count_parameters(run.config, run.vocab_size), flops_per_token(run)
    gradients = PRECISIONS[run.precision].dtype.itemsize * parameters.total
    return Plan(
        run,
        parameters,
        flops,
        memory,
        exchange_buffer=gradients if run.devices > 1 else 0,
        exchanged=2 * (run.devices - 1) / run.devices * gradients,
        hours=hours(run, flops),
    )


def hours(run: Run, flops: Flops) -> float:
    """Return the hours of a run that takes these FLOPs per token of the text."""
    return run.tokens * flops.total / (run.devices * run.peak * run.mfu) / 3600


def count_parameters(config: MaskedAutoencoderConfig, vocab_size: int) -> Parameters:
    """Count the parameters of a network by building it on the meta device."""
    with torch.device("meta"):
        network = MaskedAutoencoder(config, vocab_size, PAD, vocab_size - 1)
    counts = dict.fromkeys(("encoder", "decoder", "lm_head"), 0)
    for name, parameter in network.named_parameters():
        counts[name.split(".")[0]] += parameter.numel()
    return Parameters(*counts.values())


def flops_per_token(run: Run) -> Flops:
    """Return the training FLOPs of a run per token of the text."""
    forward = forward_flops(run.config, run.vocab_size, [run.sample])
    layers = TRAINING + 1 if run.checkpoint_activations else TRAINING
    # The alignment loss of expanded [MASK] tokens computes the logits again in the backward pass.
    passes = Flops(encoder=layers, decoder=layers, head=TRAINING + (run.config.mask_states > 1))
    return Flops(*(part * times / run.tokens_per_sample for part, times in zip(forward, passes, strict=True)))


def as_json(planned: Plan, reference: Plan) -> dict:
    """Return two plans, and the compute of the first relative to the second."""
    device = vars(planned.run.device)
    return {
        "plans": [planned.as_json(), reference.as_json()],
        "relative_compute": relative_compute(planned, reference),
        "device": device,
    }


def relative_compute(planned: Plan, reference: Plan) -> float:
    """Return the ratio of two plans' FLOPs for the same text."""
    return planned.flops.total / reference.flops.total


def table(planned: Plan, reference: Plan) -> str:
    """Return a table of two plans, with the assumptions behind them."""
    plans, run = [planned, reference], planned.run
    figures = [each.as_json() for each in plans]
    lines = [_line("", [each.run.preset for each in plans])]
    for label, path, unit, form in ROWS:
        lines.append(_line(label, [format(_figure(figure, path) / unit, form) for figure in figures]))
    lines += [
        _line(f"fits {run.device_kind}", ["yes" if each.fits else "NO" for each in plans]),
        "",
        f"relative compute: {relative_compute(planned, reference):.1%} of {reference.run.preset}",
        f"assumed: {run.tokens:,} tokens; {run.devices} x {run.device_kind} at {run.mfu:.0%} of {run.peak / 1e12:.1f} "
        f"TFLOP/s in {run.precision}, {run.device.memory / 1e9:.0f} GB each ({run.device.source})",
    ]
    return "\n".join(lines)


def _line(label: str, values: list[str]) -> str:
    return f"{label:34}" + "".join(f"{value:>27}" for value in values)


def _figure(figures: dict, path: str) -> float:
    for name in path.split("."):
        figures = figures[name]
    return figures

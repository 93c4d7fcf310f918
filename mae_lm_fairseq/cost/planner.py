"""Estimated cost of a pretraining run: parameters, FLOPs, memory, communication and hours, and a table of two runs."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Flops, forward_flops
from mae_lm_fairseq.cost.memory import PAD, PRECISIONS, FakeTrainingStep, Memory, training_memory
from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.utils.meta_device import on_meta_device

MEASURED_TOKENS = 1 << 14
"""Tokens of the smaller batch that is measured. In smaller ones, a chunk of logits is not full."""


class Row(NamedTuple):
    """A row of the table of two runs."""

    label: str
    path: str
    """Where the figure is in :meth:`Cost.as_json`."""
    unit: float
    format: str

    def cell(self, figures: dict[str, Any]) -> str:
        """Return the figure of a run in the unit of the row."""
        figure = figures
        for name in self.path.split("."):
            figure = figure[name]
        return format(figure / self.unit, self.format)


ROWS = (
    Row("masked, %", "mask_prob", 0.01, ".0f"),
    Row("parameters, million", "parameters.total", 1e6, ",.1f"),
    Row("  encoder, kept afterwards", "parameters.kept", 1e6, ",.1f"),
    Row("  decoder", "parameters.decoder", 1e6, ",.1f"),
    Row("  head, without embeddings", "parameters.head", 1e6, ",.1f"),
    Row("training MFLOP per token of text", "flops_per_token.total", 1e6, ",.1f"),
    Row("  encoder", "flops_per_token.encoder", 1e6, ",.1f"),
    Row("  decoder", "flops_per_token.decoder", 1e6, ",.1f"),
    Row("  head", "flops_per_token.head", 1e6, ",.1f"),
    Row("memory per device at its peak, GB", "memory.total", 1e9, ",.2f"),
    Row("  weights", "memory.weights", 1e9, ",.2f"),
    Row("  gradients", "memory.gradients", 1e9, ",.2f"),
    Row("  optimizer, fp32 copies", "memory.optimizer", 1e9, ",.2f"),
    Row("  buffer of the exchange", "memory.exchange", 1e9, ",.2f"),
    Row("  activations of the encoder", "memory.encoder", 1e9, ",.2f"),
    Row("  activations of the decoder", "memory.decoder", 1e9, ",.2f"),
    Row("  head, loss, chunk of logits", "memory.head", 1e9, ",.2f"),
    Row("  backward pass", "memory.backward", 1e9, ",.2f"),
    Row("sent per device and update, GB", "exchanged_bytes_per_update", 1e9, ",.2f"),
    Row("updates", "updates", 1, ",.0f"),
    Row("hours", "hours", 1, ",.1f"),
    Row("device-hours", "device_hours", 1, ",.0f"),
)


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
class Cost:
    """Cost of a run."""

    run: PlannedRun
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
        options = {field.name: getattr(self.run, field.name) for field in fields(PlannedRun)}
        parameters = vars(self.parameters) | {"total": self.parameters.total, "kept": self.parameters.encoder}
        memory = vars(self.memory) | {"exchange": self.exchange_buffer, "total": self.memory_total}
        return {
            **options,
            "parameters": parameters,
            "flops_per_token": self.flops._asdict() | {"total": self.flops.total},
            "memory": memory,
            "fits": self.fits,
            "exchanged_bytes_per_update": self.exchanged,
            "updates": self.run.updates,
            "hours": self.hours,
            "device_hours": self.hours * self.run.devices,
        }


class BatchMemory(NamedTuple):
    """Bytes per device as a linear function of the sequences per batch."""

    fixed: int
    per_sequence: int

    def total(self, sequences: int) -> int:
        """Return the bytes with so many sequences per batch."""
        return self.fixed + sequences * self.per_sequence

    def largest_batch(self, memory: float) -> int:
        """Return the largest power of two of sequences that fits into so many bytes; 0 if not even one does."""
        fitting = int((memory - self.fixed) // self.per_sequence)
        return 1 << fitting.bit_length() - 1 if fitting > 0 else 0


def batch_memory(run: PlannedRun) -> BatchMemory:
    """Measure the memory of a run with batches of any size, by steps with two of them."""
    smaller = max(1, MEASURED_TOKENS // run.tokens_per_sample)
    of_smaller, of_larger = (plan_cost(replace(run, batch_size=size)).memory_total for size in (smaller, 2 * smaller))
    per_sequence = (of_larger - of_smaller) // smaller
    return BatchMemory(of_smaller - smaller * per_sequence, per_sequence)


def plan_cost(run: PlannedRun) -> Cost:
    """Estimate the cost of a run."""
    precision = PRECISIONS[run.precision]
    training_step = FakeTrainingStep(
        run.config,
        run.vocab_size,
        run.positions,
        rows=run.batch_size,
        precision=precision,
        checkpoint_activations=run.checkpoint_activations,
        fused=run.has_fused_attention,
    )
    parameters = count_parameters(run.config, run.vocab_size)
    flops = flops_per_token(run)
    gradient_bytes = precision.dtype.itemsize * parameters.total
    times_sent = 2 * (run.devices - 1) / run.devices
    return Cost(
        run,
        parameters,
        flops,
        memory=training_memory(training_step, accumulate=run.update_freq > 1),
        exchange_buffer=gradient_bytes if run.devices > 1 else 0,
        exchanged=times_sent * gradient_bytes,
        hours=hours(run, flops),
    )


def hours(run: PlannedRun, flops: Flops) -> float:
    """Return the hours of a run that takes these FLOPs per token of the text."""
    flops_per_second = run.devices * run.peak * run.mfu
    return run.tokens * flops.total / flops_per_second / 3600


def count_parameters(config: MaskedAutoencoderConfig, vocab_size: int) -> Parameters:
    """Count the parameters of a network by building it on the meta device."""
    with on_meta_device():
        network = MaskedAutoencoder(config, vocab_size, PAD, vocab_size - 1)
    counts = {"encoder": 0, "decoder": 0, "lm_head": 0}
    for name, parameter in network.named_parameters():
        part, _, _ = name.partition(".")
        counts[part] += parameter.numel()
    return Parameters(counts["encoder"], counts["decoder"], counts["lm_head"])


def flops_per_token(run: PlannedRun) -> Flops:
    """Return the training FLOPs of a run per token of the text."""
    forward = forward_flops(run.config, run.vocab_size, [run.positions])
    tokens = run.tokens_per_sample
    passes = TRAINING + 1 if run.checkpoint_activations else TRAINING
    # The alignment loss of expanded [MASK] tokens computes the logits again in the backward pass.
    head_passes = TRAINING + 1 if run.config.mask_states > 1 else TRAINING
    encoder = forward.encoder * passes / tokens
    decoder = forward.decoder * passes / tokens
    head = forward.head * head_passes / tokens
    return Flops(encoder, decoder, head)


def as_json(planned: Cost, reference: Cost) -> dict:
    """Return the costs of two runs, and the compute of the first relative to the second."""
    return {
        "plans": [planned.as_json(), reference.as_json()],
        "relative_compute": relative_compute(planned, reference),
        "device": vars(planned.run.device),
    }


def relative_compute(planned: Cost, reference: Cost) -> float:
    """Return the ratio of the FLOPs of two runs for the same text."""
    return planned.flops.total / reference.flops.total


def table(planned: Cost, reference: Cost) -> str:
    """Return a table of the costs of two runs, with the assumptions behind them."""
    run = planned.run
    lines = [_line("", run.preset, reference.run.preset)]
    figures = planned.as_json()
    reference_figures = reference.as_json()
    for row in ROWS:
        lines.append(_line(row.label, row.cell(figures), row.cell(reference_figures)))
    fits = ["yes" if cost.fits else "NO" for cost in (planned, reference)]
    devices = f"{run.devices} x {run.device_kind}"
    speed = f"{run.mfu:.0%} of {run.peak / 1e12:.1f} TFLOP/s in {run.precision}"
    memory = f"{run.device.memory / 1e9:.0f} GB each ({run.device.source})"
    lines += [
        _line(f"fits {run.device_kind}", *fits),
        "",
        f"relative compute: {relative_compute(planned, reference):.1%} of {reference.run.preset}",
        f"assumed: {run.tokens:,} tokens; {devices} at {speed}, {memory}",
    ]
    return "\n".join(lines)


def _line(label: str, value: str, reference: str) -> str:
    return f"{label:34}{value:>27}{reference:>27}"

"""Estimated cost of a pretraining run: parameters, FLOPs, memory, communication and hours."""

from dataclasses import dataclass, fields

import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import TRAINING, Flops, forward_flops
from mae_lm_fairseq.cost.memory import PAD, PRECISIONS, FakeTrainingStep, Memory, training_memory
from mae_lm_fairseq.cost.planned_run import Run


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
        hours=run.tokens * flops.total / (run.devices * run.peak * run.mfu) / 3600,
    )


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
    passes = Flops(encoder=layers, decoder=layers, head=TRAINING)
    return Flops(*(part * times / run.tokens_per_sample for part, times in zip(forward, passes, strict=True)))

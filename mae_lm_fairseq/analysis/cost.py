"""What a pretraining run costs before it starts: parameters, FLOPs, memory, exchanged bytes and hours."""

from dataclasses import asdict, dataclass, replace

import torch

from mae_lm_fairseq.analysis.devices import DEVICES, Device
from mae_lm_fairseq.analysis.flops import TRAINING, Flops, Sample, forward_flops
from mae_lm_fairseq.analysis.memory import PAD, PRECISIONS, Memory, Rehearsal, training_memory
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_values
from mae_lm_fairseq.utils.errors import UserError

ROBERTA = "mae_lm_roberta"
ROBERTA_MASK_PROB = 0.15


@dataclass(frozen=True)
class Run:
    """A pretraining run. The fields are the options of ``scripts/plan_cost.py``.

    Raises:
        UserError: a value cannot be; the message names the option.
    """

    preset: str
    mask_prob: float = 0.15
    vocab_size: int = 32_000
    tokens_per_sample: int = 512
    batch_size: int = 32
    update_freq: int = 8
    tokens: int = 125_000 * 2048 * 512
    devices: int = 8
    device_kind: str = "a100-80"
    precision: str = "fp16"
    mfu: float = 0.25
    checkpoint_activations: bool = False

    def __post_init__(self):
        self._require_choice("preset", ARCHITECTURES)
        self._require_choice("device_kind", DEVICES)
        self._require_choice("precision", PRECISIONS)
        for name in ("batch_size", "update_freq", "tokens", "devices"):
            self._require(getattr(self, name) > 0, name, "must be at least 1")
        self._require(self.vocab_size > 5, "vocab_size", "must be above 5, the number of special tokens")
        self._require(self.tokens_per_sample > 1, "tokens_per_sample", "must be at least 2")
        self._require(0 < self.mfu <= 1, "mfu", "must be above 0 and at most 1")
        self._require(0 < self.mask_prob < 1, "mask_prob", "must be between 0 and 1")
        leaves = 0 < self.sample.predicted < self.tokens_per_sample
        self._require(leaves, "mask_prob", f"masks none, or all, of --tokens-per-sample {self.tokens_per_sample}")
        if self.precision in ("bf16", "autocast"):
            self._require(
                self.device.has_bf16, "precision", f"needs bfloat16, which {self.device_kind} has not: take fp16"
            )

    def roberta(self) -> "Run":
        """The run of the RoBERTa preset of the same size that this one is compared with."""
        return replace(self, preset=f"{ROBERTA}_{ARCHITECTURES[self.preset][1]}", mask_prob=ROBERTA_MASK_PROB)

    @property
    def config(self) -> MaskedAutoencoderConfig:
        """The network, with enough positions for the samples."""
        config = MaskedAutoencoderConfig(**preset_values(*ARCHITECTURES[self.preset]))
        return replace(config, max_positions=max(config.max_positions, self.tokens_per_sample))

    @property
    def sample(self) -> Sample:
        """Every sample: as long as can be, with ``<mask>`` at all positions that are predicted."""
        predicted = round(self.mask_prob * self.tokens_per_sample)
        return Sample(self.tokens_per_sample, self.tokens_per_sample - predicted, predicted)

    @property
    def device(self) -> Device:
        return DEVICES[self.device_kind]

    @property
    def peak(self) -> float:
        """FLOP/s of one device in this precision, at most."""
        return self.device.fp32 if self.precision == "fp32" else self.device.half

    @property
    def updates(self) -> int:
        update = self.devices * self.batch_size * self.update_freq * self.tokens_per_sample
        return -(-self.tokens // update)

    def _require_choice(self, name: str, choices: dict):
        self._require(getattr(self, name) in choices, name, f"is none of {', '.join(choices)}")

    def _require(self, holds: bool, name: str, rule: str):
        if not holds:
            option = "PRESET" if name == "preset" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} {getattr(self, name)} {rule}")


@dataclass(frozen=True)
class Parameters:
    """How many there are of each part. What parts share counts where it stands first."""

    encoder: int
    """What is kept after pretraining; with the embeddings, which are the head's output weights too."""
    decoder: int
    head: int

    @property
    def total(self) -> int:
        return self.encoder + self.decoder + self.head


@dataclass(frozen=True)
class Plan:
    """What a run costs."""

    run: Run
    parameters: Parameters
    flops: Flops
    """For a token of the text, whether masked or not: forward and backward pass, and the second forward pass of
    ``--checkpoint-activations``."""
    memory: Memory
    """Bytes on each device."""
    exchange_buffer: int
    """Bytes on each device where DistributedDataParallel collects the gradients that it exchanges."""
    exchanged: float
    """Bytes that each device sends in an update: a ring all-reduce passes every gradient on 2 (N - 1) / N times
    (Patarasuk and Yuan, 2009)."""
    hours: float

    @property
    def memory_total(self) -> int:
        return self.memory.total + self.exchange_buffer

    @property
    def fits(self) -> bool:
        return self.memory_total <= self.run.device.memory

    def as_json(self) -> dict:
        """All figures, in the units of the fields."""
        run = self.run
        return {
            **asdict(run),
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
    """What a run costs."""
    memory = training_memory(
        Rehearsal(
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
    """The parameters of a network, from the network itself."""
    with torch.device("meta"):
        network = MaskedAutoencoder(config, vocab_size, PAD, vocab_size - 1)
    counts = dict.fromkeys(("encoder", "decoder", "lm_head"), 0)
    for name, parameter in network.named_parameters():
        counts[name.split(".")[0]] += parameter.numel()
    return Parameters(*counts.values())


def flops_per_token(run: Run) -> Flops:
    """Training FLOPs of a run for each token of the text."""
    forward = forward_flops(run.config, run.vocab_size, [run.sample])
    layers = TRAINING + 1 if run.checkpoint_activations else TRAINING
    passes = Flops(encoder=layers, decoder=layers, head=TRAINING)
    return Flops(*(part * times / run.tokens_per_sample for part, times in zip(forward, passes, strict=True)))

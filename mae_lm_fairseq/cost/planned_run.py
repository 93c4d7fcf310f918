"""Description of a pretraining run for cost estimates, and the accelerators that it may use."""

import argparse
import contextlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.cost.flops import Sample
from mae_lm_fairseq.utils.command_line import Argument, Count, Fraction, Options, Probability

PRECISIONS = ("fp32", "autocast", "bf16", "fp16")
"""Precisions. In ``fairseq-train`` they are the options: none, ``--autocast bf16``, ``--bf16``, ``--fp16``."""

ROBERTA = "mae_lm_roberta"
ROBERTA_MASK_PROB = 0.15


@dataclass(frozen=True)
class Device:
    """Type of accelerator, with the figures of its data sheet."""

    fp32: float
    """Peak FLOP/s of float32 without tensor cores, which is torch's default."""
    half: float
    """Peak FLOP/s of dense float16 or bfloat16 matrix products with float32 accumulation."""
    memory: int
    """Memory in bytes."""
    source: str
    has_bf16: bool = True


_A100 = "NVIDIA A100 Tensor Core GPU datasheet (2021)"

DEVICES = {
    "v100": Device(15.7e12, 125e12, 32 * 10**9, "NVIDIA V100 datasheet (2020), SXM2", has_bf16=False),
    "a100-40": Device(19.5e12, 312e12, 40 * 10**9, _A100),
    "a100-80": Device(19.5e12, 312e12, 80 * 10**9, _A100),
    "h100": Device(67e12, 989.5e12, 80 * 10**9, "NVIDIA H100 datasheet (2023), SXM; half of its figure with sparsity"),
    "h200": Device(67e12, 989.5e12, 141 * 10**9, "NVIDIA H200 datasheet (2024), SXM; half of its figure with sparsity"),
    "rtx4090": Device(82.6e12, 165.2e12, 24 * 10**9, "NVIDIA Ada GPU architecture whitepaper (2022), appendix A"),
}


def kind_of_gpu(properties) -> str | None:
    """Return the key in :data:`DEVICES` of a GPU; None if it is not listed.

    Args:
        properties: what ``torch.cuda.get_device_properties`` returns.
    """
    name = properties.name.lower().replace(" ", "").replace("-", "")
    if "a100" in name:
        return "a100-80" if properties.total_memory > 60 * 10**9 else "a100-40"
    return next((kind for kind in DEVICES if kind in name), None)


def _integer(text: str) -> int:
    """Parse an integer, also written as 131e9."""
    with contextlib.suppress(ValueError):
        if float(text).is_integer():
            return int(float(text))
    raise argparse.ArgumentTypeError(f"{text} is not an integer")


@dataclass(frozen=True)
class Run(Options):
    """A pretraining run.

    Attributes:
        preset: the architecture.
        mask_prob: fraction of the tokens that are masked and predicted.
        mask_in_encoder: fraction of the [MASK] tokens that the encoder sees, as in fairseq-train.
        vocab_size: size of the dictionary, special tokens included.
        tokens_per_sample: sequence length in tokens.
        batch_size: sequences per batch of one device.
        update_freq: batches that each device accumulates per update.
        tokens: training text in total, repetitions included, such as 131e9 (default: BERT's 1,000,000 updates of
            256 sequences).
        devices: number of accelerators.
        device_kind: type of the accelerators.
        precision: training precision, after fairseq-train's --bf16, --fp16, --autocast bf16.
        mfu: fraction of the accelerator's FLOP/s that is reached, see above.
        checkpoint_activations: as in fairseq-train.

    Raises:
        ValueError: if values are out of range or do not fit each other; the message begins with the name of the field.
    """

    preset: Annotated[Literal[*ARCHITECTURES], Argument("PRESET", positional=True)]
    mask_prob: Probability = 0.15
    mask_in_encoder: Annotated[float, Argument("F", at_least=0, at_most=1)] = 0.0
    vocab_size: Annotated[int, Argument("N", at_least=6)] = 32_000
    tokens_per_sample: Annotated[int, Argument("N", at_least=2)] = 512
    batch_size: Count = 32
    update_freq: Count = 8
    tokens: Annotated[int, Argument("N", parse=_integer, at_least=1)] = 125_000 * 2048 * 512
    devices: Count = 8
    device_kind: Annotated[Literal[*DEVICES], Argument("K")] = "a100-80"
    precision: Annotated[Literal[*PRECISIONS], Argument("P")] = "fp16"
    mfu: Fraction = 0.25
    checkpoint_activations: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.sample.predicted < self.tokens_per_sample:
            length = f"--tokens-per-sample {self.tokens_per_sample}"
            raise ValueError(f"mask_prob {self.mask_prob} masks none or all of {length}")
        if self.precision in ("bf16", "autocast") and not self.device.has_bf16:
            raise ValueError(f"precision {self.precision} is not supported by {self.device_kind}; use fp16")

    def roberta(self) -> "Run":
        """Return the run of the RoBERTa preset of the same size, for comparison."""
        preset = f"{ROBERTA}_{ARCHITECTURES[self.preset][1]}"
        return replace(self, preset=preset, mask_prob=ROBERTA_MASK_PROB, mask_in_encoder=0.0)

    @property
    def config(self) -> MaskedAutoencoderConfig:
        """The network configuration, with enough positions for the sequences."""
        config = self.network()
        return replace(config, max_positions=max(config.max_positions, self.tokens_per_sample))

    def network(self) -> MaskedAutoencoderConfig:
        """Return the network configuration of the preset."""
        return preset_config(*ARCHITECTURES[self.preset])

    @property
    def sample(self) -> Sample:
        """The positions of every sequence: maximum length, with ``<mask>`` at all predicted positions."""
        predicted = round(self.mask_prob * self.tokens_per_sample)
        early = round(self.mask_in_encoder * predicted)
        return Sample(self.tokens_per_sample, self.tokens_per_sample - predicted + early, predicted)

    @property
    def device(self) -> Device:
        return DEVICES[self.device_kind]

    @property
    def peak(self) -> float:
        """Peak FLOP/s of one device in this precision."""
        return self.device.fp32 if self.precision == "fp32" else self.device.half

    @property
    def updates(self) -> int:
        update = self.devices * self.batch_size * self.update_freq * self.tokens_per_sample
        return -(-self.tokens // update)

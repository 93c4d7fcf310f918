"""Description of a pretraining run for cost estimates, and the accelerators that it may use."""

import argparse
import contextlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, no_preset, preset_config
from mae_lm_fairseq.cost.flops import Positions
from mae_lm_fairseq.utils.command_line import Argument, Count, Fraction, Options, Probability

PRECISION_NAMES = ("fp32", "autocast", "bf16", "fp16")
"""Precisions. In ``fairseq-train`` they are the options: none, ``--autocast bf16``, ``--bf16``, ``--fp16``."""


def _preset(name: str) -> str:
    if name not in ARCHITECTURES:
        raise argparse.ArgumentTypeError(no_preset(name))
    return name


@dataclass(frozen=True)
class Device:
    """Type of accelerator, with the figures of its data sheet."""

    tf32: float
    """Peak FLOP/s of dense TF32 matrix products: training without half precision uses TF32."""
    half: float
    """Peak FLOP/s of dense float16 or bfloat16 matrix products with float32 accumulation."""
    memory: int
    """Memory in bytes."""
    source: str


_A100 = "NVIDIA A100 Tensor Core GPU datasheet (2021)"
_HALVED = "half of its figures with sparsity"

DEVICES = {
    "a10": Device(62.5e12, 125e12, 24 * 10**9, "NVIDIA A10 datasheet (2021)"),
    "a100-40": Device(156e12, 312e12, 40 * 10**9, _A100),
    "a100-80": Device(156e12, 312e12, 80 * 10**9, _A100),
    "l40s": Device(183e12, 362.05e12, 48 * 10**9, "NVIDIA L40S datasheet (2023)"),
    "h100": Device(494.7e12, 989.5e12, 80 * 10**9, f"NVIDIA H100 datasheet (2023), SXM; {_HALVED}"),
    "h200": Device(494.7e12, 989.5e12, 141 * 10**9, f"NVIDIA H200 datasheet (2024), SXM; {_HALVED}"),
    "gh200": Device(494.5e12, 989.5e12, 96 * 10**9, f"NVIDIA GH200 datasheet (2024), 96 GB of HBM3; {_HALVED}"),
    "b200": Device(1.1e15, 2.25e15, 180 * 10**9, f"NVIDIA Blackwell datasheet (2025), HGX B200; {_HALVED}"),
    "rtx3090": Device(35.6e12, 71e12, 24 * 10**9, "NVIDIA Ampere GA102 whitepaper (2021), appendix A"),
    "rtx4090": Device(82.6e12, 165.2e12, 24 * 10**9, "NVIDIA Ada GPU architecture whitepaper (2022), appendix A"),
}

OTHER_PRODUCTS = {"laptop", "mig", "nvl", "pcie", "ti", "d"}
"""Words in the names of GPUs that have other peaks than the one of :data:`DEVICES` whose name they share."""


def kind_of_gpu(properties) -> str | None:
    """Return the key in :data:`DEVICES` of a GPU; None if it is not listed."""
    words = properties.name.lower().replace("-", " ").replace("rtx ", "rtx").split()
    if "a100" in words and "mig" not in words:  # the peaks of all A100s are equal
        return "a100-80" if properties.total_memory > 60 * 10**9 else "a100-40"
    if OTHER_PRODUCTS.intersection(words):
        return None
    return next((kind for kind in DEVICES if kind in words), None)


def _integer(text: str) -> int:
    with contextlib.suppress(ValueError):
        number = float(text)
        if number.is_integer():
            return int(number)
    raise argparse.ArgumentTypeError(f"{text} is not an integer")


@dataclass(frozen=True)
class PlannedRun(Options):
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

    preset: Annotated[Literal[*ARCHITECTURES], Argument("PRESET", positional=True, parse=_preset)]
    mask_prob: Probability = 0.15
    mask_in_encoder: Annotated[float, Argument("F", at_least=0, at_most=1)] = 0.0
    vocab_size: Annotated[int, Argument("N", at_least=6)] = 32_000
    tokens_per_sample: Annotated[int, Argument("N", at_least=2)] = 512
    batch_size: Count = 32
    update_freq: Count = 8
    tokens: Annotated[int, Argument("N", parse=_integer, at_least=1)] = 125_000 * 2048 * 512
    devices: Count = 8
    device_kind: Annotated[Literal[*DEVICES], Argument("K")] = "a100-80"
    precision: Annotated[Literal[*PRECISION_NAMES], Argument("P")] = "fp16"
    mfu: Fraction = 0.23
    checkpoint_activations: bool = False

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.positions.predicted < self.tokens_per_sample:
            length = f"--tokens-per-sample {self.tokens_per_sample}"
            raise ValueError(f"mask_prob {self.mask_prob} masks none or all of {length}")

    def roberta(self) -> "PlannedRun":
        """Return the run of the RoBERTa preset of the same size, for comparison."""
        preset = f"mae_lm_roberta_{ARCHITECTURES[self.preset][1]}"
        return replace(self, preset=preset, mask_prob=0.15, mask_in_encoder=0.0)

    @property
    def config(self) -> MaskedAutoencoderConfig:
        """The network configuration, with enough positions for the sequences."""
        config = self.network_config()
        return replace(config, max_positions=max(config.max_positions, self.tokens_per_sample))

    def network_config(self) -> MaskedAutoencoderConfig:
        """Return the network configuration of the preset."""
        return preset_config(*ARCHITECTURES[self.preset])

    @property
    def positions(self) -> Positions:
        """The positions of every sequence: maximum length, with ``<mask>`` at all predicted positions."""
        predicted = round(self.mask_prob * self.tokens_per_sample)
        early = round(self.mask_in_encoder * predicted)
        return Positions(self.tokens_per_sample, self.tokens_per_sample - predicted + early, predicted)

    @property
    def has_fused_attention(self) -> bool:
        """Whether attention is that of the fused kernel, as in half precision; in float32 scores are written out."""
        return self.precision != "fp32"

    @property
    def device(self) -> Device:
        return DEVICES[self.device_kind]

    @property
    def peak(self) -> float:
        """Peak FLOP/s of one device in this precision."""
        return self.device.tf32 if self.precision == "fp32" else self.device.half

    @property
    def updates(self) -> int:
        update = self.devices * self.batch_size * self.update_freq * self.tokens_per_sample
        return -(-self.tokens // update)

"""Description of a pretraining run for cost estimates."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.cost.devices import DEVICES, Device
from mae_lm_fairseq.cost.flops import Sample
from mae_lm_fairseq.utils.errors import UserError

PRECISIONS = ("fp32", "autocast", "bf16", "fp16")
"""Precisions. In ``fairseq-train`` they are the options: none, ``--autocast bf16``, ``--bf16``, ``--fp16``."""

ROBERTA = "mae_lm_roberta"
ROBERTA_MASK_PROB = 0.15


@dataclass(frozen=True)
class Run:
    """A pretraining run. The fields are the options of ``mae-lm plan``.

    Raises:
        UserError: if a value is invalid; the message names the option.
    """

    preset: str
    mask_prob: float = 0.15
    mask_in_encoder: float = 0.0
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
    network: MaskedAutoencoderConfig | None = None
    """The network, if it is not that of the preset."""

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
        self._require(0 <= self.mask_in_encoder <= 1, "mask_in_encoder", "must be between 0 and 1")
        masks_some = 0 < self.sample.predicted < self.tokens_per_sample
        self._require(masks_some, "mask_prob", f"masks none or all of --tokens-per-sample {self.tokens_per_sample}")
        if self.precision in ("bf16", "autocast"):
            self._require(
                self.device.has_bf16,
                "precision",
                f"needs bfloat16, which {self.device_kind} does not support; use fp16",
            )

    def roberta(self) -> "Run":
        """Return the run of the RoBERTa preset of the same size, for comparison."""
        preset = f"{ROBERTA}_{ARCHITECTURES[self.preset][1]}"
        return replace(self, preset=preset, mask_prob=ROBERTA_MASK_PROB, mask_in_encoder=0.0, network=None)

    @property
    def config(self) -> MaskedAutoencoderConfig:
        """The network configuration, with enough positions for the sequences."""
        config = self.network or preset_config(*ARCHITECTURES[self.preset])
        return replace(config, max_positions=max(config.max_positions, self.tokens_per_sample))

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

    def _require_choice(self, name: str, choices: Iterable[str]):
        self._require(getattr(self, name) in choices, name, f"is not one of {', '.join(choices)}")

    def _require(self, holds: bool, name: str, rule: str):
        if not holds:
            option = "PRESET" if name == "preset" else f"--{name.replace('_', '-')}"
            raise UserError(f"{option} {getattr(self, name)} {rule}")

"""Ranges of fairseq's numeric options. The table imports neither fairseq nor torch, whose imports take seconds."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from mae_lm_fairseq.utils.errors import UserError


class Range(NamedTuple):
    """Options that are a number, or a list of numbers, of a section of fairseq's configuration.

    Attributes:
        section: the section.
        minimum: the least value.
        names: names of the options in the section.
        maximum: the largest value.
    """

    section: str
    minimum: float
    names: tuple[str, ...]
    maximum: float = sys.float_info.max

    @property
    def reason(self) -> str:
        """Message about ``{found}``, a value out of range."""
        has_maximum = self.maximum < sys.float_info.max
        limits = f"from {self.minimum} to {self.maximum}" if has_maximum else f"of at least {self.minimum}"
        return f"{{found}} must be a number {limits}"

    def holds(self, number: float) -> bool:
        """Return whether a number is in the range; NaN is in none."""
        return self.minimum <= number <= self.maximum


RANGES = (
    Range("common", 0, ("seed",), 2**32 - 1),  # of NumPy's generators
    Range("dataset", 1, ("batch_size", "max_tokens", "batch_size_valid", "max_tokens_valid")),
    Range("dataset", 0, ("num_workers",)),
    Range("optimization", 1, ("update_freq",)),
    Range("optimization", 0, ("lr", "clip_norm", "max_update", "max_epoch")),
    Range("optimizer", 0, ("adam_eps", "weight_decay")),
    Range("lr_scheduler", 0, ("warmup_updates", "end_learning_rate", "power")),
    Range("ema", 0, ("ema_decay",), 1),
    Range("ema", 0, ("ema_start_update",)),
    Range("ema", 1, ("ema_update_freq",)),
)


def option(name: str) -> str:
    """Return the command-line option of a name in the configuration."""
    return f"--{name.replace('_', '-')}"


def check_words(words: Sequence[str]) -> None:
    """Check the numbers among the words of a command line, before fairseq parses them. Other words are not judged.

    Raises:
        UserError: if a number is out of its range.
    """
    ranges = {option(name): one for one in RANGES for name in one.names}
    for position, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in ranges:
            value = value or (words[position + 1] if position + 1 < len(words) else "")
            for number in value.split(","):
                if (parsed := _number(number)) is not None and not ranges[name].holds(parsed):
                    raise UserError(f"{name} {ranges[name].reason.format(found=number)}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

"""Settings for the measurement of effective ranks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RankSettings:
    """Settings for the measurement of effective ranks.

    Raises:
        ValueError: if a value is out of range; the message names the option.
    """

    mask_prob: float = 0.15
    """Fraction of tokens to mask."""
    threshold: float = 0.9
    """Fraction of the sum of squares for the threshold rank."""
    centred: bool = False
    """Whether to measure around the mean instead of zero."""
    bootstrap: int = 100
    """Number of resamples for the intervals."""
    seed: int = 1
    """Seed of masks and resamples."""

    def __post_init__(self):
        if not 0 < self.mask_prob < 1:
            raise ValueError(f"--mask-prob {self.mask_prob} must be above 0 and below 1")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"--threshold {self.threshold} must be above 0 and at most 1")
        if self.bootstrap < 2:
            raise ValueError(f"--bootstrap {self.bootstrap} must be at least 2")
        if self.seed < 0:
            raise ValueError(f"--seed {self.seed} must not be negative")

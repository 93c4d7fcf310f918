"""Ranges of numbers, stated beside the field of a configuration or of options that they limit."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Range:
    """Range of a number, which is finite in any case.

    Attributes:
        at_least, above, at_most, below: its limits; none if they are not given.
    """

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a number."""
        is_low = value < self.at_least or value <= self.above
        is_high = value > self.at_most or value >= self.below
        if math.isfinite(value) and not is_low and not is_high:
            return None
        limits = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        stated = [f"{name} {limit}" for name, limit in limits.items() if math.isfinite(limit)]
        return f"must be {' and '.join(stated) or 'finite'}"

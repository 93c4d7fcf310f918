"""Settings for the measurement of effective ranks, without torch."""

from dataclasses import dataclass
from typing import Annotated

from mae_lm_fairseq.utils.command_line import Argument, Fraction, Natural, Options, Probability


@dataclass(frozen=True, kw_only=True)
class RankSettings(Options):
    """Settings for the measurement of effective ranks.

    Attributes:
        mask_prob: fraction of the tokens to mask.
        threshold: fraction of the sum of squares that defines the threshold rank.
        centred: measure ranks around the mean instead of zero, unlike the paper.
        bootstrap: number of bootstrap resamples for the intervals.
        seed: seed of masks and resamples.
    """

    mask_prob: Probability = 0.15
    threshold: Fraction = 0.9
    centred: bool = False
    bootstrap: Annotated[int, Argument("N", at_least=2)] = 100
    seed: Natural = 1

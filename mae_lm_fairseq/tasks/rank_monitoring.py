"""Effective ranks of the encoder's states on a fixed part of the validation text, during training."""

import logging
import math

import numpy as np
from fairseq.data import FairseqDataset
from fairseq.distributed.utils import get_global_rank
from fairseq.logging import metrics

from mae_lm_fairseq.core.encoder import Encoder
from mae_lm_fairseq.statistics.rank_monitor import MONITORED_TOKENS, RankMonitor

logger = logging.getLogger(__name__)


class PeriodicRanks:
    """Measures ranks every ``interval`` updates, in the first process, and logs the latest ones after every update.

    Args:
        interval: number of updates, above 0.
        monitor: what measures them.
    """

    def __init__(self, interval: int, monitor: RankMonitor):
        self.interval, self.monitor = interval, monitor
        self.latest: dict[str, float] = {}

    def after_update(self, updates: int, encoder: Encoder) -> None:
        """Measure, if it is time, and log; ``updates`` counts the update that has just been taken."""
        if get_global_rank() != 0:
            return
        if updates % self.interval == 0:
            self.latest = self.monitor.measure(encoder)
            found = ", ".join(f"{name} {value:.0f}" for name, value in self.latest.items())
            logger.info("effective ranks after %d updates: %s", updates, found)
        for name, value in self.latest.items():
            metrics.log_scalar(name, value, weight=0, priority=600, round=1)  # 0: the last value, no average


def monitored_texts(sequences: FairseqDataset) -> list[list[int]]:
    """Return some sequences of a split, evenly spaced, as lists of ids."""
    count = min(len(sequences), math.ceil(MONITORED_TOKENS / np.mean(sequences.sizes)))
    return [sequences[len(sequences) * number // count].tolist() for number in range(count)]

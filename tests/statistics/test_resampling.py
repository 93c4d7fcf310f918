"""Bootstrap intervals of ratios; the tests of probing and tagging compare them with their definition."""

import numpy as np

from mae_lm_fairseq.statistics import effective_rank


def test_resampling_in_chunks_changes_nothing(monkeypatch):
    generator = np.random.default_rng(2)
    below = generator.integers(0, 9, 40)
    above = generator.integers(0, below + 1)
    at_once = effective_rank.ratio_interval(above, below)
    for size in (1, 40 * 7, 40 * 999):
        monkeypatch.setattr(effective_rank, "CHUNK", size)
        assert effective_rank.ratio_interval(above, below) == at_once

"""The interval of a statistic, by hand: simulated coverage cannot tell factors that are close to one."""

import pytest
import torch
from scipy.stats import t

from mae_lm_fairseq.statistics.effective_rank import interval


@pytest.mark.parametrize("chunks", [2, 4, 20])
def test_resamples_of_few_chunks_spread_too_little(chunks):
    """Drawn with replacement, n chunks have a variance that is (n - 1) / n of the right one."""
    low, high = interval(torch.tensor([5.0, 1.0, 3.0]).double(), chunks)  # resamples 1 and 3 have a variance of 2
    half = t.ppf(0.975, chunks - 1) * (2 * chunks / (chunks - 1)) ** 0.5
    assert (low, high) == pytest.approx((5 - half, 5 + half), rel=1e-12)

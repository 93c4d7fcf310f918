"""Statistics over seeds, against numpy and scipy."""

import numpy as np
import pytest

from mae_lm_fairseq.finetuning.report import difference
from mae_lm_fairseq.finetuning.results import summarise


def test_a_summary():
    summary = summarise([70.0, 60.0, 80.0, 75.0])
    assert summary.median == 72.5
    assert summary.std == pytest.approx(np.std(summary.values, ddof=1))
    assert str(summary) == "72.5 (71.2 ± 8.5)"
    assert str(summarise([70.0])) == "70.0 (one seed)"


def test_welch_interval_equals_scipy():
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = [81.0, 82.5, 80.7], [78.0, 80.0, 75.5, 77.0]
    found = difference(summarise(ours), summarise(theirs))
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert "two standard errors" not in str(found)
    assert "within two standard errors" in str(difference(summarise([70.0, 80.0]), summarise([71.0, 78.0])))
    assert difference(summarise([1.0]), summarise(theirs)).low is None

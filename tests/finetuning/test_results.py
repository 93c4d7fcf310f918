"""Statistics over seeds, against numpy."""

import numpy as np
import pytest

from mae_lm_fairseq.finetuning.results import summarise


def test_a_summary():
    summary = summarise([70.0, 60.0, 80.0, 75.0])
    assert summary.median == 72.5
    assert summary.std == pytest.approx(np.std(summary.values, ddof=1))
    assert str(summary) == "72.5 (71.2 ± 8.5)"
    assert str(summarise([70.0])) == "70.0 (one seed)"

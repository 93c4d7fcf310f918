"""Faults of training on two nodes."""

import pytest

from tests.fault_injection import nodes
from tests.fault_injection.training import Workplace, make_data, prepare_to_fork
from tests.support.nodes import NotPermittedError


@pytest.mark.slow
@pytest.mark.parametrize("fault", nodes.FAULTS, ids=lambda fault: fault.rows.__name__)
def test_nothing_is_lost(tmp_path, fault):
    prepare_to_fork()
    try:
        rows = list(fault.rows(Workplace(tmp_path / "place", make_data(tmp_path / "data")), fault.few))
    except NotPermittedError as reason:
        pytest.skip(str(reason))
    assert [row.losses for row in rows] == [[]] * len(rows)
    assert sum(row.tried for row in rows) >= fault.few

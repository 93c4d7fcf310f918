"""Reports of made-up results."""

from collections.abc import Callable

import pytest

from mae_lm_fairseq.study.report import write_report
from mae_lm_fairseq.study.results_file import ResultsFile
from mae_lm_fairseq.utils.typed import typed


@pytest.fixture
def report_of(tmp_path) -> Callable[[dict], str]:
    """Return a function that writes the report of results into ``tmp_path``, and returns its text."""

    def report_of(results: dict) -> str:
        write_report(tmp_path, typed(results, ResultsFile))
        return (tmp_path / "report.md").read_text()

    return report_of

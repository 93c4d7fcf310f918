"""Measured results on the front page and on the pages of results are those of the committed JSON."""

import pytest

from experiments import findings, separation
from tests.support import ROOT

PHRASES = [*findings.phrases().items(), *separation.phrases().items()]


@pytest.mark.parametrize(("page", "phrases"), PHRASES, ids=lambda value: value if isinstance(value, str) else "")
def test_pages_say_what_the_data_say(page, phrases):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert not [phrase for phrase in phrases if phrase not in text]

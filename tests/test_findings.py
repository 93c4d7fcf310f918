"""Measured results on the front page and on the pages of results are those of the committed JSON."""

import pytest

from experiments.findings import phrases
from tests.support import ROOT

PHRASES = phrases()


@pytest.mark.parametrize("page", PHRASES)
def test_pages_say_what_the_data_say(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert not [phrase for phrase in PHRASES[page] if phrase not in text]

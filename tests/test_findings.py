"""Measured results on the pages of results are those of the committed JSON."""

import pytest

from experiments import findings, front_page, headroom_findings, larger_study, reproduction, separation, three_ml
from tests.support import ROOT


def phrases_by_page() -> list:
    """Return the page and the phrases of every module that computes some, with a name for each."""
    parameters = []
    for module in (findings, front_page, headroom_findings, larger_study, reproduction, separation, three_ml):
        name = module.__name__.rpartition(".")[2]
        for page, phrases in module.phrases().items():
            parameters.append(pytest.param(page, phrases, id=f"{name}, {page}"))
    return parameters


@pytest.mark.parametrize(("page", "phrases"), phrases_by_page())
def test_pages_say_what_the_data_say(page, phrases):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert [phrase for phrase in phrases if phrase not in text] == []

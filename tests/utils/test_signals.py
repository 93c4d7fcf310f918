"""Signals that end a program."""

import signal

import pytest

from mae_lm_fairseq.utils.errors import Interrupted
from mae_lm_fairseq.utils.signals import ENDING, signals_as_errors, uninterrupted


@pytest.fixture(autouse=True)
def default_handlers():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_is_an_error_and_the_next_ones_are_ignored(number):
    def end():
        try:
            signal.raise_signal(number)
        finally:
            for each in ENDING:
                signal.raise_signal(each)

    with pytest.raises(Interrupted, match=f"interrupted by {number.name}"), signals_as_errors():
        end()
    assert {signal.getsignal(each) for each in ENDING} == {signal.SIG_DFL}


def test_uninterrupted():
    with uninterrupted():
        for number in ENDING:
            signal.raise_signal(number)


def test_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_as_errors():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

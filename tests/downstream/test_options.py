"""Command-line options shared by all fine-tuning commands."""

import argparse

import pytest

from mae_lm_fairseq.downstream.options import add_options, parse

NEEDED = ["--checkpoint", "none", "--tokenizer", "data-bin", "--out", "out"]


def options(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, "none")
    return parse(parser, [*NEEDED, *words])


def test_arguments_after_two_dashes_go_to_fairseq():
    parsed = options("--learning-rates", "1e-4", "3", "--", "--lr", "-1")
    assert (parsed["learning_rates"], parsed["extra"]) == ([1e-4, 3.0], ["--lr", "-1"])


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1"])
def test_invalid_learning_rates_are_named(rate, capsys):
    with pytest.raises(SystemExit):
        options("--learning-rates", "1e-4", rate)
    assert f"argument --learning-rates: {rate} is not a number above zero" in capsys.readouterr().err

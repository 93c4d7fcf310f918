"""Command-line options shared by all fine-tuning commands."""

import argparse
from pathlib import Path

import pytest

from mae_lm_fairseq.downstream.options import add_options, parse
from mae_lm_fairseq.utils.errors import UserError

NEEDED = ["--checkpoint", "none", "--tokenizer", "data-bin", "--out", "out"]


def options(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, "none")
    return parse(parser, [*NEEDED, *words])


def test_the_tokenizer_is_that_of_a_bundle_unless_named(tmp_path):
    (tmp_path / "checkpoint.pt").touch()
    needed = ["--out", "out", "--checkpoint"]
    parser = argparse.ArgumentParser()
    add_options(parser, "none")
    assert parse(parser, [*needed, str(tmp_path)])["tokenizer"] == tmp_path
    assert parse(parser, [*needed, str(tmp_path), "--tokenizer", "data-bin"])["tokenizer"] == Path("data-bin")
    for checkpoint in ("none", str(tmp_path / "checkpoint.pt")):
        with pytest.raises(UserError, match="is not a bundle, which has a tokenizer; add --tokenizer"):
            parse(parser, [*needed, checkpoint])


def test_arguments_after_two_dashes_go_to_fairseq():
    parsed = options("--learning-rates", "1e-4", "3", "--", "--lr", "-1")
    assert (parsed["learning_rates"], parsed["extra"]) == ([1e-4, 3.0], ["--lr", "-1"])


def test_learning_rates_with_the_same_name_are_refused():
    with pytest.raises(UserError, match="--learning-rates: 1e-05 is given twice"):
        options("--learning-rates", "1e-5", "2e-5", "1.0000001e-5")


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1"])
def test_invalid_learning_rates_are_named(rate, capsys):
    with pytest.raises(SystemExit):
        options("--learning-rates", "1e-4", rate)
    assert f"argument --learning-rates: {rate} is not a number above zero" in capsys.readouterr().err

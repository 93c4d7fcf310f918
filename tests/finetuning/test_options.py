"""Command-line options shared by all fine-tuning commands."""

import argparse
from pathlib import Path

import pytest

from mae_lm_fairseq.finetuning.options import add_options, parse, value_of
from mae_lm_fairseq.utils.errors import UserError

NEEDED = ["--checkpoint", "none", "--tokenizer", "data-bin", "--out", "out"]


def options(*words, **kind):
    parser = argparse.ArgumentParser()
    add_options(parser, "none")
    return parse(parser, [*NEEDED, *words], **kind)


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
    parsed = options("--learning-rates", "1e-4", "3", "--", "--clip-norm", "-1")
    assert (parsed["learning_rates"], parsed["extra"]) == ([1e-4, 3.0], ["--clip-norm", "-1"])


@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("--lr", "--learning-rates"),
        ("--seed", "--seeds"),
        ("--finetune-from-model", "--checkpoint"),
        ("--restore-file", "--checkpoint"),
    ],
)
def test_options_of_fairseq_that_contradict_the_sweep_are_refused(option, own):
    for words in ([option, "1"], [f"{option}=1"]):
        with pytest.raises(UserError, match=f"^{option} after -- would contradict the sweep's own; use {own}$"):
            options("--", "--clip-norm", "1", *words)


def test_options_of_validation_are_refused_where_runs_are_not_validated():
    for words in (["--patience", "3"], ["--best-checkpoint-metric=loss"]):
        assert options("--", *words)["extra"] == words
        with pytest.raises(UserError, match=r"^--(patience|best-checkpoint-metric) after -- has no effect"):
            options("--", *words, validates=False)


def test_the_last_value_of_an_option_counts():
    words = ["--patience", "3", "--metric=loss", "--metric", "f1"]
    assert (value_of("--metric", words), value_of("--metric", words[:3])) == ("f1", "loss")
    assert value_of("--metric", words[:2]) is value_of("--metric", ()) is None


def test_learning_rates_with_the_same_name_are_refused():
    with pytest.raises(UserError, match="--learning-rates: 1e-05 is given twice"):
        options("--learning-rates", "1e-5", "2e-5", "1.0000001e-5")


@pytest.mark.parametrize("rate", ["nan", "inf", "0", "-1"])
def test_invalid_learning_rates_are_named(rate, capsys):
    with pytest.raises(SystemExit):
        options("--learning-rates", "1e-4", rate)
    assert f"argument --learning-rates: {rate} is not a number above zero" in capsys.readouterr().err

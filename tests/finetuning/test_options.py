"""Options shared by all fine-tuning commands."""

from pathlib import Path

import pytest

from mae_lm_fairseq.finetuning.options import FinetuningOptions, SquadOptions, value_of
from mae_lm_fairseq.finetuning.sweep import number_of_updates
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.errors import UserError

NEEDED = ["mae_lm_tiny", "--data-bin", "data-bin", "--out", "out"]


def options(*words, kind=FinetuningOptions):
    return parse(kind, [*NEEDED, *words], None, "mae-lm finetune")


def test_the_tokenizer_is_that_of_a_bundle_unless_named(tmp_path):
    (tmp_path / "checkpoint.pt").touch()
    bundle = FinetuningOptions(model=tmp_path, out=Path("out"))
    assert bundle.tokenizer == tmp_path
    assert FinetuningOptions(model=tmp_path, data_bin=Path("data-bin"), out=Path("out")).tokenizer == Path("data-bin")
    for model in ("mae_lm_tiny", tmp_path / "checkpoint.pt"):
        with pytest.raises(UserError, match="is not a bundle, which has a tokenizer; add --data-bin"):
            print(FinetuningOptions(model=Path(model), out=Path("out")).tokenizer)


def test_arguments_after_two_dashes_go_to_fairseq():
    parsed = options("--learning-rates", "1e-4", "3", "--", "--clip-norm", "-1")
    assert (parsed.learning_rates, parsed.extra) == ((1e-4, 3.0), ("--clip-norm", "-1"))


@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("--lr", "--learning-rates"),
        ("--seed", "--seeds"),
        ("--finetune-from-model", "MODEL"),
        ("--restore-file", "MODEL"),
    ],
)
def test_options_of_fairseq_that_contradict_the_sweep_are_refused(option, own, capsys):
    for words in ([option, "1"], [f"{option}=1"]):
        with pytest.raises(SystemExit):
            options("--", "--clip-norm", "1", *words)
        assert f"error: {option} after -- would contradict the sweep's own; use {own};" in capsys.readouterr().err


def test_options_of_validation_are_refused_where_runs_are_not_validated(capsys):
    files = ("--train", "train.json", "--dev", "dev.json")
    for words in (["--patience", "3"], ["--best-checkpoint-metric=loss"]):
        assert options("--", *words).extra == tuple(words)
        with pytest.raises(SystemExit):
            options(*files, "--", *words, kind=SquadOptions)
        assert f"{words[0].partition('=')[0]} after -- has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "updates"),
    [
        ([], 3 * 32),
        (["--batch-size", "8"], 3 * 125),
        (["--batch-size=8", "--update-freq", "4"], 3 * 32),
        (["--update-freq", "2"], 3 * 16),
    ],
)
def test_epochs_are_the_recipes_whatever_the_batch_size(words, updates):
    assert number_of_updates(options("--", *words), sequences=1000, epochs=3, batch_size=32) == updates
    limited = options("--max-updates", "50", "--", *words)
    assert number_of_updates(limited, sequences=1000, epochs=3, batch_size=32) == min(50, updates)


@pytest.mark.parametrize("words", [["--batch-size", "0"], ["--batch-size=many"], ["--update-freq", "4,2"]])
def test_batches_of_no_size_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        options("--", *words)
    assert f"error: {' '.join(words).replace('=', ' ')} after -- is no positive integer" in capsys.readouterr().err


def test_the_last_value_of_an_option_counts():
    words = ["--patience", "3", "--metric=loss", "--metric", "f1"]
    assert (value_of("--metric", words), value_of("--metric", words[:3])) == ("f1", "loss")
    assert value_of("--metric", words[:2]) is value_of("--metric", ()) is None


def test_learning_rates_with_the_same_name_are_refused(capsys):
    with pytest.raises(SystemExit):
        options("--learning-rates", "1e-5", "2e-5", "1.0000001e-5")
    assert "--learning-rates 1e-05 is given twice" in capsys.readouterr().err

"""Sweeps: options after ``--``, number of updates, keys of runs, statistics over seeds, and the best run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mae_lm_fairseq.finetuning import sweep as sweeps
from mae_lm_fairseq.finetuning.adapter import TaskSetup
from mae_lm_fairseq.finetuning.driver import ADAPTERS
from mae_lm_fairseq.finetuning.options import (
    ClassificationOptions,
    FinetuningOptions,
    SquadOptions,
    TaggingOptions,
)
from mae_lm_fairseq.finetuning.recipes import FOR_SMALL_MODELS, Recipe
from mae_lm_fairseq.finetuning.results import report_text, summarise, summary_cell
from mae_lm_fairseq.finetuning.squad import adapter as squad
from mae_lm_fairseq.finetuning.start import recipe_for
from mae_lm_fairseq.finetuning.sweep import Selection, Sweep, keep_best_checkpoint, select
from mae_lm_fairseq.finetuning.tagging import adapter as tagging
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.trained.opening import describe_random
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.errors import UserError
from tests.support.answering import write_squad
from tests.support.tagging import sentences, write_columns, write_tokenizer

NEEDED = ["mae_lm_tiny", "--data-bin", "data-bin", "--out", "out"]


def options(*words):
    return parse(FinetuningOptions, [*NEEDED, *words], None, "mae-lm finetune")


@pytest.fixture(scope="module")
def data_bin(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


def sweep_of(chosen, tokenizer):
    setup = TaskSetup(
        content={},
        data=tokenizer,
        sequences=1000,
        recipe=Recipe((1e-5,), batch_size=32, weight_decay=0.1, epochs=3),
        settings={"task": {"_name": "sentence_prediction"}, "criterion": {"_name": "sentence_prediction"}},
        inputs={},
        evaluate=len,
        selection="score",
    )
    return Sweep(chosen, describe_random("mae_lm_tiny"), open_tokenizer(tokenizer), setup)


CONTRADICTING = (
    "--lr 1",
    "--seed=1",
    "--finetune-from-model a",
    "--restore-file=a",
    "-a mae_lm",
    "--task masked_lm",
    "--train-file a",
    "--tokens-per-sample 64",
    "--required-batch-size-multiple 8",
    "--save-dir a",
    "--no-save",
    "--no-last-checkpoints",
)


@pytest.mark.parametrize("words", map(str.split, CONTRADICTING))
def test_options_of_fairseq_that_contradict_the_sweep_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        options("--", "--clip-norm", "1", *words)
    assert "after -- contradicts what the sweep decides on" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["--update-freq 2,1", "--update-freq 0", "--max-update 0", "--max-tokens 1e3", "--max-sentences=0"]
)
def test_numbers_on_which_the_updates_depend_are_checked_before_the_work(words, capsys):
    with pytest.raises(SystemExit):
        options("--", *words.split())
    assert "must be one number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "updates"),
    [
        ([], 3 * 32),
        (["--batch-size", "8"], 3 * 125),
        (["--batch-size=8", "--update-freq", "4"], 3 * 32),
        (["--update-freq", "2"], 3 * 16),
        (["--batch-size", "8", "--batch-size", "32"], 3 * 32),
        (["--max-sentences", "8"], 3 * 125),
        (["--max-sentences", "32", "--batch-size=8"], 3 * 125),
    ],
)
def test_epochs_are_the_recipes_whatever_the_batch_size(words, updates, data_bin):
    assert sweep_of(options("--", *words), data_bin).updates == updates
    assert sweep_of(options("--max-updates", "50", "--", *words), data_bin).updates == min(50, updates)


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        ("", "32 sequences"),
        ("--batch-size 8 --update-freq 3", "24 sequences"),
        ("--distributed-world-size 2 --update-freq 2", "128 sequences"),
        ("--batch-size 4000", "1000 sequences"),  # all of an epoch
        ("--max-tokens 500", "at most 500 tokens and 32 sequences"),
        ("--max-tokens 500 --update-freq 3 --batch-size 8", "at most 1,500 tokens and 24 sequences"),
    ],
)
def test_the_report_states_the_batch_of_the_training(words, batch, data_bin):
    grid = {"1e-05": {"score": summarise([1.0])}}
    content = sweep_of(options("--", *words.split()), data_bin).content(Selection(1e-5, None, {}, grid))
    report = report_text({"task": "RTE", "data": {}, **content}, "score", hidden_suffixes=(), ending="")
    assert f" updates of {batch}. " in report


def test_base_models_use_the_settings_of_the_papers():
    for published in (squad.ROBERTA_ON_SQUAD, tagging.BERT):
        names = ("mae_lm_base", "mae_lm", "mae_lm_roberta_large", "mae_lm_roberta_small")
        recipes = [recipe_for(describe_random(name), published) for name in names]
        assert recipes == [published] * 3 + [FOR_SMALL_MODELS]
    assert squad.ROBERTA_ON_SQUAD.learning_rates == (1.5e-5,)
    assert tagging.BERT.learning_rates == (2e-5, 3e-5, 5e-5)


def write_table(path, label):
    path.write_text(f"text\tlabel\na cat\tx\na dog\ty\na bird\t{label}\n")
    return path


def test_any_other_file_or_option_gives_another_run(data_bin, tmp_path):
    """The name of a run's directory has a hash of what it depends on. A test file does not count."""
    shared = {
        "model": Path("mae_lm_tiny"),
        "data_bin": data_bin,
        "out": tmp_path / "out",
        "seeds": 1,
        "learning_rates": (1e-3,),
    }
    tables = [write_table(tmp_path / f"{label}.tsv", label) for label in "xy"]
    questions = [write_squad(tmp_path / f"{people}.json", people=people) for people in (2, 3)]
    words = [write_columns(tmp_path / f"{seed}.conll", sentences(20, seed)) for seed in (1, 2)]
    kinds = [
        (ClassificationOptions, tables, {"text": "text", "label": "label"}, {}),
        (SquadOptions, questions, {}, {"doc_stride": 5, "tokens_per_sample": 100}),
        (TaggingOptions, words, {"column": "2"}, {}),
    ]

    def run_of(chosen):
        start, tokenizer = describe_random("mae_lm_tiny"), open_tokenizer(data_bin)
        setup = ADAPTERS[type(chosen)](chosen).prepare(start, tokenizer, Products(chosen.out, "a command", ()))
        [[run]] = Sweep(chosen, start, tokenizer, setup).runs().values()
        return run.result.parent.name

    for kind, (file, other), more, further in kinds:
        chosen = kind(train=file, dev=file, **more, **shared)
        known = {run_of(chosen)}
        assert {run_of(chosen)} == known
        if "test" in kind.__dataclass_fields__:
            assert {run_of(replace(chosen, test=other))} == known
        changes = {"train": other, "dev": other, "max_updates": 1, "threads": 2, "extra": ("--dropout", "0"), **further}
        known |= {run_of(replace(chosen, **{name: value})) for name, value in changes.items()}
        assert len(known) == 1 + len(changes)


def test_a_summary():
    summary = summarise([70.0, 60.0, 80.0, 75.0])
    assert summary["median"] == 72.5
    assert summary["std"] == pytest.approx(np.std(summary["values"], ddof=1))
    assert summary_cell(summary) == "72.5 (71.2 ± 8.5)"
    assert summary_cell(summarise([70.0])) == "70.0 (one seed)"


def test_the_learning_rate_with_the_best_median_and_its_best_run_are_selected(data_bin):
    runs = sweep_of(options("--learning-rates", "1e-5", "3e-5", "2e-5", "--seeds", "3"), data_bin).runs()
    scores = [50.0, 90.0, 51.0, 60.0, 61.0, 61.0, 70.0, 61.0, 1.0]
    selection = select(runs, [{"score": value} for value in scores], "score")
    assert (selection.rate, selection.run.name) == (2e-5, "lr2e-05-seed1")  # the lowest rate of a tie
    assert selection.metrics == {"score": 70.0}
    assert list(selection.grid) == ["1e-05", "3e-05", "2e-05"]
    assert json.loads(json.dumps(selection.grid["1e-05"]["score"])) == summarise(scores[:3])
    selection = select({3e-5: runs[3e-5]}, [{"score": value} for value in scores[3:6]], "score")
    assert selection.run.name == "lr3e-05-seed2"


def test_the_best_checkpoint_of_a_run_is_kept_whatever_fails(data_bin, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError("No space left")

    [[run]] = sweep_of(replace(options("--seeds", "1"), out=tmp_path), data_bin).runs().values()
    assert run.clean_up is keep_best_checkpoint
    run.clean_up(run)  # changes nothing: its checkpoints have been removed
    kept = run.result.parent / "checkpoints" / "checkpoint_best.pt"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"damaged")
    kept.with_name("checkpoint_last.pt").touch()
    with pytest.raises(UserError, match=f"cannot read the checkpoint {kept}: it is damaged"):
        run.clean_up(run)
    assert kept.with_name("checkpoint_last.pt").exists()
    torch.save({"model": {}, "cfg": {}, "last_optimizer_state": {}}, kept)
    monkeypatch.setattr(sweeps, "save_checkpoint", fail)
    with pytest.raises(OSError, match="No space left"):
        run.clean_up(run)
    assert [*kept.parent.iterdir()] == [kept]

"""``mae-lm adapt``: from a stock directory of transformers to another one, killed and resumed in between."""

import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from mae_lm_fairseq.core.config import RelativeBucketing
from mae_lm_fairseq.study.adapt_report import report
from mae_lm_fairseq.text.tables import write_table
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.utils.files import read_json
from tests.support import words_of
from tests.support.commands import run_verb
from tests.support.comparisons import assert_equal
from tests.support.exports import pretrained
from tests.support.fairseq_commands import refusal
from tests.support.families import stock_model, stock_states
from tests.support.processes import fork, kill_with_children, runs_in_children, wait_for
from tests.support.refusals import refused
from tests.support.tokenizers import make, paragraphs

FAST = "--updates 20 --learning-rate 1e-2 --batch-size 512 --tokens-per-sample 32"


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> dict[str, Path]:
    """Save a random masked language model of each family with its tokenizer, as transformers does."""
    directory = tmp_path_factory.mktemp("stock")
    for family in FAMILIES:
        stock_model(directory / family, family, initializer_range=0.02)
    return {family: directory / family for family in FAMILIES}


def arguments(model, text, out, *more):
    splits = ["--train", text / "train.jsonl", "--valid", text / "valid.jsonl", "--text-field note"]
    return words_of(model, *splits, "--out", out, FAST, *more)


def main(words: list[str]) -> None:
    run_verb("adapt", *words)


def test_a_stock_directory_is_adapted_and_a_killed_run_resumes(stock, text, tmp_path, capfd):
    command, out = arguments(stock["bert"], text, tmp_path / "out", "--freeze-encoder-updates 2"), tmp_path / "out"
    (out / "data-bin/foreign").mkdir(parents=True)
    with refused(r"data-bin .*made\.json"):
        main(command)
    shutil.rmtree(out)
    with runs_in_children():
        killed = fork(main, command)
        wait_for(lambda: [*out.glob("runs/*/checkpoints/checkpoint_last.pt")])
        kill_with_children(killed)
        assert not [*out.glob("runs/*/training-20.json")]
        start_again(command, out, tmp_path, stock["bert"])


def start_again(command, out, tmp_path, stock):
    """Check a killed run that is started again, a third start, which changes nothing, and another training."""
    main(command)
    [log] = out.glob("runs/*/training-20.log")
    assert re.search(r"Loaded checkpoint .*checkpoint_last\.pt \(epoch 1 @ \d+ updates\)", log.read_text())
    results = read_json(out / "results.json")
    assert results["after"]["loss"] < results["before"]["loss"] - 0.1
    assert results["after"]["predicted"] == results["before"]["predicted"]
    assert str(tmp_path) not in (out / "report.md").read_text()
    for loss, learned_nothing in ((0.0, False), (99.0, True)):
        described = report({**results, "after": {**results["after"], "loss": loss}})
        assert ("train for more updates" in described) == learned_nothing
        assert "sentence encoder" not in described
        described = report({**results, "sentence_encoder": True, "after": {**results["after"], "loss": loss}})
        assert "train for more updates" not in described
        assert "harms sentence vectors" in described
        assert "learning rate was 0.01 at\nmost, and the encoder was frozen in the first 2 updates." in described
    assert_stock(out / "stock", "BertForMaskedLM", stock)
    main(command)  # changes nothing
    assert read_json(out / "results.json") == results
    assert results["retrieval"] is None
    assert "## Retrieval" not in (out / "report.md").read_text()
    assert_retrieval(command, out, tmp_path, stock)
    main([*command, "--out", str(tmp_path / "unbroken")])
    weights, unbroken = (open_pretrained(path / "model").weights for path in (out, tmp_path / "unbroken"))
    assert_equal(weights, unbroken)


def assert_retrieval(command, out, tmp_path, stock):
    """Check that ``--questions`` measures a finished adaptation without training it, as ``mae-lm retrieval`` does."""
    texts = paragraphs(30, seed=2)
    questions = [{"_id": n, "text": " ".join(text.split()[-4:]), "corpus-id": n} for n, text in enumerate(texts)]
    write_table(tmp_path / "questions.tsv", ["_id", "text", "corpus-id"], questions)
    write_table(tmp_path / "passages.tsv", ["_id", "text"], [{"_id": n, "text": text} for n, text in enumerate(texts)])
    asked = ["--questions", str(tmp_path / "questions.tsv"), "--passages", str(tmp_path / "passages.tsv")]
    [log] = out.glob("runs/*/training-20.log")
    trained = log.stat().st_mtime_ns
    main([*command, *asked])
    assert log.stat().st_mtime_ns == trained

    measured = read_json(out / "results.json")["retrieval"]
    run_verb("retrieval", stock, out / "stock", "--labels before after", *asked, "--out", tmp_path / "r")
    of_verb = read_json(tmp_path / "r" / "results.json")["models"]
    report = (out / "report.md").read_text()
    for label in ("before", "after"):
        ndcg = [100 * of_verb[label][vector]["ndcg"]["mean"] for vector in ("mean", "first", "bag")]
        # The same vectors but for rounding, so the same ranks.
        assert [measured[label][f"{vector}_ndcg"] for vector in ("mean", "first", "bag")] == pytest.approx(
            ndcg, abs=1e-9
        )
        assert f"| {label} | {' | '.join(f'{value:.1f}' for value in ndcg)} |" in report
    assert measured["before"]["mean_ndcg"] != measured["after"]["mean_ndcg"]
    assert f"has\n{measured['after']['bm25_ndcg']:.1f}" in report


def assert_stock(directory, architecture, before):
    """Check that transformers loads the directory, with the ids of the model before, and other hidden states."""
    assert read_json(directory / "config.json")["architectures"] == [architecture]
    lines = [line[:30] for line in paragraphs(20, seed=2)]
    tokenizers = [transformers.AutoTokenizer.from_pretrained(path) for path in (directory, before)]
    ids, expected = (tokenizer(lines)["input_ids"] for tokenizer in tokenizers)
    assert ids == expected
    assert not torch.allclose(stock_states(directory, lines), stock_states(before, lines), atol=0.1)


def test_unsuitable_texts_and_objectives_are_refused(stock, text, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "empty.txt").touch()
    empty = [*arguments(stock["bert"], text, out), "--valid", str(tmp_path / "empty.txt")]
    assert "--valid: the files contain no text" in refusal(main, empty)
    changes = {"relative_buckets": 0, "relative_bucketing": RelativeBucketing.symmetric}
    write_bundle(pretrained(changes=changes, tokenizer=make("byte-bpe")), tmp_path / "symmetric")
    bundle = [*arguments(tmp_path / "symmetric", text, out), "--objective mlm"]
    assert "--objective mlm does not fit" in refusal(main, bundle)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("-- --max-update 5", "--max-update after --"),  # or else without effect
        ("--freeze-encoder-updates 20 --updates 20", "would never be trained"),
        ("--tokens-per-sample 513", "takes at most"),
        ("--questions missing.json", "missing.json"),
        ("--passages passages.tsv", "--questions"),
    ],
)
def test_what_would_not_do_what_it_says_is_refused(stock, text, tmp_path, flags, message):
    out = tmp_path / "out"
    assert message in refusal(main, [*arguments(stock["bert"], text, out), *flags.split()])
    assert not (out / "data-bin").exists()  # before the work


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "family"), [("mae_lm", "roberta"), ("3ml", "mpnet")])
def test_a_bundle_gets_a_decoder_and_options_of_fairseq_train(stock, text, tmp_path, objective, family):
    write_bundle(import_foreign(stock[family], "mae_lm_roberta"), tmp_path / "bundle")
    command = [*arguments(tmp_path / "bundle", text, tmp_path / "out"), "--objective", objective]
    main([*command, "--layer-lr-decay 0.9 -- --dropout 0"])
    results = read_json(tmp_path / "out/results.json")
    assert results["objective"] == objective
    assert results["after"]["loss"] < results["before"]["loss"]
    assert_stock(tmp_path / "out/stock", f"{FAMILIES[family].classes}Model", stock[family])
    adapted = open_pretrained(tmp_path / "out/model")
    assert adapted.config.decoder_layers == {"mae_lm": 4, "3ml": 2}[objective]
    assert adapted.config.dropout == 0
    assert adapted.about.architecture == {"mae_lm": "mae_lm_base", "3ml": "mae_lm_3ml_self_base"}[objective]

"""Encoders of ``transformers`` from random weights: training, stopped and resumed, and the way to ``transformers``."""

from pathlib import Path

import pytest

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.training.estimate import describe_length
from mae_lm_fairseq.training.pretrain import configure
from mae_lm_fairseq.training.untrained import write_untrained
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close
from tests.support.families import load_stock, save_tokenizer, stock_states
from tests.support.finetuning import train_here
from tests.support.tokenizers import paragraphs
from tests.support.wrapped import stock

FEW = [
    "--num-workers",
    "0",
    "--batch-size",
    "8",
    "--update-freq",
    "1",
    "--tokens-per-sample",
    "32",
    "--cpu",
    "--disable-validation",
    "--warmup-updates",
    "1",
    "--total-num-update",
    "4",
    "--seed",
    "7",
]
PRESETS = ("mae_lm_roberta_tiny", "mae_lm_tiny", "mae_lm_3ml_cross_tiny")
KINDS = ("bert", "modernbert", "deberta-v2")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A data-bin with the tokenizer of a BERT, whose ids differ from ours, and configurations without weights."""
    directory = tmp_path_factory.mktemp("from-scratch")
    for split, count in (("train", 100), ("valid", 20)):
        (directory / split).write_text("\n\n".join(paragraphs(count, count)) + "\n")
    save_tokenizer(directory / "tokenizer", "bert")
    words = ["--train train --valid valid --tokenizer tokenizer --destdir data-bin"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        run_verb("prepare", *words, "--max-unk-rate 1 --workers 1")
    for kind in KINDS:
        stock(kind, pad=50, initializer_range=0.02).config.save_pretrained(directory / kind)
    return directory


@pytest.fixture(scope="module")
def words_of(workspace):
    """Return ``words_of(kind, preset)``, the arguments of fairseq-train for an encoder with dropout."""

    def words_of(kind: str, preset: str) -> list[str]:
        data_bin = str(workspace / "data-bin")
        words, *_ = configure(preset, data_bin, "unused", [*FEW, "--dropout", "0.1"], None, workspace / kind)
        return words

    return words_of


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_trains_every_part(kind, preset, words_of, tmp_path):
    words = words_of(kind, preset)
    write_untrained(words, tmp_path / "untrained.pt")
    before = checkpoint(tmp_path, "untrained.pt")["model"]
    train_here(*words, "--max-update 2 --save-dir", tmp_path)
    trained = checkpoint(tmp_path)
    assert trained["optimizer_history"][-1]["num_updates"] == 2
    weights = trained["model"]
    assert all(weight.isfinite().all() for weight in weights.values())
    changed = {name.split(".")[1] for name, weight in weights.items() if not weight.equal(before[name])}
    assert changed == {"encoder", "lm_head"} | ({"decoder"} if "roberta" not in preset else set())


def test_a_training_that_is_stopped_and_resumed_equals_an_unbroken_one(words_of, tmp_path):
    """With dropout. tests/end_to_end/test_wrapped.py kills one."""
    words = words_of("modernbert", "mae_lm_tiny")
    train_here(*words, "--max-update 4 --save-dir", tmp_path / "once")
    for updates in (2, 4):
        train_here(*words, "--max-update", updates, "--save-dir", tmp_path / "twice")
    assert_same_training_state(checkpoint(tmp_path / "once"), checkpoint(tmp_path / "twice"))


@pytest.mark.parametrize("preset", PRESETS[:2])
def test_transformers_loads_what_was_trained(preset, words_of, workspace, tmp_path):
    """The same hidden states; with the preset of MLM, the class with the head."""
    train_here(*words_of("modernbert", preset), "--max-update 2 --save-dir", tmp_path)
    saved, data_bin, out = tmp_path / "checkpoint_last.pt", workspace / "data-bin", tmp_path / "stock"
    run_verb("export", saved, "--data-bin", data_bin, "--out", out)
    assert type(load_stock(out)).__name__ == ("ModernBertForMaskedLM" if "roberta" in preset else "ModernBertModel")
    line = paragraphs(1, 3)[0][:60]
    ours = MAELMModel.from_pretrained(tmp_path, "checkpoint_last.pt", data_bin).extract_features(line)
    assert_close(ours, stock_states(out, [line]), 1e-5)  # float32, in another order of sums


def test_a_dry_run_measures_and_starts_nothing(mae_lm, workspace):
    """From a configuration that is wrong, it gives one message."""
    command = ("pretrain", "mae_lm_tiny", "data-bin", "saved", *FEW, "--max-update 100 --encoder")
    done = mae_lm(*command, "bert/config.json", "--dry-run", cwd=workspace)
    assert done.returncode == 0, done.stderr
    _, length, _, printed = done.stdout.splitlines()
    assert length.endswith(" on this machine, measured by 20 updates")
    assert printed.startswith("fairseq-train data-bin ")
    _, cfg, _ = configure("mae_lm_tiny", str(workspace / "data-bin"), "saved", FEW, None, workspace / "bert")
    not_measured, *_ = describe_length(cfg, 1, [workspace / "data-bin"])
    assert not_measured.endswith("no formula describes the layers of transformers; --dry-run measures them")
    wrong = mae_lm(*command, "bert", "--tokens-per-sample 81", cwd=workspace)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.splitlines()[-1] == (
        "error: --tokens-per-sample 81 is more than the 80 positions of the model; lower it, or raise "
        "max_position_embeddings of bert"
    )
    for words in (["--encoder-layers 4"], ["--encoder-layers 4 --dry-run"]):
        wrong = mae_lm(*command, "bert", *words, cwd=workspace)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr.splitlines()[-1] == (
            "error: --encoder-layers 4 contradicts bert, where it is 3; remove the option, or change the configuration"
        )
    assert not (workspace / "saved").exists()

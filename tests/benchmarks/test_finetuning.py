"""scripts/finetune_transformers.py: the plain loop that fine-tuning is compared with."""

import runpy
import sys

import numpy as np
import pytest

from benchmark.finetuning import Settings, WordClassification
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.utils.files import read_json
from tests.support import ROOT, glue, tagging
from tests.support.huggingface import save_model

pytestmark = pytest.mark.integration  # trains


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["script", *map(str, words), "--json", str(tmp_path / "results.json")])
        runpy.run_path(str(ROOT / "scripts/finetune_transformers.py"), run_name="__main__")
        return read_json(tmp_path / "results.json")

    return run


@pytest.fixture
def tagged(tmp_path):
    """Files of labelled words, and a model that knows the words."""
    sentences = tagging.sentences(600)
    words = sorted({word for sentence in sentences for word, _ in sentence})
    model = save_model(tmp_path / "model", "bert", words, template=False)
    return (
        tagging.write_conllu(tmp_path / "upos.conllu", sentences),
        tagging.write_columns(tmp_path / "bio", sentences),
        model,
    )


@pytest.mark.parametrize(("name", "least"), [("STS-B", 60)])
def test_glue_can_be_overfitted(run, tmp_path, name, least):
    """Random labels would give 50 % and a correlation of 0."""
    task = TASKS[name]
    rows = glue.make_rows(task, 256)
    rows["dev"] = rows["train"]
    glue.write_official(tmp_path / "glue", task, rows)
    model = save_model(tmp_path / "model", "bert", glue.WORDS, template=False)
    options = ["--glue-dir", tmp_path / "glue", "--model", model, "--learning-rate", 3e-3, "--seeds", 2]
    results = run("glue", name, *options, "--max-updates", 120)
    assert results["settings"]["updates"] == min(120, task.recipe.epochs * 256 // task.batch_size)
    assert min(results["metrics"]["score"]["values"]) > least


@pytest.mark.parametrize(("file", "column", "metric"), [(0, "UPOS", "accuracy"), (1, "2", "f1")])
def test_labels_of_words_can_be_overfitted(run, tagged, file, column, metric):
    path, model = tagged[file], tagged[2]
    options = ["--train", path, "--dev", path, "--model", model, "--learning-rate", 1e-2, "--seeds", 1]
    results = run("tagging", column, *options)
    assert results["settings"]["updates"] == 76
    assert results["metrics"][metric]["values"] == results["metrics"]["score"]["values"]
    assert results["metrics"]["accuracy"]["mean"] > 95


def test_a_word_without_a_subword_is_no_entity(tagged, tmp_path):
    train = read_words(tagged[1], "2")
    dev = read_words(tagging.write_columns(tmp_path / "dev", [[("left", "O"), ("\u00a0", "O")]]), "2")
    run = WordClassification(train, dev, Settings(tagged[2], 1e-3, 1, 8, 0.01), seed=1)
    assert run.predicted(np.arange(1))[0][1] == "O"

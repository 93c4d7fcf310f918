"""``finetune classification`` and ``predict``: the numbers of GLUE's own command, resume, and every kind of model."""

import numpy as np
import pandas
import pytest

from mae_lm_fairseq import cli
from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import GlueOptions
from mae_lm_fairseq.finetuning.sentences.evaluation import DataBinSets
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, predictions
from mae_lm_fairseq.text.tables import read_table
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.utils.files import read_json
from tests.support import words_of
from tests.support.commands import run_verb
from tests.support.finetuning import run_here, save_pretrained
from tests.support.glue import make_rows, write_official, write_tokenizer
from tests.support.refusals import refused

SETTINGS = ["--learning-rates 1e-3 --seeds 2 --max-updates 20"]
TEXTS = ("text", "other")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    # Weights of this size make predictions differ from row to row after a few updates.
    path = tmp_path_factory.mktemp("pretrained") / "tiny.pt"
    return save_pretrained(path, tokenizer, "mae_lm_tiny", "--init-std 0.2")


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(finetuning, "run_all", run_here)


def write_own(directory, sets, suffix=".tsv"):
    """The sets of a task of GLUE as files of the user's own, with other names of columns."""
    directory.mkdir()
    for name, rows in sets.items():
        records = [dict(zip(TEXTS, row["sentences"], strict=False)) | {"kind": row["label"]} for row in rows]
        path = directory / f"{name}{suffix}"
        frame = pandas.DataFrame(records)
        if suffix == ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.to_csv(path, sep="\t" if suffix == ".tsv" else ",", index=False)
    return directory


def words_for(files, tokenizer, checkpoint, out, *more, suffix=".tsv", pair=False):
    words = [checkpoint, "--train", files / f"train{suffix}", "--dev", files / f"dev{suffix}"]
    words += ["--text text --label kind"]
    words += ["--text-pair other"] if pair else []
    words += ["--data-bin", tokenizer, "--out", out, *SETTINGS, *more]
    return words_of(*words)


def finetune_glue(task, sets, tokenizer, checkpoint, directory, *extra):
    start = {"model": checkpoint, "data_bin": tokenizer, "glue_dir": write_official(directory / "glue", task, sets)}
    sweep = {"seeds": 2, "max_updates": 20, "learning_rates": [1e-3], "extra": extra}
    return finetune(GlueOptions(task=task.name, out=directory / "of-glue", **start, **sweep))


def predicted_cells(model, source, out, *more):
    run_verb("predict", model, "--input", source, "--out", out, *more)
    return [row for _, row in read_table(out).rows]


def evaluated_labels(out, task, split="valid"):
    """Return the predictions of the best run's model for a split of its data-bin, computed as its evaluation does."""
    content = read_json(out / "results.json")
    of_lr = f"lr{content['learning_rate']:g}"
    scores = content["metrics"]["score"]["values"]
    [kept] = out.glob(f"runs/{of_lr}-seed{1 + int(np.argmax(scores))}-*/checkpoints/*.pt")
    sets = DataBinSets(kept, out / "data-bin")
    return kept, predictions(task, sets.logits(split))


def test_own_files_give_the_numbers_of_glue_and_predictions_those_of_the_evaluation(
    tokenizer, checkpoint, in_process, tmp_path
):
    name, suffix = "QNLI", ".csv"
    task, sets = TASKS[name], make_rows(TASKS[name], 64)
    expected = finetune_glue(task, sets, tokenizer, checkpoint, tmp_path)
    files, out = write_own(tmp_path / "files", sets, suffix), tmp_path / "own"
    test = files / f"test{suffix}"
    words = words_for(files, tokenizer, checkpoint, out, "--test", test, suffix=suffix, pair=True)
    cli.run("finetune classification", words)
    results = read_json(out / "results.json")
    for metric in ("accuracy", "score"):
        assert results["metrics"][metric] == expected["metrics"][metric]
    assert list(results["metrics"]) == ["accuracy", "f1", "matthews", "score"]
    assert f"`f1` refers to the label {task.labels[1]}." in (out / "report.md").read_text()

    # Both predictions on the test set, and those of bundle, checkpoint and evaluation on the development set.
    submitted = [line.split("\t")[1] for line in (tmp_path / "of-glue" / f"{name}.tsv").read_text().splitlines()[1:]]
    written = [row for _, row in read_table(out / f"test_predictions{suffix}").rows]
    assert [row["prediction"] for row in written] == submitted
    right = np.mean([row["prediction"] == row["kind"] for row in written])
    assert results["test_metrics"]["accuracy"] == pytest.approx(100 * right)
    kept, labels = evaluated_labels(out, task)
    names = [task.labels[label] for label in labels]
    dev = files / f"dev{suffix}"
    of_bundle = predicted_cells(out / "model", dev, tmp_path / "bundle.jsonl")
    of_checkpoint = predicted_cells(kept, dev, tmp_path / "checkpoint.jsonl", "--data-bin", out / "data-bin")
    assert of_bundle == of_checkpoint
    assert [row["prediction"] for row in of_bundle] == names
    assert len(set(names)) == 2  # a constant would prove nothing
    assert [row["text"] for row in of_bundle] == [row["sentences"][0] for row in sets["dev"]]
    for row in of_bundle:
        probabilities = {label: row[f"probability_{label}"] for label in task.labels}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert max(probabilities, key=probabilities.get) == row["prediction"]

    # A model of GLUE also knows its columns and the names of its labels.
    of_glue = predicted_cells(tmp_path / "of-glue/model", tmp_path / "glue" / name / "dev.tsv", tmp_path / "c.csv")
    assert [row["prediction"] for row in of_glue] == names


def test_scores(tokenizer, checkpoint, in_process, tmp_path):
    task, sets = TASKS["STS-B"], make_rows(TASKS["STS-B"], 64)
    sets["train"][0]["label"], sets["train"][1]["label"] = "0.000", "5.000"  # the whole range, as in the official file
    expected = finetune_glue(task, sets, tokenizer, checkpoint, tmp_path)
    files, out = write_own(tmp_path / "files", sets, ".jsonl"), tmp_path / "own"
    further = ("--", "--batch-size", task.batch_size)
    words = words_for(files, tokenizer, checkpoint, out, *further, suffix=".jsonl", pair=True)
    cli.run("finetune classification", words)
    results = read_json(out / "results.json")
    assert results["metrics"] == expected["metrics"]
    assert results["metrics"]["pearson"]["median"] != 0
    _, scores = evaluated_labels(out, task)
    rows = predicted_cells(out / "model", files / "dev.jsonl", tmp_path / "predicted.tsv")
    assert [float(row["prediction"]) for row in rows] == pytest.approx(scores.tolist(), abs=1e-4)
    assert np.std(scores) > 0
    assert list(rows[0]) == ["text", "other", "kind", "prediction"]


def test_lines_of_plain_text_and_what_predict_refuses(tokenizer, checkpoint, in_process, tmp_path):
    files = write_own(tmp_path / "files", make_rows(TASKS["SST-2"]))
    out = tmp_path / "own"
    run_verb("finetune classification", *words_for(files, tokenizer, checkpoint, out), "--max-updates 2")
    (tmp_path / "lines.txt").write_text("the cat sat\nvery bad\n")
    rows = predicted_cells(out / "model", tmp_path / "lines.txt", tmp_path / "lines.csv")
    assert [row["text"] for row in rows] == ["the cat sat", "very bad"]
    (tmp_path / "blanks.txt").write_text("\nthe cat sat\n \nvery bad\n")
    with_blanks = predicted_cells(out / "model", tmp_path / "blanks.txt", tmp_path / "blanks.csv", "--skip-malformed")
    assert [with_blanks[1], with_blanks[3]] == rows
    for row, text in ((with_blanks[0], ""), (with_blanks[2], " ")):
        assert row == dict.fromkeys(row, "") | {"text": text}
    model, lines = out / "model", tmp_path / "lines.txt"
    [kept] = out.glob("runs/lr0.001-seed1-*/checkpoints/*.pt")
    (tmp_path / "gap.txt").write_text("a cat\n\n")
    (tmp_path / "other.tsv").write_text("sentence\tprediction\na cat\tyes\n")
    write_bundle(read_checkpoint(kept, tokenizer), tmp_path / "without_labels")
    refusals = {
        "nothing: no such directory": (tmp_path / "nothing", lines, "a.csv"),
        "is a pretrained model, which has no task yet": (checkpoint, lines, "a.csv", "--data-bin", tokenizer),
        "does not know the names of its labels": (tmp_path / "without_labels", lines, "a.csv"),
        "is not a bundle; give its data-bin": (kept, lines, "a.csv"),
        "line 2: the column 'text' is missing or empty": (model, tmp_path / "gap.txt", "a.csv"),
        r"ends in \.tsv, \.csv, \.jsonl": (model, lines, "a.txt"),
        "has no column 'text'; its columns are": (model, tmp_path / "other.tsv", "a.csv"),
        "has a column 'prediction' already": (model, tmp_path / "other.tsv", "a.csv", "--text sentence"),
        "on single texts; leave it out": (model, tmp_path / "other.tsv", "a.csv", "--text-pair sentence"),
    }
    for message, (path, source, name, *more) in refusals.items():
        with refused(message):
            predicted_cells(path, source, tmp_path / name, *more)
        assert not (tmp_path / name).exists()
    with refused(r"other\.tsv"):
        predicted_cells(model, tmp_path / "other.tsv", tmp_path / "other.tsv", "--text sentence")


def test_wrong_files_are_refused_and_leave_nothing(tokenizer, checkpoint, in_process, tmp_path):
    files = write_own(tmp_path / "files", make_rows(TASKS["SST-2"]))
    words = words_for(files, tokenizer, checkpoint, tmp_path / "out")
    (files / "bad.tsv").write_text("text\tkind\na cat\t0\n\t1\n")
    refusals = {
        "--label kind is also a column of the texts": ("--text", "kind"),
        "line 3: the column 'text' is missing or empty, or is not text; fix the file": ("--test", files / "bad.tsv"),
        "No such file": ("--dev", files / "missing.tsv"),
    }
    for message, (option, value) in refusals.items():
        with refused(message):
            run_verb("finetune classification", *words, option, value)
        assert not (tmp_path / "out").exists()
    with refused(r"bad\.tsv: .*line 3"):
        run_verb("finetune classification", *words, "--dev", files / "bad.tsv")
    assert not (tmp_path / "out").exists()

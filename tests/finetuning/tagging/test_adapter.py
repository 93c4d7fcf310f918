"""In-process fine-tuning on labelled words: a memorised set, use of its model, long sentences, and refused inputs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import TaggingOptions
from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.text.word_labels import valid_bio
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.info import WordTask
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.trained.tags import Tagger
from mae_lm_fairseq.utils.errors import UserError
from tests.support.finetuning import SHAPE, run_here, train_here
from tests.support.tagging import OPTIONS, sentences, write_columns, write_conllu, write_tokenizer

pytestmark = pytest.mark.integration  # trains

# Large enough to memorise some sentences in a few seconds.
LEARN_BY_HEART = ["--encoder-layers", "2", "--dropout", "0", "--attention-dropout", "0", "--max-update", "100"]
LEARN_BY_HEART += ["--total-num-update", "150"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


@pytest.fixture
def options(three_updates, tmp_path):
    """Return options for three updates, in this process."""
    train = write_columns(tmp_path / "train.conll", sentences(20))
    dev = write_columns(tmp_path / "dev.conll", sentences(6, seed=2))
    return TaggingOptions(train=train, dev=dev, column="2", **three_updates)


@pytest.fixture(scope="module")
def memorised(tmp_path_factory, tokenizer):
    """Return the directory of a sweep that has memorised entities in BIO."""
    directory, found = tmp_path_factory.mktemp("memorised"), sentences(30)
    words = [[(word, "_") for word, _ in sentence] for sentence in found]
    options = TaggingOptions(
        train=write_columns(directory / "train.conll", found),
        dev=write_columns(directory / "dev.iob", found),
        test=write_columns(directory / "test.conll", words),
        column="2",
        model=Path("mae_lm_tiny"),
        data_bin=tokenizer,
        out=directory / "out",
        seeds=1,
        learning_rates=[1e-3],
        extra=LEARN_BY_HEART,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "run_all", run_here)
        finetune(options)
    return directory


def test_a_small_set_is_memorised_and_predictions_have_the_format_of_the_input(memorised):
    content = json.loads((memorised / "out" / "results.json").read_text())
    metrics = ("precision", "recall", "f1")
    names = [*metrics, "accuracy", *(f"{kind}: {metric}" for kind in ("person", "place") for metric in metrics)]
    assert {name: metric["values"] for name, metric in content["metrics"].items()} == {name: [100.0] for name in names}
    assert content["best_model"]["dev"]["f1"] == {"value": 100.0, "low": 100.0, "high": 100.0}
    assert list(content["best_model"]) == ["dev"]
    assert (content["start"]["from"], content["start"]["checkpoint"]) == ("random weights", None)
    for file in ("dev_predictions.iob", "test_predictions.conll"):  # the test file has no labels
        assert read_words(memorised / "out" / file, "3").labels == read_words(memorised / "dev.iob", "2").labels
    first = (memorised / "dev.iob").read_text().splitlines()[0]
    assert (memorised / "out" / "dev_predictions.iob").read_text().startswith(f"{first}\t{first.split()[1]}\n")
    text = (memorised / "out" / "report.md").read_text()
    assert "| 0.001 | f1 | 100.0 (one seed) | 100.0 |" in text
    assert "| person: f1 | 100.0 [100.0, 100.0] |" in text
    assert "| 0.001 | person: f1 |" not in text


def test_tag_gives_offsets_in_the_original_text(memorised):
    model = open_finetuned(memorised / "out" / "model")
    text = "Dr Elif  left\tOld Köln."
    found = model.tag(text)
    assert [text[tagged.start : tagged.end] for tagged in found] == [tagged.word for tagged in found]
    labels = ["B-person", "I-person", "O", "B-place", "I-place", "O"]
    assert [tagged.label for tagged in found] == labels
    assert all(1 / 5 < tagged.probability <= 1 for tagged in found)
    again = model.tag(["Dr", "Elif", "left", "Old", "Köln", "."])
    assert [tagged.label for tagged in again] == labels
    assert [tagged.start for tagged in again] == [0, 3, 8, 13, 17, 22]
    assert model.tag("") == model.tag([]) == []
    [nothing] = model.tag(["\u200b"])
    assert (nothing.start, nothing.end) == (0, 1)


def test_predict_labels_files(memorised, tmp_path, checkpoint, tokenizer):
    def labelled(name, text, *more):
        (tmp_path / name).write_text(text)
        out = tmp_path / f"labelled_{name}"
        words = [memorised / "out" / "model", "--input", tmp_path / name, "--out", out, *more]
        cli.run("predict", list(map(str, words)))
        return out.read_text()

    rows = "Old\tX\nUlm\tX\n\nleft\tX\n"
    with_labels = "Old\tX\tB-place\nUlm\tX\tI-place\n\nleft\tX\tO\n"
    assert labelled("a.iob", rows) == labelled("columns.txt", rows, "--column", "2") == with_labels
    conllu = "1\tUlm\t_\tX\t_\t_\t_\t_\t_\t_\n"
    header = "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC PREDICTION\n"
    assert labelled("b.conllu", conllu, "--column", "XPOS") == header + conllu.replace("\n", "\tB-place\n")
    assert labelled("a.txt", "Dr Elif left.\nOld Ulm\n") == (
        "Dr\tB-person\nElif\tI-person\nleft\tO\n.\tO\n\nOld\tB-place\nUlm\tI-place\n\n"
    )
    assert labelled("words.conll", "Old\nUlm\n\t\nleft\n") == "Old\tB-place\nUlm\tI-place\n\nleft\tO\n"
    refused = {"empty.txt": ("\n \n",), "empty.conll": ("",), "a.conllu": (conllu,), "--text": ("Old", "--text", "x")}
    for name, arguments in refused.items():
        with pytest.raises(UserError, match=name):
            labelled(name, *arguments)
        assert not (tmp_path / f"labelled_{name}").exists()


def test_bundle_and_checkpoint_know_labels_column_and_length(memorised, tokenizer):
    [kept] = (memorised / "out").glob("runs/*/checkpoints/*.pt")
    known = read_checkpoint(kept, tokenizer).about.finetuned_on
    assert known == WordTask("2", 512, ("B-person", "B-place", "I-person", "I-place", "O"), "BIO")
    assert open_finetuned(memorised / "out" / "model").about.finetuned_on == known
    models = (open_finetuned(kept, tokenizer), open_finetuned(memorised / "out" / "model"))
    np.testing.assert_array_equal(*(Tagger(model).logits([["Dr", "Elif"]])[0] for model in models))


def test_parts_of_speech_from_conllu(options, tmp_path, capsys):
    train = write_conllu(tmp_path / "train.conllu", sentences(30))
    options = replace(
        options, train=train, dev=train, test=train, column="UPOS", learning_rates=[3e-3], extra=LEARN_BY_HEART
    )
    content = finetune(options)
    assert content["metrics"]["accuracy"]["values"] == [100.0]
    assert content["best_model"]["test"]["accuracy"]["value"] == 100.0
    assert (options.out / "test_predictions.conllup").exists()
    assert content["task"].endswith("/train UPOS")


def test_the_last_column_is_that_of_the_training_file(options, tmp_path):
    rows = [[(word, f"NN\t{label}") for word, label in sentence] for sentence in sentences(20)]
    train = write_columns(tmp_path / "train3.conll", rows)
    test = write_columns(tmp_path / "test.conll", [[("Ulm", "NN")]])
    files = {"train": train, "dev": train, "test": test, "column": "-1"}
    content = finetune(replace(options, max_updates=None, extra=["--max-epoch", "1"], **files))
    assert list(content["best_model"]) == ["dev"]
    word, tag, label = (options.out / "test_predictions.conll").read_text().split()
    assert (word, tag) == ("Ulm", "NN")
    assert label in content["labels"]
    assert open_finetuned(options.out / "model").about.finetuned_on.column == "3"
    [kept] = options.out.glob("runs/*/checkpoints/*.pt")  # of the end of the epoch
    assert torch.load(kept, weights_only=True)["optimizer_history"][-1]["num_updates"] == 2


def test_long_sentences_are_labelled_to_their_ends(options, tmp_path):
    long = [[pair for sentence in sentences(30) for pair in sentence], *sentences(3)]
    dev = write_columns(tmp_path / "long.conll", long)
    content = finetune(replace(options, train=dev, dev=dev))
    assert content["settings"]["tokens_per_sample"] == 64
    assert content["data"]["dev"]["split_sentences"] == 1
    assert content["data"]["dev"]["windows"] > 4
    predicted = read_words(options.out / "dev_predictions.conll", "3")
    true = read_words(dev, "2")
    assert predicted.words == true.words
    labels = Tagger(open_finetuned(options.out / "model")).label(true.words)
    assert list(map(list, predicted.labels)) == list(map(valid_bio, labels))
    # Accuracy counts the model's labels, even where they are invalid.
    right = np.mean(np.equal(np.concatenate(labels), np.concatenate(true.labels)))
    assert content["metrics"]["accuracy"]["values"] == [pytest.approx(100 * right)]


def test_fairseq_train_alone(options, tmp_path):
    words = (
        f"--train-file {options.train} --valid-file {options.dev} --column 2 --save-dir {tmp_path} --arch mae_lm_tiny "
    )
    words += f"--finetune-from-model {options.model} --max-epoch 2 --lr-scheduler fixed "
    words += "--required-batch-size-multiple 1 --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric"
    train_here(options.data_bin, *OPTIONS, *SHAPE, *words.split())
    best = tmp_path / "checkpoint_best.pt"
    state = torch.load(best, weights_only=True)
    assert state["task_state"]["labels"]["scheme"] == "BIO"
    assert 0 <= state["extra_state"]["best"] <= 100
    assert [tagged.word for tagged in open_finetuned(best, options.data_bin).tag("Old Ulm")] == ["Old", "Ulm"]


def test_a_test_file_can_be_added_and_changed_after_the_training(options, monkeypatch):
    trained = finetune(options)
    results = [{name: metric["values"][0] for name, metric in trained["metrics"].items()}]
    monkeypatch.setattr(finetuning, "run_all", lambda runs, jobs, threads: results)
    for test in (options.train, options.dev):
        content = finetune(replace(options, test=test))
        assert content["metrics"] == trained["metrics"]
        predicted = read_words(options.out / "test_predictions.conll", "3")
        assert predicted.words == read_words(test, "2").words
    assert content["best_model"]["test"] == content["best_model"]["dev"] == trained["best_model"]["dev"]
    other = options.dev.rename(options.dev.with_suffix(".txt"))
    finetune(replace(options, dev=other, test=other))
    names = [f"{name}_predictions.txt" for name in ("dev", "test")]
    assert sorted(path.name for path in options.out.glob("*_predictions*")) == names


def test_every_run_can_be_scored_on_the_test_file(options, tmp_path):
    """The best run's scores are those of the file with its predictions; another test file makes other runs."""
    test = write_columns(tmp_path / "test.conll", sentences(9, seed=3))
    options = replace(options, test=test, score_runs=True, learning_rates=[1e-3, 3e-3], seeds=2)
    content = finetune(options)
    for of_rate in content["grid"].values():
        assert len(of_rate["test_f1"]["values"]) == 2
    number = int(content["predictions_by"].rpartition("seed")[2]) - 1
    scores = {name: of_metric["values"][number] for name, of_metric in content["metrics"].items()}
    for name, metric in content["best_model"]["test"].items():
        assert scores[f"test_{name}"] == pytest.approx(metric["value"], abs=1e-9)
    runs = {*options.out.glob("runs/*")}
    write_columns(test, sentences(9, seed=4))
    finetune(options)
    assert len({*options.out.glob("runs/*")}) == 2 * len(runs)


def test_labels_that_a_file_has_no_room_for_are_refused_before_the_training(options, tmp_path):
    train = tmp_path / "train.tsv"
    train.write_text("Old\tnew york\nUlm\tO\n")
    test = write_columns(tmp_path / "test.conll", [[("Ulm", "O")]])
    test.write_text(test.read_text().replace("\t", " "))
    with pytest.raises(UserError, match=r"test\.conll: the label 'new york'"):
        finetune(replace(options, train=train, dev=train, test=test))
    assert not options.out.exists()


def test_scoring_every_run_needs_labels(options, tmp_path):
    words = [[(word, "_") for word, _ in sentence] for sentence in sentences(3)]
    test = write_columns(tmp_path / "test.conll", words)
    with pytest.raises(UserError, match=r"test\.conll.*--score-runs"):
        finetune(replace(options, test=test, score_runs=True))
    with pytest.raises(ValueError, match="--score-runs"):
        replace(options, score_runs=True)

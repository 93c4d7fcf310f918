"""Preparation of every GLUE task, from both layouts to the data that fairseq's ``sentence_prediction`` reads."""

import argparse
import logging

import numpy as np
import pytest
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from mae_lm_fairseq.finetuning.sentences.adapter import make_data_bin
from mae_lm_fairseq.finetuning.sentences.data_bin import write_data_bin
from mae_lm_fairseq.finetuning.sentences.encoding import truncate
from mae_lm_fairseq.finetuning.sentences.glue_files import GlueFiles
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS, find_task
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.errors import UserError
from tests.support.glue import ALL, make_rows, write_hub, write_official, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return open_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin"))


def prepare(task, glue_dir, tokenizer, data, max_positions=64, skip_malformed=False):
    return write_data_bin(GlueFiles(task, glue_dir, skip_malformed), tokenizer, max_positions, data)


def load(task, data):
    """Set up the task as fairseq does."""
    cfg = argparse.Namespace(
        data=str(data), num_classes=task.num_classes, init_token=0, separator_token=2, no_shuffle=False,
        shorten_method="none", shorten_data_split_list="", add_prev_output_tokens=False, max_positions=64,
        regression_target=task.is_regression, classification_head_name="head", seed=1, d2v2_multi=False,
    )  # fmt: skip
    return SentencePredictionTask.setup_task(cfg)


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_fairseq_reads_what_was_in_the_files(task, tokenizer, tmp_path):
    sets = make_rows(task)
    prepare(task, write_official(tmp_path / "glue", task, sets), tokenizer, tmp_path / "data", 64)
    fairseq_task = load(task, tmp_path / "data")
    for split, official in task.splits.items():
        fairseq_task.load_dataset(split)
        dataset = fairseq_task.dataset(split)
        assert len(dataset) == len(sets[official])
        for number, row in enumerate(sets[official]):
            sample = dataset[number]
            wanted = [0]
            for sentence in tokenizer.encode_lines(row["sentences"]):
                wanted += [2] * (len(wanted) > 1) + [*sentence.tolist(), 2]
            assert sample["net_input.src_tokens"].tolist() == wanted
            if official.startswith("test"):
                assert "target" not in sample
            elif task.is_regression:
                assert np.asarray(sample["target"]).item() == pytest.approx(float(row["label"]) / 5, rel=1e-6)
            else:
                assert sample["target"].tolist() == [task.labels.index(row["label"])]


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_both_layouts_give_the_same_data(task, tokenizer, tmp_path):
    sets = make_rows(task)
    statistics = [
        prepare(task, write_official(tmp_path / "official", task, sets), tokenizer, tmp_path / "a", 64),
        prepare(task, write_hub(tmp_path / "lines", task, sets), tokenizer, tmp_path / "b", 64),
        prepare(task, write_hub(tmp_path / "lists", task, sets, as_list=True), tokenizer, tmp_path / "c", 64),
    ]
    assert statistics[0] == statistics[1] == statistics[2]
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    for other in ("b", "c"):
        assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / other / name).read_bytes() for name in names)


def test_parquet_gives_the_same_data(tokenizer, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import json as arrow_json

    task = TASKS["MRPC"]
    lines = write_hub(tmp_path / "lines", task, make_rows(task))
    folder = tmp_path / "parquet" / "mrpc"
    folder.mkdir(parents=True)
    for path in (lines / "mrpc").iterdir():
        parquet.write_table(arrow_json.read_json(path), folder / f"{path.stem}-00000-of-00001.parquet")
    statistics = [
        prepare(task, tmp_path / name, tokenizer, tmp_path / f"{name}-bin", 64) for name in ("lines", "parquet")
    ]
    assert statistics[0] == statistics[1]


def test_tasks_are_found_in_any_case():
    assert find_task("sst-2") is TASKS["SST-2"]
    with pytest.raises(UserError, match="choose one of CoLA"):
        find_task("SQuAD")


def test_long_inputs_are_truncated_and_counted(tokenizer, tmp_path):
    task = TASKS["RTE"]
    glue = write_official(tmp_path / "glue", task, make_rows(task))
    statistics, sizes = [], []
    for limit in (512, 36):
        statistics.append(prepare(task, glue, tokenizer, tmp_path / str(limit), limit)["splits"]["train"])
        fairseq_task = load(task, tmp_path / str(limit))
        fairseq_task.load_dataset("train")
        dataset = fairseq_task.dataset("train")
        sizes.append([len(dataset[row]["net_input.src_tokens"]) for row in range(12)])
    assert min(sizes[0]) < 36 < max(sizes[0])
    assert sizes[1] == [min(size, 36) for size in sizes[0]]
    assert [counts["truncated"] for counts in statistics] == [0, sum(size > 36 for size in sizes[0])]
    assert [counts["tokens"] for counts in statistics] == [sum(of) for of in sizes]


@pytest.mark.parametrize(("limit", "kept"), [(11, (4, 3)), (9, (3, 2))])  # <s> and three </s> included
def test_the_longer_sentence_of_a_pair_is_truncated(limit, kept):
    pair = [np.arange(10, 17), np.arange(20, 23)]
    shortened = truncate(pair, limit)
    assert [sentence.tolist() for sentence in shortened] == [[*pair[0][: kept[0]]], [*pair[1][: kept[1]]]]


REFUSED = {
    "has no column 'sentence1'": ("dev", lambda lines: ["index\tpremise\thypothesis\tlabel", "0\ta\tb\tentailment"]),
    "line 2 has the index 1 instead of 0": ("test", lambda lines: [lines[0], lines[2], lines[1], *lines[3:]]),
    "as predictions are assigned by row": ("test", lambda lines: [*lines, "12\tbroken"]),
}


@pytest.mark.parametrize("skip_malformed", [False, True])
@pytest.mark.parametrize("problem", REFUSED)
def test_sets_that_would_be_read_wrongly_are_refused(problem, skip_malformed, tokenizer, tmp_path):
    task = TASKS["RTE"]
    glue = write_official(tmp_path / "glue", task, make_rows(task))
    name, change = REFUSED[problem]
    path = glue / "RTE" / f"{name}.tsv"
    path.write_text("\n".join([*change(path.read_text().splitlines()), ""]))
    with pytest.raises(UserError, match=problem):
        prepare(task, glue, tokenizer, tmp_path / "data", 64, skip_malformed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["glue"]


MALFORMED_RECORDS = {
    "a number for a sentence": (
        b'{"sentence1": 5, "sentence2": "b", "label": 1}',
        "line 1: the column 'sentence1' is missing or empty, or is not text",
    ),
    "a score outside the range": (
        b'{"sentence1": "a", "sentence2": "b", "label": 5.5}',
        r"line 1: the label '5\.5' in the column 'label' is not a number from 0 to 5",
    ),
    "a number too large for a score": (
        b'{"sentence1": "a", "sentence2": "b", "label": 1%s}' % (b"0" * 400),
        "the label '10{78} in the column 'label' is not a number from 0 to 5",
    ),
    "a number too large for Python": (b'{"label": 1%s}' % (b"0" * 5000), "line 1 is not a JSON object"),
}


@pytest.mark.parametrize("kind", MALFORMED_RECORDS)
def test_malformed_records_are_named(kind, tokenizer, tmp_path):
    task = TASKS["STS-B"]
    glue = write_hub(tmp_path / "glue", task, make_rows(task), as_list=True)
    content, message = MALFORMED_RECORDS[kind]
    (glue / "stsb" / "train.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare(task, glue, tokenizer, tmp_path / "data", 64)
    assert [path.name for path in tmp_path.iterdir()] == ["glue"]


def test_malformed_rows_can_be_skipped(tokenizer, tmp_path, caplog):
    task = TASKS["RTE"]
    glue = write_official(tmp_path / "glue", task, make_rows(task))
    with open(glue / "RTE" / "train.tsv", "a") as file:
        file.write("12\tbroken\n")
    with caplog.at_level(logging.WARNING):
        statistics = prepare(task, glue, tokenizer, tmp_path / "data", 64, skip_malformed=True)
    assert "line 14: 2 columns, not 4; skipped" in caplog.text
    assert statistics["splits"]["train"] | {"tokens": 0} == {"rows": 12, "tokens": 0, "truncated": 0, "malformed": 1}


@pytest.mark.parametrize("name", ["task.json", "input0/train.bin", "input1/valid.idx", "label/train.idx"])
def test_data_that_were_damaged_since_are_named(name, tokenizer, tmp_path):
    """fairseq would end in a traceback that names no file."""
    task = TASKS["RTE"]
    write_official(tmp_path, task, make_rows(task))
    files, products = GlueFiles(task, tmp_path), Products(tmp_path / "out", "a command", ())
    data, splits = make_data_bin(products, files, tokenizer, 64)
    assert splits["train"]["rows"] == 12
    damaged = data / name
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(UserError, match=f"{damaged}( is|:) damaged"):
        make_data_bin(products, files, tokenizer, 64)


def test_missing_sets_are_named_and_unusual_row_counts_warned_about(tokenizer, tmp_path, caplog):
    task = TASKS["MNLI"]
    glue = write_official(tmp_path / "glue", task, make_rows(task))
    with caplog.at_level(logging.WARNING):
        prepare(task, glue, tokenizer, tmp_path / "data", 64)
    assert "12 rows; the official dev_mismatched has 9832" in caplog.text
    (glue / "MNLI" / "dev_mismatched.tsv").unlink()
    with pytest.raises(UserError, match=r"has no set dev_mismatched of MNLI"):
        prepare(task, glue, tokenizer, tmp_path / "again", 64)

"""Files of the user's own: formats, the task that they make, and every error by name."""

import csv
import io
import json
from datetime import date
from decimal import Decimal

import pandas
import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from mae_lm_fairseq.finetuning.options import ClassificationOptions
from mae_lm_fairseq.finetuning.sentences.own_files import OwnFiles, make_task
from mae_lm_fairseq.finetuning.sentences.rows import to_rows
from mae_lm_fairseq.text.tables import cell_text, read_table, write_table
from mae_lm_fairseq.utils.errors import UserError

ROWS = [("a cat", "yes"), ('say "hi", then go', "no"), ("a dog", "yes")]


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="")
    return path


def write_rows(directory, rows=ROWS, columns=("text", "label")):
    """The same rows in the three formats."""
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    for name in ("rows.tsv", "rows.csv", "rows.jsonl"):
        write_table(directory / name, columns, records)
    return [directory / name for name in ("rows.tsv", "rows.csv", "rows.jsonl")]


def task_of(path, regression=False, columns=("text",)):
    return make_task(read_table(path), columns, "label", regression)


def rows_of(path, labelled=True):
    return to_rows(task_of(path), read_table(path), labelled)


def test_every_format_gives_the_same_rows(tmp_path):
    paths = write_rows(tmp_path)
    assert paths[0].read_text().splitlines()[2] == 'say "hi", then go\tno'
    assert '"say ""hi"", then go",no' in paths[1].read_text()
    for path in paths:
        task, rows = task_of(path), rows_of(path)
        assert (task.labels, rows.malformed) == (("no", "yes"), [])
        assert rows.sentences == [(text,) for text, _ in ROWS]
        assert rows.labels == [1, 0, 1]


CELLS = st.text(st.sampled_from("\t\r\n\0\",'\\é😀a1 \ufeff\u2028\x85#"), max_size=5)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=4))
@settings(deadline=None, max_examples=150)
def test_what_is_written_is_read_back(suffix, rows, tmp_path_factory):
    """Or it is refused, which TSV without quotes must."""
    path, columns = tmp_path_factory.getbasetemp() / f"written{suffix}", ["text", "label", "prediction"]
    try:
        write_table(path, columns, [dict(zip(columns, row, strict=True)) for row in rows])
    except UserError:
        assert suffix == ".tsv"
        assert {*"\t\r\n\0"} & set("".join(map("".join, rows)))
        return
    expected = [columns, *map(list, rows)]
    if suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        assert [list(json.loads(line).values()) for line in lines] == expected[1:]
        frame = pandas.read_json(path, lines=True, dtype=False)
    else:
        dialect = {"quoting": csv.QUOTE_NONE, "delimiter": "\t"} if suffix == ".tsv" else {}
        with open(path, encoding="utf-8", newline="") as file:
            assert list(csv.reader(file, **dialect)) == expected
        frame = pandas.read_csv(path, dtype=str, keep_default_na=False, **dialect)
    assert [list(frame.columns), *frame.to_numpy().tolist()] == expected
    assert [list(row.values()) for _, row in read_table(path).rows] == expected[1:]


WORDS = st.sampled_from(["text", "é", "日", "😀", '"', ",", " ", "\t", "\r", "\n", "a"])
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    texts=st.lists(st.lists(WORDS, min_size=1).map("".join), min_size=2, max_size=4),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
@settings(deadline=None, max_examples=60)
def test_csv_of_any_encoding_and_line_end_is_read_as_by_pandas_or_refused(encoding, texts, end, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "encoded.csv"
    with io.StringIO(newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([["text", "label"], *([text, "x"] for text in texts)])
        path.write_bytes(file.getvalue().encode(encoding, errors="replace"))
    try:
        found = [row["text"] for _, row in read_table(path).rows]
    except UserError:
        assert encoding not in ("utf-8", "utf-8-sig")
    else:
        assert found == pandas.read_csv(path, dtype=str, keep_default_na=False)["text"].tolist()


def test_line_numbers_are_those_of_the_file(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\r\n"two\r\nlines",x\r\n"",x\r\nb,y\r\n')
    rows = rows_of(path)
    assert rows.sentences == [("two\r\nlines",), ("b",)]  # as csv and pandas read it
    assert rows.malformed == [(4, "the column 'text' is missing or empty, or is not text")]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_empty_lines_are_skipped(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write_table(path, ("text", "label"), [{"text": text, "label": text} for text in "ab"])
    write(path, path.read_text().replace("\n", "\n\n"))
    rows = rows_of(path)
    assert (rows.sentences, rows.malformed) == ([("a",), ("b",)], [])


def test_long_cells_of_csv_are_read(tmp_path):
    text = "a" * 200_000
    csv.field_size_limit(131_072)  # Python's default
    assert rows_of(write(tmp_path / "a.csv", f"text,label\n{text},x\nb,y\n")).sentences[0] == (text,)


def test_tasks_of_one_file_have_different_names(tmp_path):
    [path, *_] = write_rows(tmp_path)
    assert task_of(path).name == f"{tmp_path.name}/rows label"
    assert make_task(read_table(path), ("label",), "text", False).name == f"{tmp_path.name}/rows text"


def test_byte_order_marks_and_endings_in_capitals_are_read(tmp_path):
    path = write(tmp_path / "A.TSV", "\ufefftext\tlabel\r\na\tx\r\nb\ty\r\n")
    assert rows_of(path).sentences == [("a",), ("b",)]


KINDS = {
    "two classes": (["no", "yes"], ("accuracy",), ("f1", "matthews")),
    "three classes": (["1", "2", "3"], ("accuracy",), ("macro_f1", "matthews")),
    "scores": (["1", "2.5"], ("pearson", "spearman"), ()),
    "numbers and a word": (["1.5", "2.5", "none"], ("accuracy",), ("macro_f1", "matthews")),
    "scores and no value": (["1.5", "2.5", "nan"], ("pearson", "spearman"), ()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_decide_the_kind_of_task(kind, tmp_path):
    labels, metrics, further = KINDS[kind]
    [path, *_] = write_rows(tmp_path, [(f"text {label}", label) for label in labels])
    task = task_of(path)
    assert (task.metrics, task.also_reported) == (metrics, further)
    assert task.labels == (() if "pearson" in metrics else tuple(labels))


def test_integers_are_scores_on_request_and_go_from_0_to_1(tmp_path):
    [path, *_] = write_rows(tmp_path, [("a", "1"), ("b", "5"), ("c", "2")])
    task = task_of(path, regression=True)
    assert (task.score_range, task.num_classes, task.describe()) == ((1.0, 5.0), 1, "scores from 1 to 5")
    assert [task.to_unit(value) for value in (1.0, 2.0, 5.0)] == [0.0, 0.25, 1.0]
    assert task.from_unit(0.25) == 2.0
    write(path, "text\tlabel\na\t9\nb\thigh\n")
    rows = to_rows(task, read_table(path), labelled=True)
    assert rows.labels == [9.0]  # outside of the training file's range, as others may be
    assert rows.malformed == [(3, "the label 'high' in the column 'label' is not a number")]


def test_white_space_around_labels_makes_no_class(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,pos\nb, pos\nc,neg\nd,neg \n")
    assert task_of(path).labels == ("neg", "pos")
    assert rows_of(path).labels == [1, 1, 0, 0]


@pytest.mark.parametrize(("label", "kind"), [([0], "a list"), ({"id": 0}, "an object"), ([], "a list")])
def test_labels_that_are_several_values_are_refused(label, kind, tmp_path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}, {"text": "c", "label": label}]
    path, others = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_table(path, (), rows)
    write_table(others, (), rows[:2])
    with pytest.raises(UserError, match=rf"a\.jsonl: line 3: column 'label'.*{kind}"):
        task_of(path)
    [(line, problem)] = to_rows(task_of(others), read_table(path), labelled=True).malformed
    assert (line, kind in problem) == (3, True)


MALFORMED = {
    "the column 'text' is missing or empty, or is not text": "a\tx\n \tx\nb\ty\n",
    "the label in the column 'label' is empty": "a\tx\nb\t\nc\ty\n",
    "1 columns, not 2": "a\tx\nb\nc\ty\n",
}


@pytest.mark.parametrize("problem", MALFORMED)
def test_malformed_rows_are_named(problem, tmp_path):
    path = write(tmp_path / "a.tsv", f"text\tlabel\n{MALFORMED[problem]}")
    assert rows_of(path).malformed == [(3, problem)]


REFUSED = {
    "two columns are called 'text'": ("a.csv", "text,label,text\na,b,c\n"),
    "line 2 is not a JSON object .*Expecting value": ("a.jsonl", '{"a": "1"}\n{"a": '),
    r"line 1 is not a JSON object \(it is 5\)": ("a.jsonl", "5"),
    "line 1 is not a JSON object .*surrogates": ("a.jsonl", '{"a": "\\ud800"}'),
    "line 1 is not a JSON object .*recursion": ("a.jsonl", "[" * 100_000),
    "line 3 is not CSV": ("a.csv", 'text,label\na,b\n"c,d\n'),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_files_of_another_format_are_refused(problem, tmp_path):
    name, text = REFUSED[problem]
    with pytest.raises(UserError, match=problem):
        read_table(write(tmp_path / name, text))


def test_cells_of_json_become_text_elsewhere(tmp_path):
    write_table(tmp_path / "a.tsv", ["a", "b", "c"], [{"a": 1, "b": None}, {"c": [True, "ü"]}])
    assert (tmp_path / "a.tsv").read_text(encoding="utf-8") == 'a\tb\tc\n1\t\t\n\t\t[true, "ü"]\n'


def files_of(directory, name, content, rows=ROWS, **options):
    """Own files with a test file."""
    paths = write_rows(directory, rows, options.pop("columns", ("text", "label")))
    test, options = write(directory / name, content), {"text": "text", "label": "label"} | options
    return OwnFiles(
        ClassificationOptions(model=directory, out=directory, train=paths[0], dev=paths[0], test=test, **options)
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "text\na\nb\n"),
        ("a.tsv", "text\tlabel\na\t\nb\t \n"),
        ("a.jsonl", '{"text": "a", "label": -1}\n'),  # as in the hub's files
        ("a.json", '[{"text": "a"}]'),
        ("a.txt", "a\nb\n"),
    ],
)
def test_a_test_file_needs_no_labels(name, content, tmp_path):
    column = "sentence" if name == "a.txt" else "text"
    assert files_of(tmp_path, name, content, columns=(column, "label"), text=column).test.rows.labels == []


def test_labels_of_a_test_file(tmp_path):
    assert files_of(tmp_path, "a.tsv", "text\tlabel\na\tyes\n").test.rows.labels == [1]
    for label in ("", "-1", "maybe"):
        with pytest.raises(UserError, match=r"line 3: .*; fix the file, or remove the column 'label' to predict only"):
            files_of(tmp_path, "a.tsv", f"text\tlabel\na\tyes\nb\t{label}\n")
    assert files_of(tmp_path, "a.tsv", "text\tlabel\na\t-1\n", [("a", "1"), ("b", "-1")]).test.rows.labels == [0]


@pytest.mark.parametrize(
    ("content", "rows", "problem"),
    [
        ("text\tprediction\na\tb\n", ROWS, "'prediction'"),
        ("text\tprobability_no\na\tb\n", ROWS, "'probability_no'"),
        ("text\na\n", [("a", "tab\tin it"), ("b", "no")], r"tab\\tin it"),
    ],
)
def test_a_test_file_without_room_for_predictions_is_refused_before_the_training(content, rows, problem, tmp_path):
    write_table(tmp_path / "train.jsonl", (), [{"text": text, "label": label} for text, label in rows])
    test = write(tmp_path / "test.tsv", content)
    train = tmp_path / "train.jsonl"
    files = {"model": tmp_path, "out": tmp_path, "train": train, "dev": train, "test": test}
    with pytest.raises(UserError, match=problem):
        OwnFiles(ClassificationOptions(text="text", label="label", **files))


def test_decimals_of_a_table_are_numbers():
    """Parquet files of databases have them."""
    assert [*map(cell_text, (Decimal("0.50"), date(2026, 1, 2), 0.5, True, None))] == [
        *("0.50", "2026-01-02", "0.5", "true", "")
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None])
@pytest.mark.parametrize("labels", [(0.0, 0.5, 2.0), (0, 1), ("yes", "no")])
def test_what_is_no_value_is_no_label(tmp_path, labels, value):
    """In JSON lines and Parquet, and among numbers in text, where "nan" could be a class."""
    values = [*labels, *labels, value]
    records = [{"text": text, "label": label} for text, label in zip("abcdefg", values, strict=False)]
    paths = [tmp_path / "rows.jsonl"]
    paths[0].write_text("".join(json.dumps(record) + "\n" for record in records))
    if value is None or isinstance(labels[0], float):
        paths.append(tmp_path / "rows.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(records), paths[-1])
    if value is not None and not isinstance(labels[0], str):  # "None" is a word in a text
        paths.append(tmp_path / "rows.csv")
        write_table(paths[-1], ("text", "label"), [record | {"label": str(record["label"])} for record in records])
    for path in paths:
        task, rows = task_of(path), rows_of(path)
        if isinstance(labels[0], float):
            assert (task.labels, task.score_range) == ((), (0.0, 2.0))
        else:
            assert task.labels == tuple(sorted(map(str, labels)))
        assert len(rows.sentences) == 2 * len(labels)
        assert [line for line, _ in rows.malformed] == [2 * len(labels) + 1 + (path.suffix == ".csv")]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_line_ends_are_read_or_named(tmp_path_factory, texts, end, ends):
    path = tmp_path_factory.getbasetemp() / "rows.txt"
    for suffix, header in ((".txt", []), (".csv", ["text"]), (".tsv", ["text"])):
        path = path.with_suffix(suffix)
        content = end.join([*header, *texts]) + end * ends
        write(path, content)
        if suffix != ".csv" and "\r" in content[:-1] and "\n" not in content:
            with pytest.raises(UserError, match="lines end with CR alone"):
                read_table(path)
        else:
            assert [row["text"].removesuffix("\r") for _, row in read_table(path).rows] == texts

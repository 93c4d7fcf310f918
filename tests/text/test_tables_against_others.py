"""Tables are read as pandas, Python's csv module and the formats' own readers read them."""

import csv
import io
import json

import pandas
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mae_lm_fairseq.text.tables import cell_text, read_table
from mae_lm_fairseq.text.word_files import read_words

BOM = "\ufeff"
MISSING = ("NA", "N/A", "nan", "NaN", "null", "None", "-inf", "1", "1.0", "01", "1e5", "True", " pos", "pos ", "#")
"""Labels that a reader could take for missing values, numbers, the same label or a comment."""
SIGNS = st.sampled_from("abé東😀 \"',;#\\|-0")
CELLS = st.sampled_from(MISSING) | st.text(SIGNS, min_size=1, max_size=6).filter(str.strip)
IN_CSV = CELLS | st.text(SIGNS | st.sampled_from("\n\t"), min_size=1, max_size=6).filter(str.strip)
NAMES = st.sampled_from([("text", "label"), ("label", "text"), ("Text", "text "), ("label", "0"), ("text", "NA")])
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows(cells):
    return st.lists(st.tuples(cells, cells), min_size=1, max_size=5)


@QUICK
@given(
    names=NAMES,
    table=rows(IN_CSV),
    bom=st.sampled_from(["", BOM]),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    blank=st.booleans(),
)
def test_csv_is_that_of_pandas(tmp_path, names, table, bom, end, quoting, blank):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=end, quoting=quoting)
    writer.writerows([names, *table])
    path = tmp_path / "a.csv"
    path.write_bytes((bom + text.getvalue() + end * blank).encode())
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    ours = read_table(path)
    assert list(ours.columns) == list(frame.columns) == list(names)
    assert [cells for _, cells in ours.rows] == frame.to_dict("records")
    assert [tuple(cells.values()) for _, cells in ours.rows] == table
    assert not ours.malformed


@QUICK
@given(names=NAMES, table=rows(CELLS), bom=st.sampled_from(["", BOM]), end=st.sampled_from(["\n", "\r\n"]))
def test_tsv_is_that_of_pandas_without_quotation(tmp_path, names, table, bom, end):
    path = tmp_path / "a.tsv"
    path.write_bytes((bom + "".join("\t".join(row) + end for row in [names, *table])).encode())
    options = {"sep": "\t", "quoting": csv.QUOTE_NONE, "dtype": str, "keep_default_na": False}
    frame = pandas.read_csv(path, encoding="utf-8-sig", **options)
    ours = read_table(path)
    assert list(ours.columns) == list(frame.columns)
    assert [cells for _, cells in ours.rows] == frame.to_dict("records")


VALUES = IN_CSV | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()


@QUICK
@given(table=rows(VALUES), end=st.sampled_from(["\n", "\r\n"]), as_list=st.booleans(), is_ascii=st.booleans())
def test_json_is_that_of_its_own_reader(tmp_path, table, end, as_list, is_ascii):
    records = [dict(zip(("text", "label"), row, strict=True)) for row in table]
    lines = [json.dumps(record, ensure_ascii=is_ascii) for record in records]
    path = tmp_path / ("a.json" if as_list else "a.jsonl")
    path.write_bytes(((f"[{','.join(lines)}]" if as_list else end.join(lines)) + end).encode())
    ours = read_table(path)
    assert [cells for _, cells in ours.rows] == records
    for record in records:  # integers stay integers, and missing values are empty
        for value in record.values():
            assert cell_text(value) == ("" if value is None else value if isinstance(value, str) else json.dumps(value))


WORDS = st.sampled_from(["the", "1", "NA", "null", '"', "'s", "é", "東京", "#1", "-", "O", "_x"])
TAGS = st.sampled_from(["NOUN", "NA", "null", "nan", "1", "X"])


@QUICK
@given(
    sentences=st.lists(st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=4), min_size=1, max_size=3),
    separator=st.sampled_from(["\t", " "]),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.sampled_from(["", BOM]),
    gap=st.integers(1, 2),
)
def test_columns_of_words_are_those_that_were_written(tmp_path, sentences, separator, end, bom, gap):
    path = tmp_path / "a.conll"
    blocks = ["".join(separator.join(row) + end for row in sentence) for sentence in sentences]
    path.write_bytes((bom + (end * gap).join(blocks)).encode())
    ours = read_words(path, "2")
    assert ours.words == [tuple(word for word, _ in sentence) for sentence in sentences]
    assert ours.labels == [tuple(label for _, label in sentence) for sentence in sentences]


@QUICK
@given(
    sentences=st.lists(st.lists(st.tuples(WORDS, TAGS), min_size=1, max_size=4), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n"]),
    bom=st.sampled_from(["", BOM]),
    has_range=st.booleans(),
)
def test_conllu_is_that_of_its_own_format(tmp_path, sentences, end, bom, has_range):
    """By the format: lines of ten columns, with comments, and ranges that are no words."""
    lines = []
    for sentence in sentences:
        lines.append("# text = x")
        if has_range and len(sentence) > 1:
            lines.append("\t".join(["1-2", "joined", *"________"]))
        for number, (word, tag) in enumerate(sentence, 1):
            lines.append("\t".join([str(number), word, "_", tag, "_", "_", "0", "root", "_", "_"]))
        lines.append("")
    path = tmp_path / "a.conllu"
    path.write_bytes((bom + "".join(line + end for line in lines)).encode())
    ours = read_words(path, "UPOS")
    assert ours.words == [tuple(word for word, _ in sentence) for sentence in sentences]
    assert ours.labels == [tuple(tag for _, tag in sentence) for sentence in sentences]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_cells_of_spaces_are_cells(name, tmp_path):
    separator = {".csv": ",", ".tsv": "\t"}[name[1:]]
    (tmp_path / name).write_text(f"text{separator}label\n {separator}NA\n", encoding="utf-8")
    assert [cells for _, cells in read_table(tmp_path / name).rows] == [{"text": " ", "label": "NA"}]

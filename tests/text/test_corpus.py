"""Corpora in every format: the same documents, errors that name the record, and samples."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, strategies as st
from pyarrow import parquet

from mae_lm_fairseq.text.corpus import RecordOptions, divide, open_corpus, read_stretch, sample_corpus
from mae_lm_fairseq.utils.errors import UserError
from tests.support.refusals import refused

OPTIONS = RecordOptions()
PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: zstandard.compress(data[:99]) + zstandard.compress(data[99:]),
}


def documents(count=300, seed=0):
    generator = random.Random(seed)
    words = ["".join(generator.choices('abcé漢"\t', k=5)) for _ in range(50)]
    return [
        "\n".join(f"x{number} " + " ".join(generator.choices(words, k=8)) for _ in range(generator.randint(1, 4)))
        for number in range(count)
    ]


def table(texts, delimiter):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["id", "text"], *([n, text] for n, text in enumerate(texts))])
    return file.getvalue().encode()


def json_lines(texts):
    return "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)).encode()


TEXT_FORMATS = {
    "txt": lambda texts: "\n\n".join([*texts[:-1], f"{texts[-1]}\n"]).encode(),
    "jsonl": json_lines,
    "csv": lambda texts: table(texts, ","),
    "tsv": lambda texts: table(texts, "\t"),
}


def write(directory, kind, texts):
    """Write a corpus and return its path."""
    path = directory / f"corpus.{kind}"
    column = pa.table({"id": range(len(texts)), "text": texts})
    if kind == "parquet":
        parquet.write_table(column, path, row_group_size=7)
    else:
        name, _, packer = kind.partition(".")
        path.write_bytes(PACKERS[packer and f".{packer}"](TEXT_FORMATS[name](texts)))
    return path


def whole(files):
    """Return each file as one stretch."""
    return divide(files, 1 << 40)


def content(stretches, record_options=OPTIONS, **options):
    """Return the text of the chunks, with the blank lines that preparation adds between records and files."""
    text = b""
    for chunk in (chunk for stretch in stretches for chunk in read_stretch(stretch, record_options, **options)):
        text += b"\n" if chunk.begins_document and text and not text.endswith(b"\n\n") else b""
        text += chunk.data
    return text


KINDS = [f"{name}{packer}" for name in TEXT_FORMATS for packer in PACKERS] + ["parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_text_and_a_bounded_sample(tmp_path, kind):
    """Also when it is read in small stretches."""
    texts = documents()
    files = open_corpus([write(tmp_path, kind, texts)], OPTIONS)
    expected = TEXT_FORMATS["txt"](texts)
    assert content(whole(files), chunk_bytes=1000) == expected
    stretches = divide(files, 2000)
    assert len(stretches) > 4 or "." in kind or kind in ("csv", "tsv")
    assert content(stretches) == expected
    sample = [line for line in sample_corpus(files, OPTIONS, 10**9) if line]
    assert sample == [line for line in expected.decode().split("\n") if line]


@pytest.mark.parametrize("kind", ["jsonl.gz", "txt.gz"])
def test_the_sample_is_bounded_if_text_is_larger_than_its_compressed_size_suggests(tmp_path, kind):
    files = open_corpus([write(tmp_path, kind, ["the same line again"] * 100_000)], OPTIONS)
    sample = list(sample_corpus(files, OPTIONS, 100_000))
    assert sum(len(line.encode()) + 1 for line in sample) < 105_000


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "csv", "parquet"])
@pytest.mark.parametrize("files", [1, 40])
def test_a_small_sample_of_records_is_spread_over_one_file_or_many(tmp_path, kind, files):
    texts = documents(4000)
    for number in range(files):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number), kind, texts[4000 * number // files : 4000 * (number + 1) // files])
    sample = list(sample_corpus(open_corpus([tmp_path], OPTIONS), OPTIONS, 50_000))
    assert 30_000 < sum(len(line.encode()) + 1 for line in sample) < 75_000
    parts = {number // 400 for number, text in enumerate(texts) if set(text.split("\n")) <= set(sample)}
    assert parts == set(range(10))


def test_files_directories_and_globs_mix(tmp_path):
    for name in ("a.txt", "b.jsonl", "c/d.parquet", "c/e.txt.zst"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, name.split(".", 1)[1], [name]).rename(tmp_path / name)
    files = open_corpus([tmp_path / "[ab].*", tmp_path / "c"], OPTIONS)
    assert content(whole(files)).split() == [b"a.txt", b"b.jsonl", b"c/d.parquet", b"c/e.txt.zst"]
    with refused(r"\*\.csv"):
        open_corpus([tmp_path / "*.csv"], OPTIONS)


def test_a_record_is_one_document(tmp_path):
    text = "one\r\n\n \n\u200b\ufeff\n\uf0b7\u2066\n▁ \ufffd\ntwo\n…\n"
    (tmp_path / "a.jsonl").write_text(json.dumps({"body": text}) + "\n\n" + json.dumps({"body": " "}))
    files = open_corpus([tmp_path / "a.jsonl"], RecordOptions("body"))
    assert content(whole(files), RecordOptions("body")).decode() == "one\ntwo\n…\n"


@pytest.mark.parametrize("name", ["a.JSONL", "a.jsonlines", "a.Csv", "a.TSV", "a.Parquet", "a.jsonl.GZ"])
def test_the_case_of_a_suffix_is_ignored(tmp_path, name):
    path = write(tmp_path, name[2:].lower().replace("jsonlines", "jsonl"), ["one"]).rename(tmp_path / name)
    assert content(whole(open_corpus([path], OPTIONS))) == b"one\n"


@pytest.mark.parametrize("name", ["a.tar.gz", "a.txt"])
def test_archives_and_other_binary_files_are_refused(tmp_path, name):
    (tmp_path / "a.txt").write_text("text\n", encoding="utf-16-le")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.txt")
    with refused(f"{name}: .*NUL"):
        open_corpus([tmp_path / name], OPTIONS)


@pytest.mark.parametrize("text", ['id,text\n1,a\n2,"b\n3,c\n', 'id,text\n1,a\n2,"b\n3,"c"\n'])
def test_a_quote_that_is_not_closed_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with refused(r"a\.csv: line 3"):
        content(whole(open_corpus([tmp_path / "a.csv"], OPTIONS)))


def test_a_large_window_of_zstandard(tmp_path):
    """As of ``zstd --long=31``."""
    window = zstandard.ZstdCompressionParameters(
        window_log=31, hash_log=10, chain_log=10, search_log=1, min_match=4, target_length=0, strategy=1
    )
    compressor = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "a.txt.zst").write_bytes(compressor.compress(b"one\n") + compressor.flush())
    assert content(whole(open_corpus([tmp_path], OPTIONS))) == b"one\n"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"text"\n', r"a\.jsonl: line 3 is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', r"a\.jsonl: line 2 is not a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "a"}\n', r"a\.jsonl: line 2 has no field 'text'"),
        ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', r"line 2 has a 'text' that is not text, but None"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n', r"line 2 is not UTF-8, but has '.ud800'"),
        ("a.csv", b'text,id\n"a\nb",1\nc\n', r"a\.csv: line 4 has 1 fields, and the header 2"),
        ("a.csv", b"text\na\n\xff\n", r"a\.csv: line 3 is not UTF-8"),
    ],
)
def test_malformed_records_are_named_or_skipped_and_counted(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    stretches = whole(open_corpus([tmp_path], OPTIONS))
    with refused(message):
        content(stretches)
    if name.endswith("jsonl"):
        with refused(message):
            content(divide([tmp_path / name], 5))
    chunks = [chunk for stretch in stretches for chunk in read_stretch(stretch, RecordOptions(skip_malformed=True))]
    assert sum(chunk.malformed for chunk in chunks) == 1
    assert b"".join(chunk.data for chunk in chunks) in (b"a\n", b"a\nb\n")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_a_file_without_the_field_is_refused_even_if_malformed_records_are_skipped(tmp_path, kind):
    write(tmp_path, kind, documents(3))
    with refused("'body'.* id, text"):
        open_corpus([tmp_path], RecordOptions("body", skip_malformed=True))


@pytest.mark.parametrize("kind", ["csv", "tsv.gz", "parquet"])
def test_two_fields_of_one_name_are_refused(tmp_path, kind):
    if kind == "parquet":
        parquet.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    else:
        data = b"text,text\na,b\n" if kind == "csv" else b"text\ttext\na\tb\n"
        (tmp_path / f"a.{kind}").write_bytes(PACKERS[kind[3:]](data))
    with refused("'text'.* text, text"):
        open_corpus([tmp_path], OPTIONS)


def test_null_rows_are_named(tmp_path):
    parquet.write_table(pa.table({"text": ["a", "b", None, "c"]}), tmp_path / "a.parquet", row_group_size=2)
    for size in (1, 10**6):
        with refused(r"a\.parquet: row 3 .*'text'"):
            content(divide([tmp_path / "a.parquet"], size))


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.bz2", "a.zst"])
@given(data=st.data())
def test_damage_of_a_compressed_file_is_never_read_as_other_text(tmp_path_factory, name, data):
    """Two streams are cut anywhere, have another byte, or other bytes follow where a stream would begin."""
    path, pack = tmp_path_factory.mktemp("damaged") / name, PACKERS[Path(name).suffix]
    if name == "a.zst":  # as the program zstd does, unlike the library
        pack = zstandard.ZstdCompressor(write_checksum=True).compress
    streams = [pack(b"one\n" * 9), pack(random.Random(0).randbytes(60).hex().encode() + b"\n")]
    path.write_bytes(b"".join(streams))
    expected, valid = content(whole([path])), path.read_bytes()
    place = data.draw(st.integers(0, len(valid) - 1))
    how = data.draw(st.sampled_from(["cut", "byte", "append", "empty"]))
    damaged = {
        "cut": valid[:place],
        "byte": valid[:place] + bytes([valid[place] ^ data.draw(st.integers(1, 255))]) + valid[place + 1 :],
        "append": valid + b"text",
        "empty": b"",
    }
    path.write_bytes(damaged[how])
    try:
        assert content(whole([path])) == (b"one\n" * 9 if damaged[how] == streams[0] else expected)
    except UserError as error:
        assert f"{name}: damaged or incomplete" in str(error)  # noqa: PT017  some bytes, such as a date, mean nothing


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = write(tmp_path, "parquet", documents(200))
    path.write_bytes(path.read_bytes()[:-2000])
    with refused(r"corpus\..*: damaged"):
        open_corpus([path], OPTIONS)


@pytest.mark.parametrize("name", ["a.gz", "a.xz"])
def test_padding_between_streams_is_ignored(tmp_path, name):
    stream = PACKERS[Path(name).suffix](b"one\n")
    (tmp_path / name).write_bytes(stream + bytes(20_000) + stream + bytes(4))
    assert content(whole([tmp_path / name])) == b"one\n" * 2

"""Files of another format than their names say are recognised by every reader."""

import gzip
import io
import json
import zipfile

import pandas
import pytest

from mae_lm_fairseq.measures.minimal_pairs import read_paradigms
from mae_lm_fairseq.text.conllu import read_conllu
from mae_lm_fairseq.text.corpus import RecordOptions, open_corpus, sample_corpus
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.text.tables import read_table
from mae_lm_fairseq.text.text_samples import read_text
from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.utils.errors import UserError

FRAME = pandas.DataFrame({"text": [f"row {number}" for number in range(9)], "label": list("ababababa")})


def archive() -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("xl/workbook.xml", "<workbook/>")
        return file.getvalue()


BINARY = {
    "UTF-16": FRAME.to_csv().encode("utf-16"),
    "NUL bytes": FRAME.to_csv().encode("utf-16-le"),
    "UTF-32": FRAME.to_csv().encode("utf-32"),
    "Parquet": FRAME.to_parquet(),
    "gzip": gzip.compress(FRAME.to_csv().encode()),
    "ZIP": archive(),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}
JSON = {
    "lines": FRAME.to_json(orient="records", lines=True),
    "list": FRAME.to_json(orient="records"),
    "indented list": json.dumps(FRAME.to_dict("records"), indent=2),
    "columns": FRAME.to_json(),
}
READERS = {
    "a.tsv": read_table,
    "a.csv": read_table,
    "a.jsonl": read_table,
    "a.json": read_table,
    "a.txt": read_table,
    "words.conll": lambda path: read_words(path, "2"),
    "words.conllu": lambda path: read_words(path, "UPOS"),
    "probe.conllu": lambda path: read_conllu(path, "UPOS"),
    "pairs.txt": lambda path: read_paradigms(path.parent),
    "pairs.jsonl": lambda path: read_paradigms(path.parent),
    "plain.txt": lambda path: list(read_text(path)),
    "corpus.txt": lambda path: list(sample_corpus(open_corpus([path], RecordOptions()), RecordOptions(), 1000)),
    "corpus.csv": lambda path: open_corpus([path], RecordOptions()),
    "corpus.tsv": lambda path: open_corpus([path], RecordOptions()),
}


@pytest.mark.parametrize("name", [name for name in READERS if "json" not in name])
@pytest.mark.parametrize("kind", JSON)
def test_json_under_other_names(name, kind, tmp_path):
    (tmp_path / name).write_text(JSON[kind])
    with pytest.raises(UserError, match=name):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("kind", BINARY)
def test_what_is_no_json_of_squad(kind, tmp_path):
    (tmp_path / "a.json").write_bytes(BINARY[kind])
    with pytest.raises(
        UserError,
        match=r"a\.json(: is a pointer of Git LFS| is damaged.*; it must be JSON in SQuAD's format)",
    ):
        read_squad(tmp_path / "a.json", version_2=True)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".txt"])
def test_blank_lines_before_a_header_are_skipped(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    FRAME.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    path.write_text("\n\n" + path.read_text())
    if suffix != ".txt":
        assert [row for _, row in read_table(path).rows] == pandas.read_csv(
            path, sep="\t" if suffix == ".tsv" else ","
        ).to_dict("records")

"""Preparation: the same bytes however the text is divided, stored and encoded; resuming; what it refuses."""

import json
import os
import random
import re
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import zstandard
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset
from hypothesis import HealthCheck, given, settings, strategies as st

from mae_lm_fairseq.text import parts as parts_module, preparation
from mae_lm_fairseq.text.data_bin import check_data_bin, dictionary_fingerprint
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.preparation_options import PreparationOptions
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.utils.files import file_sha256
from tests.support.commands import run_verb
from tests.support.refusals import refused
from tests.text.test_corpus import write

PRODUCTS = {"dict.txt", "manifest.json", "sentencepiece.bpe.model"} | {
    f"{split}.{suffix}" for split in ("train", "valid") for suffix in ("bin", "idx")
}
VOCABULARY, SHARDS = 100, 3


def texts(count, seed=0):
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 6))) for _ in range(50)]
    return [
        "\n".join(" ".join(generator.choices(words, k=8)) for _ in range(generator.randint(1, 5))) for _ in range(count)
    ]


def prepare(train, valid, *options):
    """Run the command in this process."""
    machines = {"--workers", "--scheduler"}.intersection(options)
    words = ["--train", train, "--valid", valid, *([] if machines else ["--workers", 1]), *options]
    run_verb("prepare", *words)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Create a directory with two training files, a validation file, and the data-bin made from them as one part."""
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "train").mkdir()
    (directory / "train/a.txt").write_text("\n\n\n".join(texts(200)))  # its last line has no line end
    (directory / "train/b.txt").write_text("\n" + "".join(f"{text}\n\n" for text in texts(100, seed=1)))
    (directory / "valid.txt").write_text("".join(f"{text}\n\n" for text in texts(20, seed=2)))
    to = ["--destdir", directory / "data-bin", "--vocab-size", VOCABULARY]
    prepare(directory / "train", directory / "valid.txt", *to)
    return directory


@pytest.fixture
def again(corpus, tmp_path, monkeypatch):
    """Return ``again(*options, ...)``: prepare the corpus in small parts with the tokenizer of the data-bin."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 3000)
    model = corpus / "data-bin/sentencepiece.bpe.model"

    def run(*options, train=corpus / "train", valid=corpus / "valid.txt", destdir=tmp_path / "out"):
        prepare(train, valid, "--tokenizer", model, "--destdir", destdir, *options)
        return destdir

    return run


def content(directory):
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def lines_of(directory, split="train"):
    dataset = MMapIndexedDataset(str(directory / split))
    return [tuple(dataset[i].tolist()) for i in range(len(dataset))]


def documents(directory):
    read = [[]]
    for line in lines_of(directory):
        read += [] if line != (2,) else [[]]
        read[-1] += [line] if line != (2,) else []
    return [tuple(document) for document in read if document]


def test_files_manifest_and_counts(corpus):
    directory = corpus / "data-bin"
    assert {path.name for path in directory.iterdir()} == PRODUCTS
    tokenizer = SentencePieceTokenizer(directory / "sentencepiece.bpe.model")
    dictionary = Dictionary.load(str(directory / "dict.txt"))
    manifest = Manifest.read(directory / "manifest.json")
    assert len(tokenizer.pieces) + 3 == VOCABULARY
    assert len(dictionary) == VOCABULARY + 1
    assert "workers" not in manifest.options
    assert manifest.tokenizer_sha256 == tokenizer.fingerprint
    assert manifest.dictionary_sha256 == dictionary_fingerprint(dictionary.symbols)
    assert manifest.files == {name: file_sha256(directory / name) for name in PRODUCTS - {"manifest.json"}}
    tokens = np.concatenate(lines_of(directory))
    assert dictionary.count[4:] == np.bincount(tokens, minlength=len(dictionary))[4:].tolist()
    for split, count in (("train", 300), ("valid", 20)):
        statistics = manifest.splits[split]
        assert (statistics.lines, statistics.tokens_out) == check_data_bin(directory / split)
        assert statistics.tokens_in == statistics.tokens_out == sum(map(len, lines_of(directory, split)))
        assert (statistics.documents, statistics.unk, statistics.unk_rate) == (count, 0, 0)


LINES = st.lists(st.sampled_from(["", " ", "ab", "a b\r", "cdefg hij abc de", "\ufeffa"]), max_size=12)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=3), size=st.integers(1, 30))
def test_any_division_gives_the_lines_of_the_files(corpus, monkeypatch, files, size):
    """Each file begins a document: a blank line is added after one that does not end with one."""
    model = corpus / "data-bin/sentencepiece.bpe.model"
    monkeypatch.setattr(parts_module, "PART_BYTES", size)
    expected = []
    with tempfile.TemporaryDirectory() as name:
        for number, (lines, ended) in enumerate([*files, (["end"], True)]):
            data = "\n".join(lines) + "\n" * ended
            Path(name, str(number)).write_text(data, encoding="utf-8", newline="")
            kept = data.removeprefix("\ufeff").removesuffix("\n").split("\n") if data.removeprefix("\ufeff") else []
            expected += [""] if kept and expected and expected[-1].strip() else []
            expected += [line if line.strip() else "" for line in kept]
        paths = [f"{name}/{number}" for number in range(len(files) + 1)]
        Path(name, "valid").write_text("ab\n")
        texts = ((*paths,), (f"{name}/valid",))
        preparation.prepare(
            PreparationOptions(*texts, Path(name, "out"), tokenizer=str(model), max_unk_rate=1, workers=1)
        )
        encoded = open_tokenizer_path(model).encode_lines(expected)
        assert lines_of(Path(name, "out")) == [(*ids.tolist(), 2) for ids in encoded]


@pytest.mark.parametrize("options", [(), ("--shards", 2)])
def test_every_format_gives_the_same_bytes(again, tmp_path, options):
    both = texts(100, seed=5)
    expected = content(again(*options, train=write(tmp_path, "txt", both), destdir=tmp_path / "plain"))
    for kind in ("parquet", "txt.gz", "txt.xz", "jsonl", "jsonl.zst", "csv", "csv.bz2"):
        made = again(*options, train=write(tmp_path, kind, both), destdir=tmp_path / kind)
        assert content(made) == expected, kind


def test_small_parts_parts_made_apart_and_one_shard_give_the_same_bytes(corpus, again, tmp_path):
    expected = content(corpus / "data-bin")
    assert content(again()) == expected
    assert content(again("--shards", 1, destdir=tmp_path / "shards") / "shard0") == expected
    for number in (2, 1):
        again("--part", f"{number}/2", destdir=tmp_path / "apart")
    assert len(list((tmp_path / "apart/parts").glob("train-*"))) > 5
    assert content(again(destdir=tmp_path / "apart")) == expected


def test_shards_hold_the_documents_of_one_data_bin(corpus, again, tmp_path, monkeypatch):
    shards = again("--shards", SHARDS)
    by_shard = [documents(shards / f"shard{number}") for number in range(SHARDS)]
    assert sorted(chain.from_iterable(by_shard)) == sorted(documents(corpus / "data-bin"))
    assert [len(shard) for shard in by_shard] == [100] * SHARDS
    whole, total = (Manifest.read(path / "manifest.json") for path in (corpus / "data-bin", shards))
    statistics = [Manifest.read(shards / f"shard{number}/manifest.json").splits["train"] for number in range(SHARDS)]
    for name in ("documents", "lines", "tokens_in", "tokens_out", "unk"):
        counts = [getattr(splits, name) for splits in (total.splits["train"], whole.splits["train"])]
        assert counts == 2 * [sum(getattr(shard, name) for shard in statistics)]
    assert total.files == {name: file_sha256(shards / name) for name in content(shards)}
    for name in ("dict.txt", "sentencepiece.bpe.model", "valid.bin"):
        for number in range(SHARDS):
            assert (shards / f"shard{number}" / name).read_bytes() == (corpus / "data-bin" / name).read_bytes()
    monkeypatch.setattr(parts_module, "PART_BYTES", 1 << 20)
    assert content(again("--shards", SHARDS, destdir=tmp_path / "one part")) == content(shards)


@pytest.mark.parametrize("options", [["--vocab-size", 100], ["--vocab-size", 300, "--tokenizer", "byte-bpe"]])
def test_parts_share_one_trained_tokenizer(corpus, tmp_path, options):
    for name, parts in (("expected", [[]]), ("out", [["--part", "1/2"], ["--part", "2/2"], []])):
        for part in parts:
            prepare(corpus / "train", corpus / "valid.txt", "--destdir", tmp_path / name, *options, *part)
            assert len(list((tmp_path / name / "parts").glob("tokenizer-*"))) == ("--part" in part)
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def reused(output, name="train"):
    """Return how many parts were from an earlier run, and how many there are, from what the command printed."""
    numbers = re.search(rf"{name}: (\d+) of (\d+) parts are from an earlier run", output)
    return tuple(map(int, numbers.groups()))


def test_finished_parts_are_reused_unless_they_are_damaged(corpus, again, tmp_path, capsys):
    again("--part", "1/1")
    first, second, third, *others = sorted((tmp_path / "out/parts").glob("train-*"))
    tokens = bytearray((first / "tokens.bin").read_bytes())
    tokens[0] ^= 1
    (first / "tokens.bin").write_bytes(tokens)
    (second / "part.json").unlink()
    (third / "tokens.idx").unlink()
    assert content(again()) == content(corpus / "data-bin")
    assert reused(capsys.readouterr().out) == (len(others), len(others) + 3)


def test_parts_of_changed_text_are_made_again(corpus, again, tmp_path, capsys):
    shutil.copytree(corpus / "train", tmp_path / "train")
    again("--part", "1/1", train=tmp_path / "train")
    text = (corpus / "train/b.txt").read_text()
    (tmp_path / "train/b.txt").write_text(text[:-3] + "a" + text[-2:])
    changed = content(again(train=tmp_path / "train"))
    count, parts = reused(capsys.readouterr().out)
    assert 0 < count < parts - 2
    assert changed == content(again(train=tmp_path / "train", destdir=tmp_path / "expected"))


def test_malformed_records_can_be_skipped_after_a_failure(again, tmp_path, capsys):
    lines = [json.dumps({"text": text}) + "\n" for text in texts(100)]
    (tmp_path / "a.jsonl").write_text("".join(lines) + "{\n")
    with refused(r"a\.jsonl: line 101 is not JSON"):
        again(train=tmp_path / "a.jsonl")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["parts"]
    again("--skip-malformed", "--part", "1/1", train=tmp_path / "a.jsonl")
    with refused(r"a\.jsonl: line 101 is not JSON"):  # these parts lack a record
        again(train=tmp_path / "a.jsonl")
    assert not (tmp_path / "out/train.bin").exists()
    again("--skip-malformed", train=tmp_path / "a.jsonl")
    assert reused(capsys.readouterr().out)[0] > 0
    assert Manifest.read(tmp_path / "out/manifest.json").splits["train"].malformed == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == PRODUCTS


@pytest.mark.parametrize("workers", [1, 2])
def test_each_bar_ends_with_all_of_the_text(again, monkeypatch, workers):
    bars = []

    class Bar(preparation.tqdm):
        def __exit__(self, *error):
            bars.append((self.desc, self.n, self.total))
            super().__exit__(*error)

    @contextmanager
    def threads(count, scheduler):
        with ThreadPoolExecutor(count) as pool:
            yield (None if count == 1 else pool), count

    monkeypatch.setattr(preparation, "tqdm", Bar)
    monkeypatch.setattr(preparation, "open_workers", threads)
    again("--workers", workers)
    assert [name for name, _, _ in bars] == ["valid", "train"]
    assert all(done == total > 0 for _, done, total in bars)


def test_unknown_characters_are_counted_and_limited(again, tmp_path):
    (tmp_path / "train").write_text("abc def\n" * 100 + "漢字 漢\n")
    for split in ("train", "valid"):
        with refused(rf"--{split}: .*<unk>.*'漢字' \(1\), '漢' \(1\)"):
            again(**{split: tmp_path / "train"})
        assert not list((tmp_path / "out").glob("parts/train*")) or split == "train"  # valid is checked first
        shutil.rmtree(tmp_path / "out")
    statistics = Manifest.read(again("--max-unk-rate", 0.5, train=tmp_path / "train") / "manifest.json").splits["train"]
    assert statistics.unk == 2
    assert statistics.unk_rate == 2 / (statistics.tokens_out - statistics.lines)


def test_joiners_that_a_tokenizer_drops_are_counted(again, tmp_path, capsys):
    (tmp_path / "train.txt").write_text("a\u200cb a\u200db\n" * 50)
    out = again("--max-unk-rate", 1, train=tmp_path / "train.txt")
    assert "warning: the tokenizer drops 50 zero-width joiners" in capsys.readouterr().err
    assert Manifest.read(out / "manifest.json").splits["train"].lost_joiners == 50


def test_character_coverage_reaches_the_training(tmp_path):
    (tmp_path / "train").write_text("abcdefgh " * 3000 + "Ω\n")
    (tmp_path / "valid").write_text("a\n")
    for coverage, known in [(1.0, True), (0.999, False)]:
        options = ["--destdir", tmp_path / str(coverage), "--vocab-size", 16, "--character-coverage", coverage]
        prepare(tmp_path / "train", tmp_path / "valid", *options, "--max-unk-rate", 1)
        assert ("Ω" in (tmp_path / str(coverage) / "dict.txt").read_text()) == known


@pytest.mark.parametrize("name", ["train.idx", "dict.txt", "sentencepiece.bpe.model"])
def test_nothing_is_overwritten(again, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).touch()
    with refused(f"{name}: exists"):
        again()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_the_given_model_may_lie_in_the_destination(corpus, again, tmp_path):
    (tmp_path / "out").mkdir()
    model = shutil.copy(corpus / "data-bin/sentencepiece.bpe.model", tmp_path / "out")
    assert content(again("--tokenizer", model)) == content(corpus / "data-bin")


@pytest.mark.parametrize("options", [(), ("--shards", SHARDS)])
def test_a_signal_while_files_are_moved_waits_for_the_others(again, tmp_path, monkeypatch, options):
    expected = content(again(*options, destdir=tmp_path / "expected"))
    replace = os.replace

    def interrupt(source, target):
        if Path(target).name == "dict.txt" and "merged" in Path(source).parts:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupt)
    assert content(again(*options)) == expected


@pytest.fixture
def moving(again, tmp_path, monkeypatch):
    """Return the output directory of a preparation that ended when it had moved the dictionary."""
    replace = os.replace

    def fail(source, target):
        replace(source, target)
        if Path(target).name == "dict.txt" and "merged" in Path(source).parts:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            again()
    return tmp_path / "out"


def test_the_same_command_finishes_a_move(corpus, again, moving):
    assert content(again()) == content(corpus / "data-bin")
    assert {path.name for path in moving.iterdir()} == PRODUCTS


@pytest.mark.parametrize(
    ("name", "options"),
    [("another command", ["--max-unk-rate", "0.5"]), ("train.bin", []), ("dict.txt", []), ("in the journal", [])],
)
def test_a_move_does_not_replace_a_file_of_the_user(again, moving, name, options):
    """The journal may come from somebody else."""
    (moving / name).write_text("mine")
    journal = moving / ".moving.json"
    if name == "in the journal":
        journal.write_text(journal.read_text().replace('"dict.txt"', f'"{name}"'))
    with refused("exists already"):
        again(*options)
    assert (moving / name).read_text() == "mine"


def test_files_of_the_user_among_the_parts_stay(again, tmp_path):
    for name in ("mine", "train.txt"):
        (tmp_path / "out/parts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out/parts" / name).write_text("mine")
    again()
    assert sorted(path.name for path in (tmp_path / "out/parts").iterdir()) == ["mine", "train.txt"]


def test_parts_behind_a_link_are_refused(again, tmp_path):
    """The parts would be removed there in the end."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/train-00000-0123456789ab").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/parts").symlink_to(tmp_path / "victim")
    with refused("parts is a link"):
        again()
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["train-00000-0123456789ab"]


def test_what_a_killed_process_has_left_among_the_parts_is_removed(again, tmp_path):
    (tmp_path / "out/parts/.merged.partial/new").mkdir(parents=True)
    (tmp_path / "out/parts/.train-00000-0123456789ab.x1y2").mkdir()  # by an earlier version
    again()
    assert {path.name for path in (tmp_path / "out").iterdir()} == PRODUCTS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "train.txt", "valid": "linked"}, "train.txt: in --train and in --valid"),
        ({"train": "."}, "out: is in ., whose files are read as text"),
        ({"train": "./**"}, "out: is in ., whose files are read as text"),
        ({"train": "blank"}, "--train: the files contain no text"),
        ({"valid": "empty"}, "--valid: the files contain no text"),
        ({"train": "latin1"}, "latin1: line 2 is not UTF-8"),
        ({"train": "torn.txt.zst"}, "torn.txt.zst: damaged or incomplete"),
        ({"train": "few", "words": ["--shards", 5]}, "--shards 5: .* 3 documents"),
        ({"words": ["--vocab-size", 7]}, "--vocab-size: has no effect"),
    ],
)
def test_text_that_would_give_wrong_data_is_refused(again, tmp_path, monkeypatch, options, message):
    """A shard without text would end the training that reads it."""
    monkeypatch.chdir(tmp_path)
    Path("few").write_text("a b\n\n" * 3)
    Path("blank").write_text("\n \n")
    Path("empty").touch()
    Path("latin1").write_bytes(b"good\nb\xe4d\n")
    Path("torn.txt.zst").write_bytes(zstandard.compress("\n\n".join(texts(300)).encode())[:-9])
    Path("train.txt").write_text("abc\n")
    Path("linked").symlink_to("train.txt")
    words = options.pop("words", [])
    with refused(message):
        again(*words, **options)
    assert {path.name for path in tmp_path.glob("out/*")} <= {"parts"}

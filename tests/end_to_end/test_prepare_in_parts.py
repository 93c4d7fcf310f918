"""Shards, parts and their merge: the same bytes however they were made, and resuming."""

import json
import os
import random
import re
import shutil
import signal
import threading
from concurrent.futures import CancelledError
from itertools import chain
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
import zstandard
from distributed import LocalCluster
from fairseq.data.indexed_dataset import MMapIndexedDataset
from pyarrow import parquet

from mae_lm_fairseq import cli
from mae_lm_fairseq.text import parts as parts_module
from mae_lm_fairseq.text import preparation_in_parts
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.utils.errors import Interrupted, UserError
from mae_lm_fairseq.utils.locks import LOCK
from mae_lm_fairseq.utils.workers import open_executor
from tests.support.processes import fork, interrupt_moves, wait_for

SHARDS = 3
PARTS = 10


def texts(count, seed=0):
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 6))) for _ in range(50)]
    return [
        "\n".join(" ".join(generator.choices(words, k=8)) for _ in range(generator.randint(1, 5))) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Create a directory with two training files, a validation file, and a data-bin prepared in one go."""
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "train").mkdir()
    (directory / "train/a.txt").write_text("\n\n\n".join(texts(200)))  # its last line has no line end
    (directory / "train/b.txt").write_text("\n" + "".join(f"{text}\n\n" for text in texts(100, seed=1)))
    (directory / "valid.txt").write_text("".join(f"{text}\n\n" for text in texts(20, seed=2)))
    run(directory, directory / "data-bin", "--vocab-size", 100)
    return directory


def run(corpus, destdir, *options, train=None, workers=1):
    splits = ["--train", train or corpus / "train", "--valid", corpus / "valid.txt", "--destdir", destdir]
    processes = [] if {"--scheduler", "--merge"} & set(options) else ["--workers", workers]
    cli.run("prepare", [str(argument) for argument in (*splits, *processes, *options)])


@pytest.fixture
def again(corpus, monkeypatch):
    """Return ``again(destdir, *options)``: prepare the corpus with the tokenizer of the data-bin, in small parts."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 3000)
    model = corpus / "data-bin/sentencepiece.bpe.model"
    return lambda destdir, *options, **more: run(corpus, destdir, "--tokenizer", model, *options, **more)


@pytest.fixture(scope="module")
def shards(corpus, tmp_path_factory):
    """Prepare three shards as one large part."""
    directory = tmp_path_factory.mktemp("shards") / "out"
    run(corpus, directory, "--vocab-size", 100, "--shards", SHARDS)
    return directory


def parts_of(output, name="train"):
    """Return how many parts were finished and reused, from what the command printed."""
    return tuple(map(int, re.search(rf"{name}: (\d+) parts are finished, (\d+) of them", output).groups()))


def content(directory):
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def documents(directory):
    dataset = MMapIndexedDataset(str(directory / "train"))
    found, current = [], []
    for line in (*(tuple(dataset[i].tolist()) for i in range(len(dataset))), (2,)):
        if line != (2,):
            current.append(line)
        elif current:
            found.append(tuple(current))
            current = []
    return found


def test_shards_hold_the_documents_of_one_data_bin(corpus, shards):
    found = [documents(shards / f"shard{number}") for number in range(SHARDS)]
    assert sorted(chain.from_iterable(found)) == sorted(documents(corpus / "data-bin"))
    assert [len(shard) for shard in found] == [100] * SHARDS
    sizes = [(shards / f"shard{number}/train.bin").stat().st_size for number in range(SHARDS)]
    assert max(sizes) < 1.3 * min(sizes)
    whole, total = (Manifest.read(path / "manifest.json") for path in (corpus / "data-bin", shards))
    one = [Manifest.read(shards / f"shard{number}/manifest.json").splits["train"] for number in range(SHARDS)]
    assert total.splits["train"].documents == whole.splits["train"].documents == 300
    for name in ("documents", "lines", "tokens_in", "tokens_out", "unk"):
        assert sum(getattr(shard, name) for shard in one) == getattr(total.splits["train"], name)
        assert getattr(total.splits["train"], name) == getattr(whole.splits["train"], name)
    assert len(total.files) == 4 * SHARDS
    for name in ("dict.txt", "sentencepiece.bpe.model", "valid.bin"):
        for number in range(SHARDS):
            assert (shards / f"shard{number}" / name).read_bytes() == (corpus / "data-bin" / name).read_bytes()


def test_the_estimate_counts_what_every_shard_has(again, tmp_path, monkeypatch, capsys):
    """Validation text, tokenizer and dictionary are most of the size of small shards."""
    monkeypatch.setattr(parts_module, "_size", lambda count: f"{count:.0f} bytes")
    out = tmp_path / "out"
    again(out, "--shards", 16)
    preparing, kept = map(int, re.search(r"estimate: (\d+) .*preparing, (\d+) ", capsys.readouterr().out).groups())
    found = sum(path.stat().st_size for path in out.glob("shard*/*") if path.name != "manifest.json")
    assert found == pytest.approx(kept, rel=0.1)  # probes and the lengths of counts are estimates
    assert preparing > kept


def test_one_shard_and_merged_parts_equal_the_data_bin(corpus, again, tmp_path):
    again(tmp_path / "shard", "--shards", 1)
    assert content(tmp_path / "shard/shard0") == content(corpus / "data-bin")
    again(tmp_path / "parts", "--part", "1/1")
    again(tmp_path / "parts", "--merge")
    assert content(tmp_path / "parts") == content(corpus / "data-bin")


@pytest.mark.parametrize("workers", [1, 4])
def test_bytes_do_not_depend_on_workers_and_parts(again, shards, tmp_path, workers, capsys):
    again(tmp_path / "out", "--shards", SHARDS, workers=workers)
    assert parts_of(capsys.readouterr().out) == (PARTS, 0)
    assert content(tmp_path / "out") == content(shards)


def test_parts_made_apart_merge_to_the_same_bytes(again, shards, tmp_path):
    for part in ("2/3", "1/3", "2/3"):
        again(tmp_path / "out", "--shards", SHARDS, "--part", part)
    with pytest.raises(UserError, match=r"parts: \d of 10 parts are missing or damaged, the first is train-00001-"):
        again(tmp_path / "out", "--shards", SHARDS, "--merge")
    again(tmp_path / "out", "--shards", SHARDS, "--part", "3/3")
    again(tmp_path / "out", "--shards", SHARDS, "--merge")
    assert content(tmp_path / "out") == content(shards)


@pytest.mark.parametrize("options", [["--vocab-size", 100], ["--vocab-size", 300, "--tokenizer", "byte-bpe"]])
def test_parts_share_one_trained_tokenizer(corpus, tmp_path, options):
    run(corpus, tmp_path / "expected", *options)
    for part in ("1/2", "2/2"):
        run(corpus, tmp_path / "out", *options, "--part", part)
    assert len(list((tmp_path / "out/parts").glob("tokenizer-*"))) == 1
    run(corpus, tmp_path / "out", *options, "--merge")
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def test_every_format_gives_the_same_shards(corpus, again, tmp_path):
    both = texts(100, seed=5)
    (tmp_path / "a.txt").write_text("\n\n".join(both) + "\n")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in both)
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    parquet.write_table(pa.table({"text": both}), tmp_path / "a.parquet", row_group_size=10)
    results = {}
    for name in ("a.txt", "a.jsonl.zst", "a.parquet"):
        again(tmp_path / "out" / name, "--shards", 2, train=tmp_path / name)
        results[name] = content(tmp_path / "out" / name)
    assert all(result == results["a.txt"] for result in results.values())


def test_finished_parts_are_reused_after_their_checksum(again, shards, tmp_path, capsys):
    for part in ("1/2", "2/2"):
        again(tmp_path / "out", "--shards", SHARDS, "--part", part)
    first, second, third, *_ = sorted((tmp_path / "out/parts").glob("train-*"))
    tokens = bytearray((first / "tokens.bin").read_bytes())
    tokens[0] ^= 1
    (first / "tokens.bin").write_bytes(tokens)
    (second / "part.json").unlink()
    (third / "tokens.idx").unlink()
    again(tmp_path / "out", "--shards", SHARDS)
    assert parts_of(capsys.readouterr().out) == (PARTS, PARTS - 3)
    assert content(tmp_path / "out") == content(shards)


def test_parts_of_changed_text_are_made_again(corpus, again, tmp_path, capsys):
    shutil.copytree(corpus / "train", tmp_path / "train")
    again(tmp_path / "out", "--part", "1/1", train=tmp_path / "train")
    text = (corpus / "train/b.txt").read_text()
    (tmp_path / "train/b.txt").write_text(text[:-3] + "a" + text[-2:])
    capsys.readouterr()
    again(tmp_path / "out", "--shards", "1", train=tmp_path / "train")
    parts, reused = parts_of(capsys.readouterr().out)
    assert 0 < reused < parts - 2


def test_malformed_records_can_be_skipped_after_a_failure(corpus, again, tmp_path, capsys):
    lines = [json.dumps({"text": text}) + "\n" for text in texts(100)]
    (tmp_path / "a.jsonl").write_text("".join(lines) + "{\n")
    with pytest.raises(UserError, match=r"a\.jsonl: line 101 is not JSON"):
        again(tmp_path / "out", "--shards", 2, train=tmp_path / "a.jsonl")
    again(tmp_path / "out", "--shards", 2, "--skip-malformed", train=tmp_path / "a.jsonl")
    assert Manifest.read(tmp_path / "out/manifest.json").splits["train"].malformed == 1
    assert "skipped 1 malformed records" in capsys.readouterr().out
    assert not (tmp_path / "out/parts").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--part", "1/2", "--merge"], "--part and --merge cannot be given together"),
        (["--merge"], "no part has been made with these options and this text; use --part first"),
        (["--merge", "--workers", 2], "--workers 2: does nothing with --merge, which encodes no text; remove it"),
        (["--merge", "--scheduler", "nowhere://x"], "--scheduler nowhere://x: does nothing with --merge"),
        (["--shards", 250, "--vocab-size", 7], "has 100 pieces, not --vocab-size 7"),
        (["--shards", 2, "--scheduler", "tcp://127.0.0.1:1"], "--scheduler tcp://127.0.0.1:1: cannot be reached"),
        (["--shards", 2, "--scheduler", "nowhere://x"], "--scheduler nowhere://x: cannot be reached"),
        (["--scheduler", "nowhere://x", "--workers", 2], "--workers 2: does nothing with --scheduler, whose cluster"),
        (["--shards", 2, "--train", "torn.txt.zst"], "torn.txt.zst: damaged or incomplete .zst file"),
        (["--shards", 2, "--train", "a.jsonl", "--text-field", "body"], "a.jsonl: has no field 'body'"),
        (["--shards", 2, "--train", "*.csv"], "no file matches"),
    ],
)
def test_user_errors_have_messages_and_leave_no_data_bin(again, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mae_lm_fairseq.utils.workers._SECONDS_TO_CONNECT", 1)
    Path("torn.txt.zst").write_bytes(zstandard.compress("\n\n".join(texts(300)).encode())[:-9])
    Path("a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=message):
        again(tmp_path / "out", *options)
    assert not list(tmp_path.glob("out/*[!parts]*"))
    assert "torn" in message or not (tmp_path / "out").exists()


def test_an_empty_validation_text_is_found_before_the_training_text_is_encoded(again, tmp_path, monkeypatch):
    (tmp_path / "empty.txt").touch()
    made = []
    make = preparation_in_parts._make
    monkeypatch.setattr(preparation_in_parts, "_make", lambda name, *rest: made.append(name) or make(name, *rest))
    with pytest.raises(UserError, match="--valid: the files contain no text"):
        again(tmp_path / "out", "--shards", 2, "--valid", tmp_path / "empty.txt")
    assert made == ["valid"]


@pytest.mark.parametrize(("count", "shards"), [(1, 2), (1, 3), (2, 3), (2, 5), (4, 5), (3, 200)])
def test_more_shards_than_documents_are_refused(again, tmp_path, count, shards):
    (tmp_path / "a.txt").write_text("a b\n\n" * count)
    with pytest.raises(
        UserError, match=f"--shards {shards}: the text has only {count} documents; use fewer shards, or"
    ):
        again(tmp_path / "out", "--shards", shards, train=tmp_path / "a.txt")


def test_a_merge_that_is_too_early_leaves_running_jobs_alone(again, tmp_path):
    again(tmp_path / "out", "--part", "1/1")
    parts = tmp_path / "out/parts"
    for record in parts.glob("*/part.json"):
        record.parent.rename(parts / f".{record.parent.name}.unfinished")
    (tmp_path / "latin1").write_bytes(b"b\xe4d\n")
    before = content(tmp_path)
    for options in (["--merge"], ["--shards", 1, "--valid", tmp_path / "latin1"]):
        with pytest.raises(UserError):
            again(tmp_path / "out", *options)
        assert content(tmp_path) == before


def test_unknown_characters_are_refused_before_the_merge(again, tmp_path):
    (tmp_path / "a.txt").write_text("漢字 漢\n")
    with pytest.raises(UserError, match=r"--train: .*% of the tokens are <unk>, .*'漢' \(2\), '字' \(1\)"):
        again(tmp_path / "out", "--shards", 1, train=tmp_path / "a.txt")


@pytest.mark.integration
@pytest.mark.parametrize("sent", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_killed_run_resumes(again, corpus, tmp_path, sent, capfd):
    large = tmp_path / "train.txt"
    large.write_text("\n\n".join(texts(1000) * 4))
    again(tmp_path / "expected", "--shards", SHARDS, train=large)
    process = fork(again, tmp_path / "out", "--shards", SHARDS, train=large, workers=2)
    wait_for(lambda: len(list((tmp_path / "out/parts").glob("train-*/part.json"))) > 5)
    process.kill() if sent == signal.SIGKILL else process.terminate()
    process.join(60)
    output = capfd.readouterr()
    assert sent == signal.SIGKILL or "finished parts are kept in" in output.err
    assert {path.name for path in (tmp_path / "out").iterdir()} - {LOCK} == {"parts"}
    kept = len(list((tmp_path / "out/parts").glob("train-*/part.json")))
    again(tmp_path / "out", "--shards", SHARDS, train=large)
    assert parts_of(capfd.readouterr().out)[1] >= kept  # a worker may have finished one more
    assert content(tmp_path / "out") == content(tmp_path / "expected")


@pytest.mark.integration
@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dask_cluster_gives_the_same_bytes(again, tmp_path, kill, capsys):
    """Three worker processes; one of them is killed in the middle."""
    large = tmp_path / "train.txt"
    large.write_text("\n\n".join(texts(1000) * (5 if kill else 1)))
    again(tmp_path / "expected", "--shards", SHARDS, train=large)
    parts, _ = parts_of(capsys.readouterr().out)
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        killer = threading.Thread(target=kill_a_worker, args=(cluster, tmp_path / "out/parts"))
        if kill:
            killer.start()
        again(tmp_path / "out", "--shards", SHARDS, "--scheduler", cluster.scheduler_address, train=large)
        if kill:
            killer.join()
            assert parts_of(capsys.readouterr().out)[0] == parts
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def kill_a_worker(cluster, parts):
    wait_for(lambda: len(list(parts.glob("train-*/part.json"))) > 3)
    os.kill(cluster.workers[1].pid, signal.SIGKILL)


def test_a_lost_scheduler_is_reported(monkeypatch):
    monkeypatch.setattr("distributed.Client", MagicMock())
    with pytest.raises(UserError, match="tcp://x:1: the connection was lost"), open_executor(1, "tcp://x:1"):
        raise CancelledError


def test_a_signal_between_the_shards_waits_for_all(again, shards, tmp_path, monkeypatch):
    interrupt_moves(monkeypatch)
    again(tmp_path / "out", "--shards", SHARDS)
    assert content(tmp_path / "out") == content(shards)


def test_an_interruption_is_reported_with_the_parts(again, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mae_lm_fairseq.text.preparation_in_parts._merge", interrupt)
    with pytest.raises(SystemExit, match=r"11 finished parts are kept in .*; the same command resumes"):
        again(tmp_path / "out", "--shards", 1)
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_an_interruption_after_the_merge_is_reported(again, tmp_path, monkeypatch):
    """The same command would refuse the complete data-bins."""

    def interrupt(path, **options):
        if Path(path).name == "parts":
            raise KeyboardInterrupt
        rmtree(path, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(SystemExit, match=r"interrupted; the result is complete; remove .*/out/parts$"):
        again(tmp_path / "out", "--shards", 1)
    assert Manifest.read(tmp_path / "out" / "manifest.json").files

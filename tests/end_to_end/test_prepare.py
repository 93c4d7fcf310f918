"""Preparation with worker processes, Dask, kills, and fairseq's own programs."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sentencepiece
import zstandard
from distributed import LocalCluster
from fairseq.data import Dictionary
from fairseq_cli import preprocess

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.text import parts as parts_module
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.locks import LOCK
from tests.support.commands import run_verb
from tests.support.finetuning import train_here
from tests.support.processes import fork, wait_for
from tests.support.refusals import refused
from tests.support.training import RECIPE
from tests.text.test_preparation import content, texts

SCRIPT = Path(__file__).parents[2] / "preprocess/pretrain/prepare.py"
VOCABULARY = 120


def story(documents, seed=0):
    return "\n\n".join(texts(documents, seed)) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Create a directory with train.txt, valid.txt and the data-bin prepared from them."""
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "train.txt").write_text(story(300))
    (directory / "valid.txt").write_text(story(10, seed=1))
    splits = ["--train", directory / "train.txt", "--valid", directory / "valid.txt", "--workers", 1]
    run_verb("prepare", *splits, "--destdir", directory / "data-bin", "--vocab-size", VOCABULARY)
    return directory


@pytest.fixture
def again(corpus, tmp_path, monkeypatch):
    """Return ``again(train, **options)``: prepare a text in small parts with the tokenizer of the corpus."""
    monkeypatch.setattr(parts_module, "PART_BYTES", 3000)

    def run(train, **options):
        options = {"destdir": tmp_path / "out", "workers": 1} | options
        options |= {"tokenizer": corpus / "data-bin/sentencepiece.bpe.model"}
        flags = []
        for name, value in options.items():
            flags += [] if value is None else [f"--{name}", value]
        run_verb("prepare", "--train", train, "--valid", corpus / "valid.txt", *flags)
        assert (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )  # a caller's processes must not inherit another handler
        return options["destdir"]

    return run


@pytest.fixture
def mixed(corpus, tmp_path):
    """Create a directory with a file that is divided and one that all workers encode, as it cannot be divided."""
    (tmp_path / "mixed").mkdir()
    shutil.copy(corpus / "train.txt", tmp_path / "mixed/a.txt")
    records = "".join(json.dumps({"text": text}) + "\n" for text in texts(3000, seed=2))
    (tmp_path / "mixed/b.jsonl.zst").write_bytes(zstandard.compress(records.encode()))
    return tmp_path / "mixed"


def test_output_equals_fairseq_preprocess(corpus, tmp_path):
    """Tokenizing line by line and running the real fairseq-preprocess gives the same bytes."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(corpus / "data-bin/sentencepiece.bpe.model"))
    for split in ("train", "valid"):
        text = (corpus / f"{split}.txt").read_text().split("\n")[:-1]
        (tmp_path / split).write_text("".join(" ".join(model.encode(line, out_type=str)) + "\n" for line in text))
    splits = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    fairseq_preprocess(*splits, "--srcdict", corpus / "data-bin/dict.txt", "--destdir", tmp_path / "by-hand")
    theirs = content(tmp_path / "by-hand")
    ours = content(corpus / "data-bin")
    names = {f"{split}.{suffix}" for split in ("train", "valid") for suffix in ("bin", "idx")} | {"dict.txt"}
    assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}


def fairseq_preprocess(*words):
    words = [str(word) for word in ("--only-source", "--workers", 1, *words)]
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args(words))


def test_a_dictionary_of_fairseq_preprocess_is_matched_by_symbol(corpus, tmp_path):
    """Without --srcdict its dict.txt is ordered by frequency, and unknown characters are symbols."""
    file = corpus / "data-bin/sentencepiece.bpe.model"
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    lines = [*(corpus / "train.txt").read_text().split("\n")[:200], "a \u2603 b"]
    encoded = [" ".join(model.encode(line, out_type=str)) for line in lines]
    (tmp_path / "train").write_text("".join(f"{line}\n" for line in encoded))
    data = tmp_path / "data-bin"
    fairseq_preprocess("--trainpref", tmp_path / "train", "--destdir", data)
    shutil.copy(file, data)
    options = ["--arch", "mae_lm_tiny", "--max-update", 1, "--disable-validation", "--num-workers", 0]
    train_here(data, *RECIPE, *options, "--save-dir", tmp_path / "saved")
    run_verb("bundle", tmp_path / "saved/checkpoint_last.pt", "--data-bin", data, "--out", tmp_path / "out")
    loaded = MAELMModel.from_pretrained(tmp_path / "out")
    dictionary = Dictionary.load(str(data / "dict.txt"))
    for line, pieces in zip(lines[:40], encoded[:40], strict=True):
        expected = dictionary.encode_line(pieces, add_if_not_exist=False)
        assert loaded.encode(line).tolist() == [0, *expected.tolist()]
    assert pickle.loads(pickle.dumps(find_tokenizer(data))).symbols == dictionary.symbols
    (data / "dict.txt").write_text("jihgfedcba 5\n" + (data / "dict.txt").read_text())
    with refused(r"jihgfedcba in the dict\.txt"):
        find_tokenizer(data)


def test_workers_give_the_same_bytes(again, mixed, tmp_path):
    for shards in (None, 3):
        alone, together = (again(mixed, workers=n, shards=shards, destdir=tmp_path / f"{n} {shards}") for n in (1, 3))
        assert content(alone) == content(together)


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dask_cluster_gives_the_same_bytes(again, mixed, tmp_path, kill):
    """Three worker processes; one of them is killed in the middle."""
    expected = content(again(mixed, shards=3, destdir=tmp_path / "expected"))
    if kill:
        (mixed / "c.txt").write_text(story(10_000))
        expected = content(again(mixed, shards=3, destdir=tmp_path / "more"))
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        killer = threading.Thread(target=kill_a_worker, args=(cluster, tmp_path / "out/parts"))
        if kill:
            killer.start()
        assert content(again(mixed, shards=3, scheduler=cluster.scheduler_address, workers=None)) == expected
        if kill:
            killer.join()


def kill_a_worker(cluster, parts):
    wait_for(lambda: len(list(parts.glob("train-*/part.json"))) > 3)
    os.kill(cluster.workers[1].pid, signal.SIGKILL)


def workers_of(pid):
    """Return the ids of the workers, without the resource tracker and children that have not called exec yet."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if "multiprocessing.spawn" in command_line(child)]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:  # the process has ended
        return ""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_run_resumes_and_leaves_finished_parts_alone(again, tmp_path, capfd, sent):
    large, out = tmp_path / "train.txt", tmp_path / "new/out"
    large.write_text(story(300) * 20)
    run = fork(again, large, workers=2, shards=3, destdir=out)
    wait_for(lambda: len(list(out.glob("parts/train-*/part.json"))) > 5)
    workers = workers_of(run.pid)
    assert len(workers) == 2
    os.kill(run.pid, sent)
    run.join(120)
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    assert sent == signal.SIGKILL or "; the same command resumes from here" in errors
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert {path.name for path in out.iterdir()} - {LOCK} == {"parts"}
    kept = {path: path.stat().st_mtime_ns for path in out.glob("parts/train-*/part.json")}
    parts = again(large, shards=3, destdir=tmp_path / "expected")
    again(large, shards=3, destdir=out, part="1/1")
    assert kept
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert content(again(large, shards=3, destdir=out)) == content(parts)


SLOW_FORK = """
import os, runpy, sys, time

fork = os.fork


def fork_slowly():
    pid = fork()
    if pid == 0:
        time.sleep(1)
    return pid


os.fork = fork_slowly
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_death_of_a_worker_ends_the_program_and_its_other_workers(corpus, tmp_path):
    """The surviving worker is terminated while it starts; the slow fork stretches that moment to a second."""
    (tmp_path / "train.txt").write_text(story(300) * 2000)
    command = [sys.executable, "-c", SLOW_FORK, SCRIPT, "--destdir", tmp_path / "out", "--workers", "2"]
    command += ["--train", tmp_path / "train.txt", "--valid", corpus / "valid.txt"]
    command += ["--tokenizer", corpus / "data-bin/sentencepiece.bpe.model"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(workers_of(run.pid)) == 2 or run.poll() is not None)
    first, second = workers_of(run.pid)
    os.kill(first, signal.SIGKILL)
    errors = run.communicate(timeout=120)[1].splitlines()
    messages = [line for line in errors if line and "B/s" not in line]
    assert run.returncode == 1
    assert messages == ["error: a worker process died, perhaps because memory ran out; try fewer --workers"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"parts"}
    assert not Path(f"/proc/{second}").exists()

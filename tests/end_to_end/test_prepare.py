import gzip
import json
import lzma
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDataset

import mae_lm_fairseq
from mae_lm_fairseq import MAELMModel, cli
from mae_lm_fairseq.text import corpus as corpus_module
from mae_lm_fairseq.text import encoding, preparation
from mae_lm_fairseq.text.data_bin import check_data_bin, dictionary_fingerprint
from mae_lm_fairseq.text.manifest import Manifest
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.text_files import Chunk, read_chunks
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.locks import LOCK
from tests.support.processes import fork, interrupt_moves, wait_for

SCRIPT = Path(__file__).parents[2] / "preprocess" / "pretrain" / "prepare.py"
PRODUCTS = {"dict.txt", "manifest.json", "sentencepiece.bpe.model"} | {
    f"{split}.{suffix}" for split in ("train", "valid") for suffix in ("bin", "idx")
}
VOCABULARY = 120


def prepare(*arguments, **options):
    """Run the command in this process, with options given as ``vocab_size=9``."""
    options = {"workers": 1} | options
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    cli.run("prepare", [str(argument) for argument in (*arguments, *flags)])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a caller's processes must not inherit another handler


def story(documents, seed=0):
    generator = random.Random(seed)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 6))) for _ in range(50)]
    lines = []
    for _ in range(documents):
        lines += [" ".join(generator.choices(words, k=generator.randint(1, 12))) for _ in range(4)]
        lines += [""] * generator.randint(1, 3)
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Create a directory with train.txt, valid.txt and the data-bin prepared from them."""
    directory = tmp_path_factory.mktemp("corpus")
    (directory / "train.txt").write_text(story(300))
    (directory / "valid.txt").write_text(story(10, seed=1))
    splits = ["--train", directory / "train.txt", "--valid", directory / "valid.txt"]
    prepare(*splits, destdir=directory / "data-bin", vocab_size=VOCABULARY)
    return directory


@pytest.fixture
def again(corpus, tmp_path):
    """Return ``again(train, valid, **options)``: prepare (by default) the corpus into ``tmp_path / "out"``."""

    def run(train=None, valid=None, **options):
        splits = ["--train", train or corpus / "train.txt", "--valid", valid or corpus / "valid.txt"]
        defaults = {"destdir": tmp_path / "out", "tokenizer": corpus / "data-bin/sentencepiece.bpe.model"}
        options = defaults | options
        prepare(*splits, **options)
        return options["destdir"]

    return run


def lines_of(directory, split="train"):
    dataset = MMapIndexedDataset(str(directory / split))
    return [dataset[i].tolist() for i in range(len(dataset))]


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "manifest.json"}


def test_output_files(corpus):
    directory = corpus / "data-bin"
    assert {path.name for path in directory.iterdir()} == PRODUCTS
    tokenizer = SentencePieceTokenizer(directory / "sentencepiece.bpe.model")
    dictionary = Dictionary.load(str(directory / "dict.txt"))
    manifest = Manifest.read(directory / "manifest.json")
    assert tokenizer.model_size == VOCABULARY
    assert len(dictionary) == VOCABULARY + 1
    assert "workers" not in manifest.options
    assert manifest.tokenizer_sha256 == tokenizer.fingerprint
    assert manifest.dictionary_sha256 == dictionary_fingerprint(dictionary.symbols)
    tokens = np.concatenate(lines_of(directory))
    assert dictionary.count[4:] == np.bincount(tokens, minlength=len(dictionary))[4:].tolist()
    for split in ("train", "valid"):
        text = (corpus / f"{split}.txt").read_text().split("\n")[:-1]
        statistics = manifest.splits[split]
        assert (statistics.lines, statistics.tokens_out) == check_data_bin(directory / split)
        assert statistics.lines == len(text)
        assert statistics.tokens_in == statistics.tokens_out == sum(map(len, lines_of(directory, split)))
        assert statistics.documents == {"train": 300, "valid": 10}[split]
        assert (statistics.unk, statistics.unk_rate) == (0, 0)


def test_output_equals_fairseq_preprocess(corpus, tmp_path, run_cli):
    """Tokenizing line by line and running the real fairseq-preprocess gives the same bytes."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(corpus / "data-bin/sentencepiece.bpe.model"))
    for split in ("train", "valid"):
        text = (corpus / f"{split}.txt").read_text().split("\n")[:-1]
        (tmp_path / split).write_text("".join(" ".join(model.encode(line, out_type=str)) + "\n" for line in text))
    splits = ["--trainpref", tmp_path / "train", "--validpref", tmp_path / "valid"]
    destination = ["--srcdict", corpus / "data-bin/dict.txt", "--destdir", tmp_path / "by-hand", "--workers", 2]
    done = run_cli(["fairseq-preprocess", "--only-source", *splits, *destination])
    assert done.returncode == 0, done.stderr
    theirs = content(tmp_path / "by-hand")
    ours = content(corpus / "data-bin")
    names = {f"{split}.{suffix}" for split in ("train", "valid") for suffix in ("bin", "idx")} | {"dict.txt"}
    assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}


def test_a_dictionary_of_fairseq_preprocess_is_matched_by_symbol(corpus, tmp_path, run_cli):
    """Without --srcdict its dict.txt is ordered by frequency, and unknown characters are symbols."""
    file = corpus / "data-bin/sentencepiece.bpe.model"
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    lines = [*(corpus / "train.txt").read_text().split("\n")[:200], "a \u2603 b"]
    encoded = [" ".join(model.encode(line, out_type=str)) for line in lines]
    (tmp_path / "train").write_text("".join(f"{line}\n" for line in encoded))
    data = tmp_path / "data-bin"
    done = run_cli(["fairseq-preprocess", "--only-source", "--trainpref", tmp_path / "train", "--destdir", data])
    assert done.returncode == 0, done.stderr
    shutil.copy(file, data)
    options = (
        "--task masked_autoencoder_lm --criterion masked_autoencoder_lm --arch mae_lm_tiny --cpu --optimizer adam "
        "--lr 1e-3 --tokens-per-sample 64 --batch-size 4 --max-update 2 --num-workers 0 --disable-validation --user-dir"
    )
    done = run_cli(["fairseq-train", data, "--save-dir", tmp_path / "saved", *options.split(), mae_lm_fairseq.PACKAGE])
    assert done.returncode == 0, done.stderr
    assert (
        f"{data}/dict.txt: the ids of {data}/sentencepiece.bpe.model are matched to it by symbol"
        in done.stdout + done.stderr
    )
    cli.run(
        "bundle", [str(tmp_path / "saved/checkpoint_last.pt"), "--data-bin", str(data), "--out", str(tmp_path / "out")]
    )
    loaded = MAELMModel.from_pretrained(tmp_path / "out")
    dictionary = Dictionary.load(str(data / "dict.txt"))
    for line, pieces in zip(lines[:40], encoded[:40], strict=True):
        expected = dictionary.encode_line(pieces, add_if_not_exist=False)
        assert loaded.encode(line).tolist() == [0, *expected.tolist()]
    assert pickle.loads(pickle.dumps(find_tokenizer(data))).symbols == dictionary.symbols
    (data / "dict.txt").write_text("jihgfedcba 5\n" + (data / "dict.txt").read_text())
    with pytest.raises(UserError, match=r"jihgfedcba in the dict\.txt beside it is not a piece of this model"):
        find_tokenizer(data)


def test_fairseq_train_reads_the_output(corpus, tmp_path, run_cli):
    options = (
        "--task masked_lm --criterion masked_lm --arch roberta --cpu --sample-break-mode complete_doc --no-save "
        "--tokens-per-sample 64 --encoder-layers 1 --encoder-embed-dim 8 --encoder-ffn-embed-dim 8 "
        "--encoder-attention-heads 1 --optimizer adam --lr 1e-3 --batch-size 64 --max-epoch 1 --num-workers 0"
    )
    done = run_cli(["fairseq-train", corpus / "data-bin", *options.split()], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"dictionary: {VOCABULARY + 1} types" in done.stdout + done.stderr
    assert "valid on 'valid' subset" in done.stdout + done.stderr


def test_output_does_not_depend_on_the_number_of_workers(corpus, again, monkeypatch, tmp_path):
    monkeypatch.setattr(corpus_module, "read_chunks", lambda path, _, *bounds: read_chunks(path, 500, *bounds))
    for workers in (1, 3):
        again(workers=workers, destdir=tmp_path / str(workers))
        assert content(tmp_path / str(workers)) == content(corpus / "data-bin")


def test_compressed_text_gives_the_same_output(corpus, again, tmp_path):
    text = (corpus / "train.txt").read_bytes()
    for suffix, pack in [(".gz", gzip.compress), (".xz", lzma.compress)]:
        path = tmp_path / f"train{suffix}"
        path.write_bytes(pack(text))
        again(path, destdir=tmp_path / f"out{suffix}")
        assert content(tmp_path / f"out{suffix}") == content(corpus / "data-bin")


def test_records_give_the_output_of_plain_text(corpus, again, tmp_path):
    documents = re.split(r"\n\n+", (corpus / "train.txt").read_text().strip("\n"))
    (tmp_path / "train.txt").write_text("\n\n".join(documents) + "\n")
    records = "".join(json.dumps({"text": text}) + "\n" for text in ["", *documents, " "])
    (tmp_path / "train.jsonl").write_text(records)
    expected = content(again(tmp_path / "train.txt", destdir=tmp_path / "plain"))
    assert content(again(tmp_path / "train.jsonl", destdir=tmp_path / "records")) == expected
    assert content(again(tmp_path / "train.jsonl", destdir=tmp_path / "parts", shards=1) / "shard0") == expected


def test_joiners_that_a_tokenizer_drops_are_counted(again, tmp_path, capsys):
    (tmp_path / "train.txt").write_text("a\u200cb a\u200db\n" * 50)
    for destdir, options in [("plain", {}), ("parts", {"shards": 1})]:
        out = again(tmp_path / "train.txt", destdir=tmp_path / destdir, max_unk_rate=1, **options)
        assert (
            "warning: the tokenizer drops 50 zero-width joiners or non-joiners of this text" in capsys.readouterr().err
        )
        assert Manifest.read(out / "manifest.json").splits["train"].lost_joiners == 50
    again(tmp_path / "train.txt", destdir=tmp_path / "bytes", tokenizer="byte-bpe", vocab_size=261)
    assert "joiners" not in capsys.readouterr().err


def test_a_new_file_begins_a_new_document(again, tmp_path):
    texts = ["a\nb", "c\n\n", "d\n", "", "\ne\r\n", "\ufefff\n  \n\n", "\n"]
    for number, text in enumerate(texts):
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / f"text/{number}").write_bytes(text.encode())
    directory = again(tmp_path / "text", max_unk_rate=1)
    lines = "".join("." if len(line) == 1 else "x" for line in lines_of(directory))
    # Blank lines are added after b, d and e, whose files do not end with one.
    assert lines == "".join(["xx.", "x.", "x.", ".x.", "x..", "."])
    statistics = Manifest.read(directory / "manifest.json").splits["train"]
    assert (statistics.documents, statistics.lines) == (5, len(lines))


def test_unknown_characters_above_max_unk_rate_are_refused(again, tmp_path):
    (tmp_path / "train").write_text("abc def\n" * 100 + "漢字 漢\n")
    with pytest.raises(UserError, match=r"--train: .*% of the tokens are <unk>, .*'漢' \(2\), '字' \(1\)"):
        again(tmp_path / "train")
    assert not (tmp_path / "out").exists()
    statistics = Manifest.read(again(tmp_path / "train", max_unk_rate=0.5) / "manifest.json").splits["train"]
    assert statistics.unk == 2
    assert statistics.unk_rate == 2 / (statistics.tokens_out - statistics.lines)


def test_unknown_characters_in_validation_text_are_refused(again, tmp_path):
    (tmp_path / "valid").write_text("漢\n")
    with pytest.raises(UserError, match=r"--valid: .* are <unk>"):
        again(valid=tmp_path / "valid")


def test_character_coverage_reaches_the_training(tmp_path):
    (tmp_path / "train").write_text("abcdefgh " * 3000 + "Ω\n")
    (tmp_path / "valid").write_text("a\n")
    for coverage, known in [(1.0, True), (0.999, False)]:
        out = tmp_path / str(coverage)
        arguments = ["--train", tmp_path / "train", "--valid", tmp_path / "valid"]
        prepare(*arguments, destdir=out, vocab_size=16, character_coverage=coverage, max_unk_rate=1)
        assert ("Ω" in (out / "dict.txt").read_text()) == known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": None}, "--vocab-size is missing"),
        ({"vocab_size": 7}, "has 120 pieces, not --vocab-size 7"),
        ({"tokenizer": None, "vocab_size": 100_000}, "--vocab-size 100000 is too large"),
        ({"tokenizer": "missing.model"}, "missing.model: No such file"),
        ({"tokenizer": ""}, "^\\.: has no tokenizer"),
        ({"character_coverage": 0.9999}, "0.9999: does nothing for the tokenizer .*bpe.model, which is not trained"),
        (
            {"character_coverage": 1, "tokenizer": "byte-bpe", "vocab_size": 300},
            "--character-coverage 1.0: does nothing for the tokenizer byte-bpe, which has all characters; remove it",
        ),
        ({"train": "missing"}, "missing: no such file"),
        ({"train": "blank"}, "--train: the files contain no text"),
        ({"train": "empty"}, "--train: the files contain no text"),
        ({"train": "empty", "tokenizer": "byte-bpe", "vocab_size": 300}, "--train: the files contain no text"),
        ({"destdir": "train.txt"}, "--destdir train.txt: is a file; choose a directory"),
        ({"destdir": "at 12:00"}, "--destdir at 12:00: fairseq splits paths of data at :; choose another name"),
        ({"train": "latin1"}, "latin1: line 2 is not UTF-8"),
        (
            {"train": "latin1", "tokenizer": None, "vocab_size": 50},
            "latin1: not UTF-8 at byte 6 .*; convert the file",
        ),
        ({"train": "torn.gz"}, "torn.gz: damaged or incomplete"),
        ({"train": "."}, "out: is in ., whose files are read as text"),
        ({"train": "./**"}, "out: is in ., whose files are read as text"),
        ({"valid": "train.txt", "train": "train.txt"}, "train.txt: in --train and in --valid"),
        ({"valid": "linked", "train": "train.txt"}, "train.txt: in --train and in --valid"),
    ],
)
def test_user_errors_have_one_line_messages(again, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("blank").write_text("\n \n")
    Path("empty").touch()
    Path("latin1").write_bytes(b"good\nb\xe4d\n")
    Path("torn.gz").write_bytes(gzip.compress(b"text\n" * 100)[:-9])
    Path("train.txt").write_text("abc\n")
    Path("linked").symlink_to("train.txt")
    with pytest.raises(UserError, match=message) as caught:
        again(**options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["train.idx", "dict.txt", "sentencepiece.bpe.model", "unfinished"])
def test_nothing_is_overwritten(again, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).touch()
    with pytest.raises(UserError, match=f"{name}: exists"):
        again()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_a_data_bin_of_another_process_that_was_faster_is_kept(again, tmp_path, monkeypatch):
    find = preparation.find_splits

    def find_splits(options):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "dict.txt").touch()
        return find(options)

    monkeypatch.setattr(preparation, "find_splits", find_splits)
    with pytest.raises(UserError, match=r"dict\.txt: exists already"):
        again()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dict.txt"]


def test_the_given_model_may_lie_in_the_destination(corpus, again, tmp_path):
    (tmp_path / "out").mkdir()
    model = tmp_path / "out/sentencepiece.bpe.model"
    model.write_bytes((corpus / "data-bin/sentencepiece.bpe.model").read_bytes())
    again(tokenizer=model)
    assert content(tmp_path / "out") == content(corpus / "data-bin")


def test_a_signal_while_files_are_moved_waits_for_the_others(corpus, again, tmp_path, monkeypatch):
    interrupt_moves(monkeypatch)
    assert content(again()) == content(corpus / "data-bin")


def test_workers_are_as_many_as_cores_of_the_job(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert preparation.PreparationOptions(("a",), ("b",), Path("c")).processes == 3


def test_lost_tokens_are_detected(again, tmp_path, monkeypatch):
    write = encoding.DataBinWriter.write
    monkeypatch.setattr(
        encoding.DataBinWriter, "write", lambda self, tokens, sizes: write(self, tokens[:1], sizes[:1] * 0 + 1)
    )
    with pytest.raises(UserError, match=r"tokens went in, 1 and 1 came out"):
        again()
    assert not (tmp_path / "out").exists()


def test_an_existing_directory_is_kept_on_failure(again, tmp_path):
    (tmp_path / "train").write_text("漢字\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="are <unk>"):
        again(tmp_path / "train")
    assert list((tmp_path / "out").iterdir()) == []


def test_read_ahead_is_bounded(corpus):
    taken = []

    def chunks():
        for number in range(100):
            taken.append(number)
            yield Chunk(Path("x"), 1, b"abc\n", 0)

    with encoding.EncodingPool(find_tokenizer(corpus / "data-bin"), 2) as pool:
        encoded = pool.encode(chunks())
        for number in range(1, 50):
            next(encoded)
            assert len(taken) <= number + 3 * 2


def test_the_script_works_from_anywhere(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--train", "nowhere", "--valid", "nowhere", "--destdir", "out", "--vocab-size", "9"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: nowhere: no such file or directory\n"


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
def test_an_interrupted_run_leaves_neither_data_nor_processes(again, tmp_path, capfd, sent):
    (tmp_path / "train.txt").write_text(story(300) * 2000)
    run = fork(again, tmp_path / "train.txt", workers=2, destdir=tmp_path / "new/out")
    wait_for((tmp_path / "new/out/unfinished/train.bin").exists)
    wait_for(lambda: len(workers_of(run.pid)) == 2)
    workers = workers_of(run.pid)
    os.kill(run.pid, sent)
    run.join(120)
    errors = capfd.readouterr().err
    if sent == signal.SIGKILL:
        assert {path.name for path in (tmp_path / "new/out").iterdir()} == {"unfinished", LOCK}
        assert not (tmp_path / "new/out/unfinished/train.idx").exists()
        again(destdir=tmp_path / "new/out")
        assert {path.name for path in (tmp_path / "new/out").iterdir()} == PRODUCTS
    else:
        assert run.exitcode == 1
        assert "interrupted; nothing was left behind" in errors
        assert "Traceback" not in errors
        assert not (tmp_path / "new").exists()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


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
    assert not (tmp_path / "out").exists()
    assert not Path(f"/proc/{second}").exists()

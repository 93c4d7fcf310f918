"""Comparison of data-bins with the hashes in their manifests, once per training."""

from pathlib import Path

import pytest
from fairseq import tasks
from fairseq_cli import train

from mae_lm_fairseq.fairseq_patches import processes
from mae_lm_fairseq.tasks import splits
from mae_lm_fairseq.text.manifest import MANIFEST
from mae_lm_fairseq.utils.files import read_record, write_json
from tests.support.commands import run_verb
from tests.support.refusals import refused
from tests.support.training import RECIPE, parse


@pytest.fixture
def prepared(tmp_path):
    """Return a data-bin that mae-lm prepare has written."""
    words = ["--destdir", str(tmp_path / "data-bin"), "--vocab-size 20 --workers 1"]
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("a cat sat on a mat\n\n" * 50)
        words += [f"--{split}", str(tmp_path / f"{split}.txt")]
    run_verb("prepare", *words, "--character-coverage 1 --max-unk-rate 1")
    return tmp_path / "data-bin"


@pytest.fixture
def cfg(prepared):
    return parse(prepared, *RECIPE, "--arch mae_lm_tiny --max-update 1")


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])


@pytest.mark.parametrize(
    "name", ["train.bin", "valid.bin", "train.idx", "dict.txt", "sentencepiece.bpe.model", MANIFEST]
)
def test_a_training_does_not_start_with_a_damaged_file(prepared, cfg, name):
    flip(prepared / name)
    with pytest.raises(SystemExit, match=name):
        processes._call_main(lambda *_: pytest.fail("it has started"), cfg, train.main)


def test_an_intact_data_bin_is_trained_on(cfg):
    assert processes._call_main(lambda *_: "started", cfg, train.main) == "started"


def test_other_processes_than_the_first_compare_nothing(prepared, cfg):
    flip(prepared / "train.bin")
    cfg.distributed_training.distributed_rank = 1
    assert processes._call_main(lambda *_: "started", cfg, train.main) == "started"


def test_a_large_data_bin_is_left_to_the_doctor(prepared, cfg, monkeypatch, caplog):
    monkeypatch.setattr(splits, "LARGEST_COMPARED", 100)
    flip(prepared / "train.bin")
    with caplog.at_level("INFO"):
        splits.check_token_ids(cfg.task)
    assert f"mae-lm doctor {prepared}" in caplog.text
    assert run_verb("doctor", prepared) == 1


def test_a_data_bin_of_an_earlier_version_is_read(prepared, cfg):
    content = read_record(prepared / MANIFEST)
    write_json(prepared / MANIFEST, content | {"files": {}})
    splits.check_token_ids(cfg.task)
    (prepared / MANIFEST).unlink()
    splits.check_token_ids(cfg.task)


@pytest.mark.parametrize("name", ["/etc/hostname", "../train.txt"])
def test_a_manifest_does_not_name_files_elsewhere(prepared, cfg, name):
    content = read_record(prepared / MANIFEST)
    write_json(prepared / MANIFEST, content | {"files": {name: "0" * 64}})
    with refused(MANIFEST):
        splits.check_token_ids(cfg.task)


def test_nothing_beside_a_data_bin_is_read_in_its_place(tmp_path, prepared, cfg, monkeypatch):
    """fairseq prefers a text without an ending, which no check has seen, and gives the path of a FASTA to a shell."""
    monkeypatch.chdir(tmp_path)
    directory = prepared.rename(tmp_path / "x;touch it-ran;")
    cfg.task.data = str(directory)
    task = tasks.setup_task(cfg.task)
    expected = len(splits.load_sequences(cfg.task, task.source_dictionary, "train", 1, combine=True))
    (directory / "train").write_text("a\n")
    (directory / "train1.fasta").write_text(">x\nA\n")
    assert len(splits.load_sequences(cfg.task, task.source_dictionary, "train", 1, combine=True)) == expected
    assert not Path("it-ran").exists()

"""Hashes of a data-bin's files, and the table of its splits."""

import math

import pytest

from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics, check_files, splits_table
from mae_lm_fairseq.utils.files import file_sha256
from tests.support.refusals import refused

NAMES = ("dict.txt", "train.bin")
SPLITS = {"train": SplitStatistics(1_200, 34_000, 56, 7_800_000, 9, 0.125), "valid": SplitStatistics(3, 4, 5, 6, 0, 0)}


@pytest.fixture
def data_bin(tmp_path):
    """Return a directory of files with a manifest."""
    for name in NAMES:
        (tmp_path / name).write_text(name)
    files = {name: file_sha256(tmp_path / name) for name in NAMES}
    Manifest({}, {}, "", "", SPLITS, files).write(tmp_path / MANIFEST)
    return tmp_path


@pytest.mark.parametrize("damaged", NAMES)
def test_only_files_with_the_hashes_of_the_manifest_are_accepted(damaged, data_bin):
    assert check_files(data_bin, math.inf)
    (data_bin / damaged).write_text("other")
    with refused(damaged):
        check_files(data_bin, math.inf)


def test_files_are_compared_up_to_a_size(data_bin):
    size = sum(len(name) for name in NAMES)
    assert check_files(data_bin, size)
    assert not check_files(data_bin, size - 1)


def test_the_table_has_a_row_for_each_split():
    rows = splits_table({name: vars(split) for name, split in SPLITS.items()}).splitlines()
    assert rows[2:] == ["| train | 1,200 | 34,000 | 7,800,000 | 12.500% |", "| valid | 3 | 4 | 6 | 0.000% |"]

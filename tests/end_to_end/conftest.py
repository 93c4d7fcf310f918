"""Data that several of these tests have."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.tokenizers import paragraphs


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Write training and held-out text of the same words."""
    directory = tmp_path_factory.mktemp("text")
    (directory / "train.jsonl").write_text("".join(json.dumps({"note": line}) + "\n" for line in paragraphs(300)))
    (directory / "valid.jsonl").write_text("".join(json.dumps({"note": line}) + "\n" for line in paragraphs(60, 1)))
    return directory


@pytest.fixture
def two_validation_splits(data_bin, tmp_path) -> Path:
    """Return a data-bin with the splits ``valid`` and ``valid1``."""
    shutil.copytree(data_bin, tmp_path / "data")
    for suffix in ("bin", "idx"):
        shutil.copy(data_bin / f"train.{suffix}", tmp_path / "data" / f"valid1.{suffix}")
    return tmp_path / "data"

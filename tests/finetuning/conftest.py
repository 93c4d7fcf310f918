"""A pretrained model, and options of a short fine-tuning in this process."""

import pytest

from mae_lm_fairseq.finetuning import sweep
from tests.support.finetuning import run_here, save_pretrained


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, tokenizer):
    """Write a checkpoint with 64 positions and the tokenizer of the module."""
    return save_pretrained(tmp_path_factory.mktemp("pretrained") / "a.pt", tokenizer, "mae_lm_tiny")


@pytest.fixture
def three_updates(tokenizer, checkpoint, tmp_path, monkeypatch):
    """Return the options of every kind of task for three updates, which run in this process."""
    monkeypatch.setattr(sweep, "run_all", run_here)
    paths = {"model": checkpoint, "data_bin": tokenizer, "out": tmp_path / "out"}
    return {**paths, "seeds": 1, "max_updates": 3, "learning_rates": [1e-3]}

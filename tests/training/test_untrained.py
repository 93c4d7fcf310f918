"""Checkpoints before training: the weights that a training begins with."""

import shlex

import torch

from mae_lm_fairseq.training.untrained import write_untrained
from tests.support.finetuning import train_here
from tests.support.training import RECIPE


def test_weights_are_those_before_the_first_update(data_bin, tmp_path):
    """At a learning rate of zero, a training keeps the weights that it begins with."""
    words = [str(data_bin), *RECIPE, "--arch", "mae_lm_tiny", "--seed", "3", "--disable-validation"]
    write_untrained(words, tmp_path / "untrained.pt")
    untrained = torch.load(tmp_path / "untrained.pt", weights_only=True)
    train_here(*words, *shlex.split(f"--lr 0 --max-update 1 --save-dir {tmp_path}"))
    trained = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert untrained["model"].keys() == trained["model"].keys()
    assert all(untrained["model"][name].equal(weights) for name, weights in trained["model"].items())
    assert [state["optimizer_history"][-1]["num_updates"] for state in (untrained, trained)] == [0, 1]
    write_untrained([*words, "--seed", "4"], tmp_path / "other.pt")
    other = torch.load(tmp_path / "other.pt", weights_only=True)
    name = "autoencoder.encoder.embed_positions.weight"
    assert not other["model"][name].equal(untrained["model"][name])

"""Averaged weights: the mean of checkpoints, which checkpoints have none, and the moving average."""

import torch

from mae_lm_fairseq.trained.averaging import average, with_ema
from tests.support.refusals import refused

WEIGHT = "autoencoder.encoder.weight"


def save(path, value=1.0, dictionary="1", **extra_state):
    """Write what is averaged of a checkpoint, with one weight, and return its path."""
    state = {
        "cfg": {"model": {"_name": "mae_lm_tiny"}},
        "model": {WEIGHT: torch.tensor([value])},
        "task_state": {"dictionary": dictionary},
        "optimizer_history": [{"num_updates": 1}],
        "extra_state": extra_state,
    }
    torch.save(state, path)
    return path


def test_sums_are_float64(tmp_path):
    """In float32, 1 + 2**-24 is 1."""
    paths = [save(tmp_path / f"{number}.pt", value) for number, value in enumerate([1.0, 2**-24, 2**-24])]
    assert average(paths)["model"][WEIGHT].tolist() == torch.tensor([(1 + 2**-23) / 3]).tolist()


def test_models_of_two_dictionaries_have_no_mean(tmp_path):
    paths = [save(tmp_path / f"{number}.pt", dictionary=number) for number in "12"]
    with refused("dictionary"):
        average(paths)


def test_the_mean_has_no_moving_average(tmp_path):
    """The moving average of the newest checkpoint is none of the mean."""
    averages = {name: {WEIGHT: torch.tensor([9.0])} for name in ("ema", "ema_fp32_params")}
    path = save(tmp_path / "a.pt", val_loss=2.0, **averages)
    mean = average([path, path])
    assert mean["extra_state"] == {"val_loss": 2.0}
    with refused("--ema"):
        with_ema(mean, "mean.pt")


def test_the_float32_copy_of_the_moving_average_comes_first(tmp_path):
    averages = {name: {WEIGHT: torch.tensor([value])} for name, value in (("ema", 8.0), ("ema_fp32_params", 9.0))}
    state = torch.load(save(tmp_path / "a.pt", **averages), weights_only=True)
    assert with_ema(state, "a.pt")["model"][WEIGHT].tolist() == [9.0]

"""The options that a run which resumes names."""

from argparse import Namespace

import pytest

from mae_lm_fairseq.utils.training_options import differences

BEFORE = {
    "_name": None,
    "common": {"_name": None, "seed": 1, "log_interval": 10, "fp16": False},
    "distributed_training": {"distributed_port": 1, "distributed_world_size": 2},
    "optimization": {"lr": [1e-3], "update_freq": [1, 2]},
    "checkpoint": {"save_dir": "a", "restore_file": "checkpoint_last.pt", "save_interval_updates": 5},
    "model": {"_name": "mae_lm_tiny", "dropout": 0.1},
    "task": {"_name": "masked_autoencoder_lm", "data": "a", "mask_prob": 0.3, "seed": 1},
    "criterion": Namespace(_name="masked_autoencoder_lm", save_dir="a"),
    "lr_scheduler": {"lr": [1e-3]},
    "generation": {"beam": 5},
    "bpe": None,
}


@pytest.mark.parametrize(
    ("group", "options", "expected"),
    [
        ("task", {"mask_prob": 0.15}, ["mask_prob 0.3 -> 0.15"]),
        ("optimization", {"lr": [5e-4], "update_freq": [2]}, ["lr 0.001 -> 0.0005", "update_freq [1, 2] -> 2"]),
        (
            "distributed_training",
            {"distributed_world_size": 1, "distributed_port": 2},
            ["distributed_world_size 2 -> 1"],
        ),
        ("model", {"_name": "mae_lm_small"}, ["arch mae_lm_tiny -> mae_lm_small"]),
        ("common", {"log_interval": 1, "new": 1}, []),
        ("checkpoint", {"save_dir": "b", "restore_file": "b", "save_interval_updates": 6}, []),
        ("task", {"data": "b"}, []),
        ("generation", {"beam": 1}, []),
    ],
)
def test_options_that_change_what_is_computed_are_named(group, options, expected):
    assert differences(BEFORE, BEFORE | {group: BEFORE[group] | options}) == expected


def test_a_criterion_without_options():
    other = Namespace(_name="masked_lm", save_dir="b")
    assert differences(BEFORE, BEFORE | {"criterion": other}) == ["criterion masked_autoencoder_lm -> masked_lm"]

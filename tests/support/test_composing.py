"""Tests of the faster composition of configurations."""

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from tests.support.composing import compose_groups_once
from tests.support.training import RECIPE


@pytest.mark.parametrize(
    "arguments",
    [
        ["--arch", "mae_lm_tiny", "--update-freq", "1,2", "--mask-prob", "0.5"],
        ["--arch", "roberta_base", "--task", "masked_lm", "--criterion", "masked_lm", "--optimizer", "fused_adamw"],
    ],
)
def test_is_what_hydra_composes(arguments):
    parsed = options.parse_args_and_arch(options.get_training_parser(), ["data", *RECIPE, *arguments])
    compose_groups_once.stop()
    try:
        expected = convert_namespace_to_omegaconf(parsed)
    finally:
        compose_groups_once.start()
    for _ in range(2):  # composed anew, and from the kept groups
        made = convert_namespace_to_omegaconf(parsed)
        assert made == expected
        assert str(made) == str(expected)
        assert OmegaConf.is_struct(made)

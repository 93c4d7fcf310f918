"""Modules without memory and initial values."""

import torch
from torch import nn

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.utils.meta_device import on_meta_device


def network() -> nn.Module:
    return MaskedAutoencoder(preset_config("mae_lm", "tiny"), 20, 1, 19)


def test_names_shapes_and_types_are_those_of_a_module_with_memory():
    with on_meta_device():
        without_memory = network().state_dict()
    weights = network().state_dict()
    assert without_memory.keys() == weights.keys()
    for name, weight in without_memory.items():
        assert weight.is_meta
        assert (weight.shape, weight.dtype) == (weights[name].shape, weights[name].dtype)


def test_nothing_is_drawn_and_initial_values_are_back_afterwards():
    state = torch.get_rng_state()
    with on_meta_device():
        network()
    assert torch.equal(torch.get_rng_state(), state)
    assert nn.Linear(3, 3).weight.abs().sum() > 0


def test_functions_return_the_tensor_that_they_leave_as_it_is():
    weight = torch.ones(2, 3)
    with on_meta_device():
        assert nn.init.normal_(weight) is weight
        assert nn.init.uniform_(tensor=weight, b=2.0) is weight
    assert torch.equal(weight, torch.ones(2, 3))

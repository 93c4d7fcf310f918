"""The gradient of embeddings."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mae_lm_fairseq.core.transformer import Embedding


class Settings(TorchDispatchMode):
    """Whether deterministic algorithms were required when the gradient of an embedding was computed."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function is torch.ops.aten.embedding_dense_backward.default:
            self.found.append(torch.are_deterministic_algorithms_enabled())
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("padding_idx", [None, 1])
def test_gradient_is_that_of_torch_and_deterministic(padding_idx):
    torch.manual_seed(0)
    ours, stock = Embedding(5, 3, padding_idx), nn.Embedding(5, 3, padding_idx)
    stock.load_state_dict(ours.state_dict())
    rows, values = torch.tensor([4, 1, 0, 4]), torch.randn(4, 3)
    for embedding in (ours, stock):
        (embedding(rows) * values).sum().backward()
    assert torch.equal(ours.weight.grad, stock.weight.grad)
    with Settings() as settings:
        (ours(rows) * values).sum().backward()
    assert settings.found == [True]
    assert not torch.are_deterministic_algorithms_enabled()

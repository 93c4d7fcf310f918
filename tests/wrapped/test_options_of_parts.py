"""Parts of a network around a wrapped encoder: values of its configuration, and of our options."""

from dataclasses import replace

import pytest
import torch

from mae_lm_fairseq.core.config import MaskJoin
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.wrapped.network import build_network
from tests.support.wrapped import MASK, PAD, VOCABULARY, stock, wrap

LENGTH = 40


def around_modernbert(**options):
    """Return a network whose decoder has the last two layers of ModernBERT's type."""
    config = wrap(stock("modernbert")).network.config
    changes = {"mask_join": MaskJoin.decoder, "decoder_layers": 2, "decoder_relative_buckets": 0, **options}
    torch.manual_seed(0)
    return build_network(replace(config, **changes), VOCABULARY, PAD, MASK)


def decode(network, states):
    """Return the decoder's states of all positions of a text, given those of the encoder."""
    tokens = torch.arange(4, 4 + LENGTH)[None]
    layout = batch_layout(tokens, torch.ones_like(tokens, dtype=torch.bool), PAD, MASK)
    with torch.no_grad():
        return network.decoder(states, torch.zeros(16), layout)


def draw():
    return torch.randn(LENGTH, 16, generator=torch.Generator().manual_seed(1))


def test_only_our_padding_has_no_gradient():
    """The row that is padding in the original is another token's here."""
    network = wrap(stock("electra", pad=0)).network
    embed = network.encoder.embed_tokens
    assert embed.padding_idx == PAD
    embed(torch.tensor([0, PAD, 5])).sum().backward()
    assert embed.weight.grad.any(1).nonzero().flatten().tolist() == [0, 5]


def test_the_last_layers_keep_their_kinds_of_attention():
    """The first of three layers attends to everything, and the others to neighbours, of which two reach 16 tokens."""
    network = around_modernbert().eval()
    drawn = draw()
    other = drawn.clone()
    other[0] += 1
    changed = (decode(network, drawn) != decode(network, other)).any(1)
    assert changed[0]
    assert not changed[17:].any()


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "decoder_dropout"])
def test_the_decoder_has_its_own_dropout(option):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, "decoder_dropout": 0.0, option: 0.5}
    network, states = around_modernbert(**rates).train(), draw()
    assert torch.equal(decode(network, states), decode(network, states)) == (option != "decoder_dropout")


def test_sequences_may_be_shorter_than_its_positions_and_not_longer():
    """The encoder has 80 positions."""
    for length in (79, 80):
        assert wrap(stock("electra"), max_positions=length).network.encoder.max_positions == length
    with pytest.raises(ValueError, match="max_positions 81"):
        wrap(stock("electra"), max_positions=81)

"""Decoders that a user registers: which layouts they need, and what is refused before anything is trained."""

import pytest
import torch

from mae_lm_fairseq.core.config import DECODER_ATTENTIONS
from mae_lm_fairseq.core.decoder import DECODERS, SelfAttentionDecoder, register_decoder, try_decoder
from tests.support import ROOT, networks
from tests.support.documentation import blocks
from tests.support.refusals import refused
from tests.support.training import batches, set_up

NAME = "mine"


class WrongDecode(SelfAttentionDecoder):
    def decode(self, states, joined):
        return joined


class WrongInit(SelfAttentionDecoder):
    def __init__(self, config):
        super().__init__(config)


class AllPositions(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        return joined


class NeedsMore(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        return super().decode(states, joined + len(layout.masked.index), layout)


class Works(SelfAttentionDecoder):
    needs = ("visible", "masked")


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr("mae_lm_fairseq.core.decoder.DECODERS", {**DECODERS})
    attentions = [*DECODER_ATTENTIONS]
    yield lambda decoder: register_decoder(NAME, decoder)
    DECODER_ATTENTIONS[:] = attentions


def test_needs_are_any_names_of_layouts(register):
    register(Works)
    try_decoder(networks.config(decoder_attention=NAME))
    assert networks.network(decoder_attention=NAME).needs() == {"visible", "masked"}


@pytest.mark.parametrize("needs", [{"visibel"}, "visible"])
def test_other_needs_are_refused(register, needs):
    wrong = type("Wrong", (SelfAttentionDecoder,), {"needs": needs})
    with refused(r"decoder mine: needs = .*'decoded', 'masked', 'visible'"):
        register(wrong)
    assert NAME not in DECODER_ATTENTIONS


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (WrongDecode, "TypeError: .*positional argument"),
        (WrongInit, "TypeError: .*positional argument"),
        (AllPositions, "ValueError: decode returns 8 states for 4 predicted positions"),
        (NeedsMore, "AttributeError"),
    ],
)
def test_mistakes_are_one_message_with_file_and_line(register, decoder, problem):
    register(decoder)
    with refused(rf"^--decoder-attention mine \(.*test_own_decoders\.py, line \d+\): {problem}"):
        try_decoder(networks.config(decoder_attention=NAME))


EXAMPLES = [block.text for block in blocks(ROOT / "docs/own-ideas.md") if "test_own_decoders" in block.detail]


def test_the_decoder_of_the_page_learns_its_mark(register, monkeypatch):
    of_decoder, _ = EXAMPLES
    monkeypatch.setattr("mae_lm_fairseq.core.decoder.register_decoder", lambda name, decoder: register(decoder))
    exec(of_decoder, {"__name__": "ideas"})
    try_decoder(networks.config(decoder_attention=NAME))
    network = networks.network(decoder_attention=NAME).eval()
    tokens, targets = networks.masked(networks.batch(networks.text(5)), [(0, 2)])
    layout = networks.layout_for(tokens, targets)
    before = network(tokens, layout)
    network.decoder.mark.data[0] = 1.0
    assert not torch.allclose(network(tokens, layout), before)


def test_the_loss_of_the_page_is_larger_by_the_penalty(data_bin, monkeypatch):
    _, of_loss = EXAMPLES
    monkeypatch.setattr("fairseq.criterions.register_criterion", lambda name: lambda criterion: criterion)
    names = {"__name__": "ideas"}
    exec(of_loss, names)
    _, task, model, criterion = set_up(data_bin)
    batch = batches(task, "valid")[0]
    model.eval()
    usual, size, _ = criterion(model, batch)
    penalised, _, _ = names["Penalised"](task)(model, batch)
    penalty = sum(float(weights.square().sum()) for weights in model.parameters())
    assert (penalised - usual).item() == pytest.approx(1e-4 * size * penalty, rel=1e-3)  # a difference of large sums

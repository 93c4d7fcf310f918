"""Decoders that a user registers: which layouts they need, and what is refused before anything is trained."""

import dataclasses

import pytest
import torch
from torch import nn

from mae_lm_fairseq.core.config import DECODER_ATTENTIONS, preset_config
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


class ForgetsReturn(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        super().decode(states, joined, layout)


class Narrow(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        return super().decode(states, joined, layout)[:, :4]


class MixesSequences(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        return super().decode(states, joined + states.mean(0), layout)


class LearnsToMix(SelfAttentionDecoder):
    def __init__(self, config, embed_positions):
        super().__init__(config, embed_positions)
        self.gate = nn.Parameter(torch.zeros(1))

    def decode(self, states, joined, layout):
        return super().decode(states, joined + self.gate * states.mean(0), layout)


class KnowsTheBatch(SelfAttentionDecoder):
    def decode(self, states, joined, layout):
        return super().decode(states, joined, layout) * layout.sequence.rows


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


@pytest.mark.parametrize("kind", ["self", "cross", "self_cross"])
@pytest.mark.parametrize("preset", ["tiny", "base"])
def test_decoders_that_keep_sequences_apart_pass(register, kind, preset):
    """Rounding, and memory that a module leaves uninitialised, are no difference."""
    register(type("Mine", (DECODERS[kind],), {"__module__": "ideas"}))
    for relative_buckets in (0, 32):
        config = preset_config("mae_lm", preset)
        try_decoder(dataclasses.replace(config, decoder_attention=NAME, relative_buckets=relative_buckets))


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
        (AllPositions, r"ValueError: decode returns \[8, 16\], not the shape \[4, 16\]"),
        (Narrow, r"ValueError: decode returns \[4, 4\], not the shape \[4, 16\]"),
        (ForgetsReturn, "ValueError: decode returns None"),
        (NeedsMore, "AttributeError: layout.masked .* needs"),
        (MixesSequences, "ValueError: .*a sequence alone"),
        (LearnsToMix, "ValueError: .*a sequence alone"),
        (KnowsTheBatch, "ValueError: .*a sequence alone"),
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

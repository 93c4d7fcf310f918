"""Encoders of ``transformers`` behind our interface compute what they compute there, type by type."""

import json
import socket
from dataclasses import replace

import pytest
import torch

from mae_lm_fairseq.core.config import MaskJoin
from mae_lm_fairseq.core.packing import batch_layout, unpack
from mae_lm_fairseq.models.finetuning import freeze_below, mark_depths
from mae_lm_fairseq.trained.conversion import new_decoder
from mae_lm_fairseq.wrapped.encoder import KINDS
from mae_lm_fairseq.wrapped.network import build_network, options_of
from tests.support.comparisons import assert_close, assert_equal
from tests.support.refusals import refused
from tests.support.wrapped import MASK, PAD, VOCABULARY, stock, wrap

IN_GATE = ("deberta-v2", "electra", "modernbert")
ALL = [kind if kind in IN_GATE else pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(KINDS)]
LENGTHS = (40, 27, 13)


def batch(seed=0):
    """Return tokens, and the same with 30 % of them masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.full((len(LENGTHS), max(LENGTHS)), PAD)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = torch.randint(4, MASK, (length,), generator=generator)
        tokens[row, [0, length - 1]] = torch.tensor([0, 2])
    is_predicted = (tokens > 3) & (torch.rand(tokens.shape, generator=generator) < 0.3)
    return tokens, tokens.masked_fill(is_predicted, MASK), is_predicted


def layout_of(tokens, is_predicted):
    return batch_layout(tokens, is_predicted, PAD, MASK)


@pytest.fixture(scope="module", params=ALL)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def pair(kind):
    return wrap(stock(kind))


@pytest.fixture(scope="module")
def visible(kind):
    """The network of MAE-LM, whose encoder sees no ``[MASK]``."""
    return wrap(stock(kind), "mae_lm")


@pytest.fixture
def both(pair, visible):
    return pair.network, visible.network


@torch.no_grad()
def test_states_and_logits_are_the_stock_model_s(pair):
    """The operations are the same, in the same order: not a bit differs."""
    _, tokens, is_predicted = batch()
    layout, is_token = layout_of(tokens, is_predicted), tokens.ne(PAD)
    theirs = pair.stock(input_ids=tokens, attention_mask=is_token.long(), output_hidden_states=True)
    states = pair.network.encode(tokens, layout)
    for ours, their in zip(states, theirs.hidden_states, strict=True):
        assert torch.equal(unpack(ours, layout.sequence, tokens.shape[1])[is_token], their[is_token])
    assert_close(pair.network.predict(states[-1], layout), theirs.logits[is_predicted], 2e-5)


@torch.no_grad()
def test_the_loss_includes_rows_without_a_token(pair):
    tokens, corrupted, is_predicted = batch()
    layout = layout_of(corrupted, is_predicted)
    states = pair.network.predicted_states(corrupted, layout)
    loss, _ = pair.network.lm_head.loss(states, tokens[is_predicted])
    logits = pair.stock(input_ids=corrupted, attention_mask=corrupted.ne(PAD).long()).logits[is_predicted]
    assert logits.shape[1] > VOCABULARY
    expected = torch.nn.functional.cross_entropy(logits, tokens[is_predicted], reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


@torch.no_grad()
def test_a_row_does_not_depend_on_the_batch(both):
    """Sums have another order: 1e-4 of states of size 1."""
    _, tokens, is_predicted = batch()
    for network in both:
        together = network.encode(tokens, layout_of(tokens, is_predicted))[-1]
        alone = []
        for row, length in enumerate(LENGTHS):
            sequence = tokens[row : row + 1, :length]
            alone.append(network.encode(sequence, layout_of(sequence, is_predicted[row : row + 1, :length]))[-1])
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_masked_tokens_change_no_visible_state(visible):
    """In place, other tokens at the positions of ``[MASK]`` must change nothing; the stock model with a mask agrees."""
    encoder, (_, tokens, is_predicted) = visible.network.encoder, batch()
    layout, is_visible = layout_of(tokens, is_predicted), tokens.ne(PAD) & tokens.ne(MASK)
    states, other = encoder(tokens, layout)[-1], torch.where(is_predicted, 7, tokens)
    assert torch.equal(states, encoder(other, layout)[-1])
    theirs = visible.stock(input_ids=other, attention_mask=is_visible.long(), output_hidden_states=True)
    torch.testing.assert_close(states, theirs.hidden_states[-1][is_visible], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_rows_may_be_shortened_where_the_table_says_so(visible):
    """Shortened rows have the states of rows in place, or else the type must not be shortened; weights are enlarged."""
    encoder, (_, tokens, is_predicted) = visible.network.encoder, batch()
    layout, row = layout_of(tokens, is_predicted), encoder.kind
    states = {}
    for shortens in (True, False):
        encoder.kind = row._replace(shortens=shortens)
        states[shortens] = encoder(tokens, layout)[-1]
    encoder.kind = row
    difference = (states[True] - states[False]).abs().max()
    assert difference < 1e-4 if row.shortens else difference > 1e-2


def test_every_parameter_has_a_gradient(both):
    tokens, corrupted, is_predicted = batch()
    for network in both:
        network.zero_grad()
        layout = layout_of(corrupted, is_predicted)
        network.train()
        loss, _ = network.lm_head.loss(network.predicted_states(corrupted, layout), tokens[is_predicted])
        loss.backward()
        network.eval()
        assert [name for name, x in network.named_parameters() if x.requires_grad and x.grad is None] == []
        assert network.encoder.embed_tokens.weight.grad[0].any()  # <s>, whose row is padding in the stock model


@pytest.mark.parametrize("kind", IN_GATE)
def test_half_precision_keeps_the_angles_of_positions(kind):
    network = wrap(stock(kind)).network
    before = {name: x.clone() for name, x in network.named_buffers()}
    after = dict(network.half().float().named_buffers())
    assert_equal(before, after)


@pytest.mark.parametrize("option", ["dropout", "attention_dropout"])
def test_dropout_is_used(option):
    _, tokens, is_predicted = batch()
    for rate in (0.0, 0.5):
        pair = wrap(stock("modernbert"), **{"dropout": 0.0, "attention_dropout": 0.0, option: rate})
        pair.network.train()
        states = [pair.network.encode(tokens, layout_of(tokens, is_predicted))[-1] for _ in range(2)]
        assert torch.equal(*states) == (rate == 0)


def test_a_sequence_is_as_long_as_the_option_says():
    assert wrap(stock("electra"), max_positions=40).network.encoder.max_positions == 40


def test_the_last_uses_of_a_layer_are_not_trained_alone():
    encoder = wrap(stock("albert")).network.encoder
    mark_depths(encoder)
    with refused("--trained-layers 2"):
        freeze_below(encoder, 2)


def test_options_that_contradict_it_are_refused():
    with pytest.raises(ValueError, match="encoder_layers 2 contradicts wrapped, where it is 3"):
        wrap(stock("electra"), encoder_layers=2)
    with pytest.raises(ValueError, match="mask_states 4 is for the layers of this package"):
        wrap(stock("electra"), mask_states=4)


@pytest.mark.parametrize("kind", [kind for kind, row in KINDS.items() if row.has_relative_positions])
def test_a_new_decoder_starts_from_the_last_layers(kind):
    pair = wrap(stock(kind))
    weights = {f"autoencoder.{name}": x for name, x in pair.network.state_dict().items()}
    config, decoder = new_decoder(replace(pair.network.config, mask_join=MaskJoin.decoder, decoder_layers=2), weights)
    network = build_network(config, VOCABULARY, PAD, MASK)
    assert decoder.keys() == {f"autoencoder.decoder.{name}" for name in network.decoder.state_dict()}
    network.load_state_dict({name.removeprefix("autoencoder."): x for name, x in (weights | decoder).items()})
    layers = next(x for x in network.decoder.modules() if isinstance(x, torch.nn.ModuleList) and len(x) == 2)
    for layer, source in zip(layers, network.encoder.layers[1:], strict=True):
        copied, weights_of_source = layer.state_dict(), source.state_dict()
        assert_equal(copied, {name: weights_of_source[name] for name in copied})  # the first of ModernBERT has no norm


@pytest.mark.parametrize("kind", ["electra", "bert"])
def test_other_decoders_are_this_package_s(kind):
    pair = wrap(stock(kind))
    config, decoder = new_decoder(replace(pair.network.config, mask_join=MaskJoin.decoder, decoder_layers=2), {})
    assert (config.decoder_relative_buckets, decoder) == (32, {})


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"model_type": "detr", "use_timm_backbone": False, "backbone": "microsoft/resnet-50"}, "model type is 'detr'"),
        ({"model_type": "timm_wrapper", "architecture": "hf-hub:a/b"}, "model type is 'timm_wrapper'"),
        ({}, "model type is None"),
        ({"model_type": "bert", "num_hidden_layers": 10**7}, "10,000,000 layers"),
    ],
)
def test_a_description_that_would_fetch_parts_or_fill_the_memory_is_refused(monkeypatch, description, message):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asks for a server"))
    with pytest.raises(ValueError, match=message):
        options_of(json.dumps(description))

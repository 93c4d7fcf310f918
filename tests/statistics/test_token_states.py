"""Token hidden states by layer, from our encoders and Hugging Face models."""

import numpy as np
import pytest
import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.statistics.token_states import (
    EncoderStates,
    MaskedBatch,
    mask_texts,
    states_by_kind,
)
from tests.support.networks import BOS, EOS, MASK, PAD, batch, network, text

KEEP = (BOS, EOS)


def states_of(variant):
    return EncoderStates(network(variant).encoder, PAD, MASK)


def test_the_fused_kernel_measures_nothing(monkeypatch):
    """The kernel is for training only, in the precision in which training compared it."""
    states, seen = states_of("mae_lm"), []
    states.encoder.train().attention_backend = AttentionBackend.fused
    forward = type(states.encoder).forward

    def record(self, *arguments):
        seen.append(self.attention_backend)
        return forward(self, *arguments)

    monkeypatch.setattr(type(states.encoder), "forward", record)
    states(batch(text(9, seed=1)), see_masks=False)
    assert seen == [AttentionBackend.sdpa]
    assert states.encoder.attention_backend is AttentionBackend.fused
    assert states.encoder.training


@pytest.fixture
def masked_text():
    tokens = batch(text(9, seed=1), text(6, seed=2))
    is_masked = torch.zeros_like(tokens).bool()
    is_masked[0, [2, 5]] = is_masked[1, 3] = True
    return MaskedBatch(tokens, is_masked)


def by_kind(states, text):
    """Return hidden states by input, tokens and layer."""
    return {(kind.input, kind.tokens, kind.layer): rows for kind, rows in states_by_kind(states, text)}


@pytest.mark.parametrize(
    ("variant", "first_with_masks", "is_forced"),
    [
        ("mae_lm", 4, True),
        ("mae_lm_3ml_cross", 4, True),
        ("mae_lm_mask_later", 2, True),
        ("mae_lm_roberta", 0, False),
        ("mae_lm_exlm", 0, False),
        ("mae_lm_exlm_decoder", 4, True),
    ],
)
def test_forced_input_is_for_encoders_without_masks(variant, first_with_masks, is_forced, masked_text):
    states = states_of(variant)
    inputs = ("clean", "as_trained", *(["forced"] if is_forced else []))
    assert states.inputs == inputs
    assert (states.layers, states.dim, states.max_tokens) == (3, 16, 24)
    masks = 12 if variant == "mae_lm_exlm" else 3
    expected = {(kind, "real", layer): 9 + 6 - 3 for kind in inputs for layer in range(4)}
    expected |= {("as_trained", "mask", layer): masks for layer in range(first_with_masks, 4)}
    expected |= {("forced", "mask", layer): masks for layer in range(4) if is_forced}
    assert {key: len(rows) for key, rows in by_kind(states, masked_text).items()} == expected


@pytest.mark.parametrize("variant", ["mae_lm", "mae_lm_roberta"])
def test_states_equal_those_of_the_network(variant, masked_text):
    """Compare position by position; only the order of the float32 operations differs."""
    model = network(variant).eval()
    corrupted = masked_text.tokens.masked_fill(masked_text.is_masked, MASK)
    for kind, rows in states_by_kind(EncoderStates(model.encoder, PAD, MASK), masked_text):
        source = masked_text.tokens if kind.input == "clean" else corrupted
        for row in range(2):
            present = source[row].ne(PAD)
            if kind.input == "as_trained" and variant == "mae_lm":
                present &= ~masked_text.is_masked[row]
            expected = reference(model.encoder, source[row], present)[kind.layer]
            is_masked = masked_text.is_masked[row][present]
            expected = expected[is_masked if kind.tokens == "mask" else ~is_masked]
            torch.testing.assert_close(rows[: len(expected)], expected, rtol=0, atol=1e-5)
            rows = rows[len(expected) :]
        assert len(rows) == 0


def reference(encoder, tokens, present):
    """Run the encoder's layers on the selected positions of one text, alone in its batch."""
    from mae_lm_fairseq.core.packing import layout_of

    positions = torch.arange(len(tokens))[None]
    layout = layout_of(present[None], positions)
    with torch.no_grad():
        embedded = encoder.embed(encoder.embed_tokens(tokens[present]), layout)
        return encoder.run(list(encoder.layers), embedded, layout)


def test_masked_tokens_do_not_influence_as_trained_states(masked_text):
    other = masked_text._replace(tokens=masked_text.tokens.masked_fill(masked_text.is_masked, 7))
    states = states_of("mae_lm")
    first, second = by_kind(states, masked_text), by_kind(states, other)
    for key, rows in first.items():
        same = torch.equal(rows, second[key])
        assert same is (key[0] != "clean" or key[2] == 0), key


def test_mask_in_encoder_fraction_is_visible_as_trained(masked_text):
    encoder = network("mae_lm").encoder
    hidden, some, seen = (by_kind(EncoderStates(encoder, PAD, MASK, part), masked_text) for part in (0.0, 0.5, 1.0))
    assert not any(kind == "forced" for kind, _, _ in seen)
    for (kind, tokens, layer), rows in seen.items():
        assert torch.equal(rows, hidden["forced" if kind == "as_trained" else kind, tokens, layer])
    masks = "as_trained", "mask", 3
    assert 0 < len(some[masks]) < len(seen[masks]) == masked_text.is_masked.sum()
    assert torch.equal(some["forced", "mask", 3], hidden["forced", "mask", 3])


def test_measuring_keeps_training_mode_and_random_state(masked_text):
    states = states_of("mae_lm")
    for mode in (True, False):
        states.encoder.train(mode)
        before = torch.get_rng_state()
        once, twice = (list(states_by_kind(states, masked_text)) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), before)
        assert all(module.training is mode for module in states.encoder.modules())
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(once, twice, strict=True))
        assert not any(rows.requires_grad for _, rows in once)


def test_masks_are_a_fraction_of_ordinary_tokens():
    texts = [[*text(length, seed).tolist(), EOS] for seed, length in enumerate((20, 11, 5, 3))]
    masked = mask_texts(texts, PAD, KEEP, 0.3, seed=1)
    for row, ids in enumerate(texts):
        assert masked.tokens[row].tolist() == ids + [PAD] * (21 - len(ids))
        positions = masked.is_masked[row].nonzero().flatten()
        assert len(positions) == round(0.3 * (len(ids) - 2))
        assert not np.isin(masked.tokens[row][positions], [*KEEP, PAD]).any()


def test_masks_depend_on_text_and_seed_only():
    texts = [text(20, seed).tolist() for seed in range(6)]
    whole = mask_texts(texts, PAD, KEEP, 0.3, seed=1).is_masked
    parts = [mask_texts(texts[k : k + 2], PAD, KEEP, 0.3, seed=1, first=k).is_masked for k in (0, 2, 4)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(mask_texts(texts, PAD, KEEP, 0.3, seed=2).is_masked, whole)

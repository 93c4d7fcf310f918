"""Rank profiles of encoders with known ranks."""

import pytest
import torch

from mae_lm_fairseq.statistics.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.statistics.token_states import EncoderStates, LayerStates
from mae_lm_fairseq.tasks.monitoring import RankMonitor
from tests.support.networks import BOS, MASK, PAD, network, text

DIM, WORDS = 12, 6
TEXTS = [[BOS, *(2 + (row + place) % WORDS for place in range(20))] for row in range(40)]
SETTINGS = RankSettings(bootstrap=20, threshold=0.99)


class KnownStates:
    """Encoder with hidden states of known rank.

    Real tokens span six directions if the text contains ``[MASK]``, otherwise three of them. ``[MASK]`` spans
    ``layer + 1`` further directions, out of ``DIM`` in all.
    """

    inputs = ("clean", "as_trained")
    layers, dim, max_tokens, pad, mask = 4, DIM, 64, PAD, MASK

    def __call__(self, tokens, see_masks):
        index = tokens.flatten().ne(self.pad).nonzero().squeeze(1)
        ids = tokens.flatten()[index]
        is_mask = ids.eq(self.mask)
        directions = WORDS if is_mask.any() else WORDS // 2
        real = torch.nn.functional.one_hot(ids.where(~is_mask, 0) % directions, DIM).float()
        positions = torch.arange(len(ids))
        return [
            LayerStates(
                torch.where(
                    is_mask[:, None], torch.nn.functional.one_hot(WORDS + positions % (layer + 1), DIM).float(), real
                ),
                index,
            )
            for layer in range(self.layers + 1)
        ]


@pytest.fixture(scope="module")
def known():
    return rank_profile(KnownStates(), TEXTS, special_ids=[BOS], settings=SETTINGS) | {"label": "known"}


def rows(profile, name, **place):
    return [row for row in profile[name] if place.items() <= row.items()]


def test_ranks_and_gaps_of_known_states(known):
    for layer in range(5):
        for kind, tokens, rank in (("clean", "real", 3), ("as_trained", "real", 6), ("as_trained", "mask", layer + 1)):
            [row] = rows(known, "ranks", layer=layer, input=kind, tokens=tokens)
            assert row["numerical"] == row["numerical_low"] == row["numerical_high"] == rank
            assert row["threshold"] == rank
        [gap] = rows(known, "gaps", layer=layer, input="as_trained")
        assert gap["numerical"] == gap["numerical_low"] == 3


def test_the_same_tokens_are_compared(known):
    masked = 3 * len(TEXTS)  # 15 % of 20 in each text
    counts = {(row["input"], row["tokens"]): row["count"] for row in known["ranks"]}
    assert counts == {
        ("clean", "real"): 21 * 40 - masked,
        ("as_trained", "real"): 21 * 40 - masked,
        ("as_trained", "mask"): masked,
    }
    described = {"width": DIM, "layers": 4, "texts": 40, "tokens": 840, "chunks": 20, "bootstrap": 20, "seed": 1}
    assert described.items() <= known.items()


def test_mask_states_are_outside_the_span_of_real_tokens(known):
    for row in known["outside"]:
        assert row["share"] == row["low"] == pytest.approx(1, abs=1e-12)
        assert row["excess"] == pytest.approx(1, abs=0.01)
        assert row["share_of_real"] == pytest.approx(0, abs=0.01)


def test_memory_limit_adds_passes_without_changing_results(known):
    steps = {}

    def progress(items, name):
        steps[name] = len(items)
        return items

    again = rank_profile(KnownStates(), TEXTS, [BOS], SETTINGS, progress, memory=2 * 3 * 20 * DIM**2 * 8)
    ranges, batches = ("0 to 1", "2 to 3", "4 to 4"), 20  # two texts in each chunk
    assert steps == {
        f"layers {part}, {what}": count
        for part, layers in zip(ranges, (2, 2, 1), strict=True)
        for what, count in (("text", batches), ("ranks", layers))
    }
    assert again.items() <= known.items()


def test_every_setting_changes_the_profile(known):
    for changes in ({"mask_prob": 0.3}, {"threshold": 0.5}, {"centred": True}, {"bootstrap": 10}, {"seed": 2}):
        values = {name: getattr(SETTINGS, name) for name in ("threshold", "bootstrap")} | changes
        other = rank_profile(KnownStates(), TEXTS, [BOS], RankSettings(**values))
        assert any(other[name] != known[name] for name in ("ranks", "outside")), changes


def test_monitor_agrees_with_profile():
    """Compare the last layer on the same texts with the same masks."""
    texts = [text(20 - seed % 3, seed).tolist() for seed in range(40)]
    for variant, mask_in_encoder, count in (("mae_lm", 0.0, 4), ("mae_lm", 0.5, 5), ("mae_lm_roberta", 0.0, 3)):
        encoder = network(variant).train().encoder
        states = EncoderStates(encoder, PAD, MASK, mask_in_encoder)
        profile = rank_profile(states, texts, [BOS], RankSettings())
        before = torch.get_rng_state()
        found = RankMonitor(texts, PAD, MASK, [BOS], mask_in_encoder).measure(encoder)
        assert torch.equal(torch.get_rng_state(), before)
        assert encoder.training
        expected = {f"rank_{row['tokens']}_{row['input']}": row["threshold"] for row in rows(profile, "ranks", layer=3)}
        assert found == expected
        assert len(found) == count

"""Repeated measurement of effective ranks on fixed texts during training."""

from collections.abc import Sequence

import torch

from mae_lm_fairseq.core.encoder import Encoder
from mae_lm_fairseq.statistics.effective_rank import SecondMoments, ranks
from mae_lm_fairseq.statistics.rank_profile import TEXTS_AT_ONCE, RankSettings
from mae_lm_fairseq.statistics.token_states import EncoderStates, mask_texts, states_by_kind

MONITORED_TOKENS = 4096
"""Amount of text: enough for ranks of some hundreds, and so little that a measurement costs no more than a few
updates."""


class RankMonitor:
    """Monitor of the last layer of an encoder, on the same texts with the same masks (15 %) every time.

    It does not use torch's random numbers, and leaves the encoder's training mode unchanged.

    Args:
        texts: token ids.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        keep: ids of special tokens, which are never masked.
        mask_in_encoder: see :class:`~mae_lm_fairseq.statistics.token_states.EncoderStates`.
    """

    def __init__(
        self, texts: Sequence[list[int]], pad: int, mask: int, keep: Sequence[int], mask_in_encoder: float = 0.0
    ):
        self.pad, self.mask, self.mask_in_encoder = pad, mask, mask_in_encoder
        settings = RankSettings()
        self.batches = [
            mask_texts(texts[start : start + TEXTS_AT_ONCE], pad, keep, settings.mask_prob, settings.seed, start)
            for start in range(0, len(texts), TEXTS_AT_ONCE)
        ]

    @torch.no_grad()
    def measure(self, encoder: Encoder) -> dict[str, float]:
        """Return threshold ranks (90 %) by name: ``rank_real_clean``, ``rank_mask_as_trained`` and so on.

        The names consist of ``real`` or ``mask`` and :data:`~mae_lm_fairseq.statistics.token_states.INPUTS`.
        """
        looked_into, moments = EncoderStates(encoder, self.pad, self.mask, self.mask_in_encoder), {}
        for batch in self.batches:
            for kind, tokens, layer, states in states_by_kind(looked_into, batch):
                if layer == looked_into.layers:
                    name = f"rank_{tokens}_{kind}"
                    moments.setdefault(name, SecondMoments(looked_into.dim)).add(states)
        return {name: float(ranks(moment.energies())["threshold"]) for name, moment in moments.items()}

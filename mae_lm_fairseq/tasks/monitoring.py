"""Metrics of training beside the loss: effective ranks of the encoder's states, and the rate of a device by formula."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.distributed.utils import get_data_parallel_world_size, get_global_rank
from fairseq.logging import metrics

from mae_lm_fairseq.core.encoder import Encoder
from mae_lm_fairseq.cost.planned_run import DEVICES, kind_of_gpu
from mae_lm_fairseq.models.architectures import Autocast
from mae_lm_fairseq.statistics.effective_rank import SecondMoments, ranks
from mae_lm_fairseq.statistics.rank_profile import RankSettings
from mae_lm_fairseq.statistics.token_states import EncoderStates, masked_batches, states_by_kind

logger = logging.getLogger(__name__)

MONITORED_TOKENS = 4096
"""Amount of text: enough for ranks of some hundreds, and so little that a measurement costs no more than a few
updates."""


class RankMonitor:
    """Monitor of the last layer of an encoder, on the same texts with the same masks (15 %) every time.

    It does not use torch's random numbers, and leaves the encoder's training mode unchanged.

    Args:
        keep: ids of special tokens, which are never masked.
    """

    def __init__(
        self,
        texts: Sequence[list[int]],
        pad: int,
        mask: int,
        keep: Sequence[int],
        mask_in_encoder: float = 0.0,
        interval: int = 1,
    ):
        self.pad = pad
        self.mask = mask
        self.mask_in_encoder = mask_in_encoder
        self.interval = interval
        self.latest: dict[str, float] = {}
        settings = RankSettings()
        self.batches = masked_batches(texts, pad, keep, settings.mask_prob, settings.seed)

    @torch.no_grad()
    def measure(self, encoder: Encoder) -> dict[str, float]:
        """Return threshold ranks (90 %) by name: ``rank_real_clean``, ``rank_mask_as_trained`` and so on.

        The names consist of ``real`` or ``mask`` and :data:`~mae_lm_fairseq.statistics.token_states.INPUTS`.
        """
        encoder_states = EncoderStates(encoder, self.pad, self.mask, self.mask_in_encoder)
        moments: dict[str, SecondMoments] = {}
        for batch in self.batches:
            for kind, states in states_by_kind(encoder_states, batch):
                if kind.layer != encoder_states.layers:
                    continue
                name = f"rank_{kind.tokens}_{kind.input}"
                if name not in moments:
                    moments[name] = SecondMoments(encoder_states.dim)
                moments[name].add(states)
        return {name: float(ranks(moment.energies())["threshold"]) for name, moment in moments.items()}

    def after_update(self, updates: int, encoder: Encoder) -> None:
        """Measure in the first process, if it is time, and log the latest ranks; ``updates`` counts this one."""
        if get_global_rank() != 0:
            return
        if updates % self.interval == 0:
            self.latest = self.measure(encoder)
            values = ", ".join(f"{name} {value:.0f}" for name, value in self.latest.items())
            logger.info("effective ranks after %d updates: %s", updates, values)
        for name, value in self.latest.items():
            metrics.log_scalar(name, value, weight=0, priority=600, round=1)  # 0: the last value, no average


def monitored_texts(sequences: FairseqDataset) -> list[list[int]]:
    """Return some sequences of a split, evenly spaced, as lists of ids."""
    enough = math.ceil(MONITORED_TOKENS / np.mean(sequences.sizes))
    count = min(len(sequences), enough)
    return [sequences[len(sequences) * number // count].tolist() for number in range(count)]


def peak_flops(model) -> float | None:
    """Return the peak FLOP/s of the model's GPU in half precision; None for other devices and for float32 products.

    The peak of float32 depends on whether torch uses TF32.
    """
    weight = next(model.parameters())
    is_half = weight.dtype != torch.float32 or getattr(model, "autocast", None) is Autocast.bf16
    if not (weight.is_cuda and is_half):
        return None
    kind = kind_of_gpu(torch.cuda.get_device_properties(weight.device))
    return None if kind is None else DEVICES[kind].half


def log_throughput(logging_outputs: Sequence[dict[str, Any]], peak: float | None) -> None:
    """Log ``tflops`` and ``mfu`` of batches that have ``flops``.

    ``tflops`` is the FLOPs of the batches, without padding and recomputed activations, in 1e12 per second of each
    device, over the same time as fairseq's ``wps``. ``mfu`` is its fraction of ``peak``, in FLOP/s, if that is known.
    """
    if not any("flops" in log for log in logging_outputs):
        return
    flops = sum(log["flops"] for log in logging_outputs)  # of several processes a tensor, which is not read here
    metrics.log_speed("tflops", flops / 1e12 / get_data_parallel_world_size(), priority=95, round=4)
    if peak is not None:
        metrics.log_derived("mfu", lambda meters: round(float(meters["tflops"].avg) * 1e12 / peak, 4), priority=96)

"""Speed of training on this machine, measured for networks whose cost no formula describes."""

import time

import torch

from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.text.tokenizer import SPECIALS
from mae_lm_fairseq.trained.model import TrainedModel
from mae_lm_fairseq.trained.validation import PAD
from mae_lm_fairseq.wrapped.network import build_network

MEASURED_UPDATES, WARM_UP = 20, 2
"""Number of measured updates, and of those before them, which are slower."""
_TOKENS = {"cpu": 2_048, "cuda": 16_384}
"""Tokens of a measured update at most, unless a sequence is longer."""


def measured_hours(run: PlannedRun, device: torch.device) -> float:
    """Return the hours of a training on devices like one of this machine, measured by 20 updates of random tokens.

    An update is a batch of full sequences, forward and backward, and a step of AdamW; on a GPU in bfloat16.
    """
    mask = run.vocab_size - 1
    model = TrainedModel(build_network(run.network_config(), run.vocab_size, PAD, mask), PAD, mask).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = max(1, _TOKENS[device.type] // run.tokens_per_sample)
    rows = min(rows, run.batch_size)
    tokens = torch.randint(len(SPECIALS), mask, (rows, run.tokens_per_sample), device=device)
    is_predicted = torch.rand(tokens.shape, device=device) < run.mask_prob
    targets = tokens[is_predicted]
    tokens[is_predicted] = mask
    layout = model.layout_of(tokens, is_predicted)

    durations = []
    for _ in range(WARM_UP + MEASURED_UPDATES):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, _ = model.masked_loss(tokens, layout, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the GPU
        durations.append(time.perf_counter() - start)
    seconds_per_token = sum(durations[WARM_UP:]) / MEASURED_UPDATES / tokens.numel()
    return run.tokens * seconds_per_token / run.devices / 3600

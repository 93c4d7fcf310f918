"""Logits of fine-tuned models, in batches."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.utils.output import progress_bar


def with_progress(batches: Sequence) -> Iterable:
    """Iterate over batches; progress and the estimated time left go to standard error."""
    form = "{percentage:3.0f}%|{bar:25}| {elapsed}, {remaining} left"
    return progress_bar(batches, stream=sys.stderr, total=len(batches), bar_format=form)


def by_length(sizes: Sequence[int], batch_size: int) -> list[np.ndarray]:
    """Return batches of the numbers of rows, given the rows' lengths; rows of similar length are together."""
    order = np.argsort(sizes, kind="stable")
    starts = range(0, len(order), batch_size)
    return [order[start : start + batch_size] for start in starts]


@torch.no_grad()
def batch_logits(
    model: torch.nn.Module,
    samples: Sequence[dict[str, Any]],
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]],
    batches: Iterable[Sequence[int]],
    head: str,
) -> Iterator[tuple[Sequence[int], dict[str, Any], Tensor]]:
    """Yield the numbers of the samples of each batch, the batch that ``collate`` makes of them, and a head's logits.

    The model is in evaluation mode.
    """
    device = next(model.parameters()).device
    for numbers in batches:
        batch = collate([samples[int(number)] for number in numbers])
        tokens = batch["net_input"]["src_tokens"]
        logits, _ = model.classify(tokens.to(device), head)
        yield numbers, batch, logits

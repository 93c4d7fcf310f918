"""Batches of texts for inference."""

from collections.abc import Iterator, Sequence

BATCH_TOKENS = 2048
"""Maximum number of tokens in a batch, padding included; a longer text is a batch of its own."""


def batches_of_similar_length(lengths: Sequence[int], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Yield batches of indices of texts, longest texts first.

    Each batch has at most ``tokens`` tokens including its padding, or a single text.
    """
    batch = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch

"""Token ids of the rows of a sentence task: one or two sentences, and the sequence that the model reads."""

from collections.abc import Sequence

import numpy as np

from mae_lm_fairseq.text.tokenizer import BOS, EOS, Tokenizer


def encode(sentences: Sequence[tuple[str, ...]], tokenizer: Tokenizer) -> list[tuple[np.ndarray, ...]]:
    """Return the token ids of one or two sentences per row."""
    columns = [tokenizer.encode_lines(list(column)) for column in zip(*sentences, strict=True)]
    return list(zip(*columns, strict=True))


def join(row: Sequence[np.ndarray]) -> np.ndarray:
    """Return ``<s> A </s>`` or ``<s> A </s> </s> B </s>``, the sequence that fairseq makes of a row."""
    first, *others = row
    parts = [[BOS], first, [EOS]]
    for other in others:
        parts += [[EOS], other, [EOS]]
    return np.concatenate(parts).astype(np.int64)


def sequence_length(row: Sequence[np.ndarray]) -> int:
    """Return the length of the sequence of a row in tokens, including ``<s>`` and every ``</s>``."""
    return sum(map(len, row)) + 2 * len(row)


def truncate(row: Sequence[np.ndarray], max_positions: int) -> list[np.ndarray]:
    """Truncate one or two sentences so that their sequence has at most ``max_positions`` tokens.

    Tokens are removed one at a time from the end of the currently longer sentence, or of the second one if both are
    equally long, as in BERT (Devlin et al. 2019).
    """
    lengths = list(map(len, row))
    excess = sequence_length(row) - max_positions
    for _ in range(excess):
        longest = max(range(len(row)), key=lambda number: (lengths[number], number))
        lengths[longest] -= 1
    return [sentence[: max(0, size)] for sentence, size in zip(row, lengths, strict=True)]

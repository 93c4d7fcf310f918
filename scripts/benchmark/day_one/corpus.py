"""Synthetic text: a data-bin that is the same on every machine."""

from pathlib import Path

import numpy as np

from mae_lm_fairseq.text.data_bin import DataBinWriter

SPECIALS, EOS = 4, 2
"""Number of fairseq's special tokens before the words, and the id of ``</s>``."""
DOCUMENT = 16
"""Lines of a document."""


def write_data_bin(directory: Path, vocabulary: int, tokens: int) -> Path:
    """Write a data-bin of Zipfian text, and return its directory.

    Every second word follows from the word before it in 80 % of the cases, so that there is something to learn.

    Args:
        vocabulary: size of the dictionary with ``<mask>``, which fairseq adds.
        tokens: approximate number of tokens of the training text; a twentieth of it is validation text.
    """
    directory.mkdir(parents=True)
    words = vocabulary - SPECIALS - 1
    lines = "".join(f"\u2581w{word} {words - word}\n" for word in range(words))
    (directory / "dict.txt").write_text(lines, encoding="utf-8")
    for seed, (split, size) in enumerate({"train": tokens, "valid": tokens // 20}.items(), 1):
        with DataBinWriter(directory / split, vocabulary - 1) as writer:
            writer.write(*draw_text(words, size, seed))
    return directory


def draw_text(words: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [tokens] int64 ids and [lines] int64 sizes of a text; an empty line ends each document.

    The numbers are drawn by numpy's RandomState, whose stream is the same in every version.
    """
    generator = np.random.RandomState(seed)
    sizes = generator.randint(6, 42, size // 22 + DOCUMENT)
    sizes[DOCUMENT - 1 :: DOCUMENT] = 1
    sizes[-1] = 1
    frequencies = 1 / np.arange(3, words + 3)
    drawn = generator.choice(words, sizes.sum(), p=frequencies / frequencies.sum())
    follows = np.arange(1, len(drawn), 2)
    follows = follows[generator.random_sample(len(follows)) < 0.8]
    drawn[follows] = (7 * drawn[follows - 1] + 1) % words
    text = drawn + SPECIALS
    text[sizes.cumsum() - 1] = EOS
    return text, sizes

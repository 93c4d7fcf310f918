"""Training batches for benchmarks, as ``fairseq-train`` makes them, and shared by all subjects."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mae_lm_fairseq.cost.flops import Positions
from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.utils.errors import UserError

BOS, PAD, EOS, UNK = range(4)
"""fairseq's special tokens. ``<mask>`` is the last id of the vocabulary."""
SEED = 1
LINE_TOKENS = (2, 128)
LINES_PER_DOCUMENT = 16
"""Shape of invented text: range of the tokens of a line, and the mean number of lines of a document."""


@dataclass(frozen=True)
class Case:
    """Description of a batch: maximum length and number of its sequences, and its masking rate."""

    length: int
    rows: int
    mask_prob: float = 0.15

    def __str__(self) -> str:
        return f"{self.rows} x {self.length}, {self.mask_prob:.0%}"

    @property
    def file(self) -> str:
        """Name of the file that :func:`write_batch` writes."""
        return f"{self.length}x{self.rows}-{self.mask_prob}.npz"


@dataclass(frozen=True)
class Batch:
    """Tokens and masks of a batch, which each subject converts to its own format."""

    tokens: np.ndarray
    """[B, T] int64, padded with ``<pad>``; the original tokens, also at masked positions."""
    masked: np.ndarray
    """[B, T] bool."""

    @property
    def text_tokens(self) -> int:
        """Number of tokens of the text, masked ones included."""
        return int((self.tokens != PAD).sum())

    @property
    def predicted(self) -> int:
        return int(self.masked.sum())

    @property
    def is_ragged(self) -> bool:
        """Whether the rows have different numbers of visible tokens."""
        return len({sample.visible for sample in self.samples()}) > 1

    def samples(self) -> list[Positions]:
        """Return the numbers of positions of each row."""
        lengths, masked = (self.tokens != PAD).sum(1), self.masked.sum(1)
        return [
            Positions(int(length), int(length - hidden), int(hidden))
            for length, hidden in zip(lengths, masked, strict=True)
        ]


def write_text(directory: Path, vocab_size: int, tokens: int) -> None:
    """Write a data-bin with at least this number of tokens: random words in lines and documents of random lengths."""
    words = vocab_size - 5  # four special tokens before them, <mask> after them
    (directory / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(words)), encoding="utf-8")
    generator = np.random.default_rng(SEED)
    sizes = generator.integers(*LINE_TOKENS, 1 + 2 * tokens // sum(LINE_TOKENS))
    ends = np.flatnonzero(generator.random(len(sizes)) < 1 / LINES_PER_DOCUMENT)
    sizes = np.insert(sizes, ends + 1, 1)  # an empty line after every document
    text = generator.integers(UNK + 1, vocab_size - 1, sizes.sum())
    text[sizes.cumsum() - 1] = EOS
    with DataBinWriter(directory / "train", vocab_size - 1) as writer:
        writer.write(text, sizes)


def vocabulary_size(data_bin: Path) -> int:
    """Return the number of symbols of a data-bin's dictionary, special tokens included.

    Raises:
        UserError: if it has none.
    """
    try:
        return len((data_bin / "dict.txt").read_text(encoding="utf-8").splitlines()) + 5  # see write_text
    except OSError as error:
        raise UserError(
            f"--data-bin {data_bin}: dict.txt: {error.strerror}; name a data-bin of mae-lm prepare"
        ) from None


def record_batch(data_bin: Path, case: Case) -> Batch:
    """Return a batch of the first epoch of training on a data-bin.

    Our task reads, sorts and masks the text as in ``mae-lm pretrain``: a sequence is complete lines of one document,
    and a batch has sequences of similar length. The batch is in the middle of the tokens in that order. If the rows of
    visible tokens have the same length there, by chance, it is the next one whose rows differ, as those of most do.

    Raises:
        UserError: if the data-bin has no training text or fewer sequences than the batch.
    """
    from fairseq.data import Dictionary
    from omegaconf import OmegaConf

    from mae_lm_fairseq.tasks.masked_autoencoder_lm import MaskedAutoencoderLMTask
    from mae_lm_fairseq.tasks.options import MaskedAutoencoderLMConfig

    cfg = MaskedAutoencoderLMConfig(data=str(data_bin), tokens_per_sample=case.length, mask_prob=case.mask_prob)
    cfg.seed, cfg.sample_break_mode = SEED, "complete_doc"
    task = MaskedAutoencoderLMTask(OmegaConf.structured(cfg), Dictionary.load(str(data_bin / "dict.txt")))
    task.load_dataset("train")
    dataset = task.dataset("train")
    order = dataset.ordered_indices()
    if len(order) < case.rows:
        raise UserError(f"--data-bin {data_bin}: {len(order)} sequences are too few for a batch of {case.rows}")
    before = dataset.sizes[0][order].cumsum()
    middle = min(int(np.searchsorted(before, before[-1] / 2)), len(order) - case.rows)
    batches = (
        _read_batch(dataset, order[first : first + case.rows])
        for first in range(middle, len(order) - case.rows + 1, case.rows)
    )
    usual = next(batches)
    return next((batch for batch in itertools.chain([usual], batches) if batch.is_ragged), usual)


def _read_batch(dataset, indices: np.ndarray) -> Batch:
    read = dataset.collater([dataset[index] for index in indices])
    target, source = read["target"].numpy(), read["net_input"]["src_tokens"].numpy()
    masked = target != PAD
    return Batch(np.where(masked, target, source), masked)


def write_batch(directory: Path, case: Case, batch: Batch) -> None:
    """Write a batch for the subjects' processes."""
    np.savez(directory / case.file, tokens=batch.tokens, masked=batch.masked)

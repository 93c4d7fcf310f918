"""How well a masked language model predicts the tokens of texts, with masks of several kinds.

A text becomes rows: copies of it with different tokens masked (:class:`Masking`). The rows of all texts are predicted
in batches of similar length.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.packing import batch_layout, seen_masks, to_device
from mae_lm_fairseq.text.data_bin import entropy_of_counts
from mae_lm_fairseq.text.offsets import encode_with_spans, word_numbers
from mae_lm_fairseq.text.tokenizer import BOS, EOS, SPECIALS, Tokenizer

BATCH_TOKENS = 2048
"""Maximum number of tokens in a batch, padding included; a longer text is a batch of its own."""
NEVER_MASKED = -1
"""The word of a special token."""


class Words(NamedTuple):
    """A text as tokens, with the words that they belong to."""

    ids: np.ndarray
    """int[T]."""
    words: np.ndarray
    """int[T]: number of each token's word, ascending; :data:`NEVER_MASKED` for special tokens."""


class Masking(NamedTuple):
    """Rows of one text."""

    hidden: np.ndarray
    """bool[rows, T]: the tokens that are masked."""
    predicted: np.ndarray
    """bool[rows, T]: the masked tokens whose predictions count."""


class _Row(NamedTuple):
    """A copy of a text with its masks."""

    text: int
    """Number of the text."""
    ids: np.ndarray
    hidden: np.ndarray
    predicted: np.ndarray


class Outcome(NamedTuple):
    """The predictions for each text, summed over its rows."""

    log_likelihoods: np.ndarray
    """float64[texts], in nats."""
    predicted: np.ndarray
    """int64[texts]: how many tokens were predicted."""
    correct: np.ndarray
    """int64[texts]: how many of them were the most likely token."""


def as_words(tokenizer: Tokenizer, text: str) -> Words:
    """Return a text of one line, between ``<s>`` and ``</s>``."""
    ids, spans = encode_with_spans(tokenizer, text)
    words = [NEVER_MASKED, *word_numbers(text, spans), NEVER_MASKED]
    return Words(np.array([BOS, *ids, EOS]), np.array(words))


class NetworkPredictor:
    """A network of this package, which predicts through its decoder if it has one.

    Args:
        network: in evaluation mode, with its language model head.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
        mask_in_encoder: fraction of the ``<mask>`` tokens that the encoder saw in pretraining (``--mask-in-encoder``).
            It sees them at this fraction of the positions, the same ones in every text.
        without_masks: replace every ``<mask>`` by a token other than the special ones, which depends on the position
            alone, for a model that was trained with random tokens instead.
    """

    def __init__(
        self,
        network: MaskedAutoencoder,
        pad: int,
        mask: int,
        mask_in_encoder: float = 0.0,
        *,
        without_masks: bool = False,
    ):
        self.network = network
        self.without_masks = without_masks
        self.pad, self.mask = pad, mask
        self.mask_in_encoder = mask_in_encoder

    @torch.no_grad()
    def __call__(self, tokens: Tensor, is_predicted: Tensor) -> Tensor:
        """Return the float32 logits [number predicted, vocabulary] at the predicted positions, row by row.

        Args:
            tokens: [B, T] int64 on the CPU, padded on the right.
            is_predicted: [B, T] bool on the CPU.
        """
        if self.without_masks:
            # As in fairseq's dictionary: special tokens come first, <mask> last.
            generator = np.random.default_rng(0)
            drawn = generator.integers(len(SPECIALS), self.mask, tokens.shape[1])
            tokens = torch.where(tokens == self.mask, torch.from_numpy(drawn), tokens)
        device = self.network.encoder.embed_tokens.weight.device
        early = seen_masks(tokens, self.mask, self.mask_in_encoder)
        layout = batch_layout(tokens, is_predicted, self.pad, self.mask, early)
        logits = self.network(tokens.to(device), to_device(layout, device))
        return logits.float()


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


def unigram_entropy(texts: Iterable[np.ndarray | Tensor]) -> float:
    """Return the entropy in nats of the token frequencies in texts.

    It is the lowest loss of a model that predicts the same distribution at every position.

    Args:
        texts: ids of the tokens that can be masked, int[T] each.
    """
    counts = Counter()
    for ids in texts:
        counts.update(ids.tolist())
    return entropy_of_counts(counts.values())


def each_token(words: np.ndarray) -> Masking:
    """Mask each token on its own (Salazar et al., 2020, arXiv 1910.14659)."""
    rows = np.eye(len(words), dtype=bool)[words != NEVER_MASKED]
    return Masking(rows, rows)


def each_token_and_later_subwords(words: np.ndarray) -> Masking:
    """Mask each token with the later subwords of its word (Kauf and Ivanova, 2023, arXiv 2305.10588)."""
    is_later = np.triu(words[:, None] == words)
    return Masking(is_later[words != NEVER_MASKED], each_token(words).predicted)


def each_word(words: np.ndarray) -> Masking:
    """Mask each word with all of its subwords."""
    rows = np.setdiff1d(words, NEVER_MASKED)[:, None] == words
    return Masking(rows, rows)


def predict(
    model: NetworkPredictor,
    texts: Sequence[np.ndarray],
    maskings: Sequence[Masking],
    progress: Callable[[Sequence], Iterable] = lambda batches: batches,
) -> Outcome:
    """Predict the masked tokens of texts.

    Args:
        progress: wraps the sequence of batches, for example to show a progress bar.
    """
    rows = []
    for text, (ids, masking) in enumerate(zip(texts, maskings, strict=True)):
        ids = ids.astype(np.int64)
        rows += [_Row(text, ids, hidden, predicted) for hidden, predicted in zip(*masking, strict=True)]
    batches = list(batches_of_similar_length([len(row.ids) for row in rows]))

    count = len(texts)
    outcome = Outcome(np.zeros(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64))
    for batch in progress(batches):
        owners, *columns = zip(*(rows[index] for index in batch), strict=True)
        ids, hidden, predicted = map(_padded, columns, (model.pad, False, False))
        logits = model(ids.masked_fill(hidden, model.mask), predicted)

        targets = ids[predicted].to(logits.device)
        log_likelihoods = logits.gather(1, targets[:, None]).squeeze(1) - logits.logsumexp(1)
        is_correct = logits.argmax(1).eq(targets)
        row_numbers = predicted.nonzero()[:, 0].numpy()
        owners = np.array(owners)[row_numbers]
        np.add.at(outcome.log_likelihoods, owners, log_likelihoods.double().cpu().numpy())
        np.add.at(outcome.predicted, owners, 1)
        np.add.at(outcome.correct, owners, is_correct.long().cpu().numpy())
    return outcome


def _padded(rows: Iterable[np.ndarray], padding: int) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=padding)


def pseudo_log_likelihoods(
    model: NetworkPredictor,
    sentences: Sequence[Words],
    mask_words: bool = False,
    progress: Callable[[Sequence], Iterable] = lambda batches: batches,
) -> np.ndarray:
    """Return the sum of each token's log-probability given all other tokens of its sentence, in nats.

    Args:
        mask_words: while a token is predicted, also mask the later subwords of its word, so that they do not reveal it.
        progress: as for :func:`predict`.

    Returns:
        float64[sentences].
    """
    masking = each_token_and_later_subwords if mask_words else each_token
    texts = [sentence.ids for sentence in sentences]
    maskings = [masking(sentence.words) for sentence in sentences]
    return predict(model, texts, maskings, progress).log_likelihoods

"""Masking of sequences, and the layout of masked batches.

fairseq's ``MaskTokensDataset`` draws the tokens to mask from seed, epoch and index of the sequence, as in RoBERTa. It
treats ``<s>`` and ``</s>`` as ordinary tokens.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset, MaskTokensDataset
from numpy.typing import ArrayLike

from mae_lm_fairseq.core.fixed_sizes import FixedSizes
from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, BatchLayout, batch_layout
from mae_lm_fairseq.tasks.mask_functions import MASK_FUNCTIONS, SequenceToMask
from mae_lm_fairseq.tasks.masking_rates import DrawnByEpoch, RateRange, RateSchedule, VariableMasksDataset
from mae_lm_fairseq.text.offsets import encode_with_spans, word_numbers
from mae_lm_fairseq.text.sentencepiece_tokenizer import WORD_START
from mae_lm_fairseq.text.tokenizer import SPECIALS, Tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.own_code import errors_name

logger = logging.getLogger(__name__)

_WORDS_TO_TRY = 100
_SEQUENCES_TO_TRY = 1000
_DUTY = (
    "a mask function must return two things: the predicted positions in the sequence, and the token ids in their place "
    "(or one id for all)"
)
_MOST_UNMASKED = 0.01
"""Fraction of the sequences without a mask above which a warning is logged."""


def masked_pair(
    dataset: FairseqDataset,
    dictionary: Dictionary,
    rate: RateSchedule | RateRange | None = None,
    mask_function: str | None = None,
    **masking,
) -> tuple[FairseqDataset, FairseqDataset]:
    """Return the corrupted inputs and their targets (``<pad>`` where nothing is predicted).

    Does not use ``MaskTokensDataset.apply_mask``: the cache that it adds ignores the epoch, so that small data sets
    keep the masks of the previous epoch.

    Args:
        rate: masking rate in training, if it differs from sequence to sequence.
        mask_function: name of the function that draws the masks, in place of fairseq's.
    """
    make = functools.partial(MaskTokensDataset, dataset, dictionary)
    if mask_function is not None:
        make = functools.partial(FunctionMasksDataset, dataset, dictionary, rate, mask_function)
    elif rate is not None:
        make = functools.partial(VariableMasksDataset, dataset, dictionary, rate)
    masking["pad_idx"] = dictionary.pad()
    return make(return_masked_tokens=False, **masking), make(return_masked_tokens=True, **masking)


class FunctionMasksDataset(VariableMasksDataset):
    """fairseq's ``MaskTokensDataset`` with the masks of a registered function, drawn by seed, epoch and index.

    Args:
        name: name of the function, see :mod:`~mae_lm_fairseq.tasks.mask_functions`.
    """

    def __init__(
        self, dataset: FairseqDataset, vocab: Dictionary, rate: RateSchedule | RateRange | None, name: str, **masking
    ):
        super().__init__(dataset, vocab, rate, **masking)
        self.option = f"--mask-function {name}"
        self.function = MASK_FUNCTIONS[name]  # a data worker may not know the name
        self.special = [vocab.bos(), vocab.eos()]
        self.counts = np.array(vocab.count)

    def masked(self, epoch: int, index: int) -> torch.Tensor:
        tokens = self.dataset[index].numpy()
        positions, corrupted = self._draw(epoch, index, tokens)
        if not self.return_masked_tokens:
            return torch.from_numpy(corrupted)
        targets = np.full_like(tokens, self.pad_idx)
        targets[positions] = tokens[positions]
        return torch.from_numpy(targets)

    def _draw(self, epoch: int, index: int, tokens: np.ndarray) -> tuple[ArrayLike, np.ndarray]:
        """Return the predicted positions, and the sequence [length] with what the function puts in their place.

        Raises:
            UserError: if the function fails, or returns something else; names file and line.
        """
        is_special = np.isin(tokens, self.special)
        sequence = SequenceToMask(tokens.copy(), is_special, self.mask_prob, self.mask_idx, self.counts)
        # The 3 separates these draws from those of early masks and of rates.
        generator = np.random.default_rng((3, self.seed, epoch, index))
        corrupted = tokens.copy()
        with errors_name(self.option, self.function, _DUTY):
            positions, replacement = self.function(sequence, generator)
            if not np.size(positions):  # whose type may be that of no index
                return [], corrupted
            corrupted[positions] = replacement
            if np.min(positions) < 0:
                raise IndexError(f"position {np.min(positions)}")  # numpy counts from the end
            if is_special[positions].any():
                raise ValueError("it predicts <s> or </s>, which is_special marks")
        return positions, corrupted

    def check(self) -> None:
        """Mask some sequences twice.

        Raises:
            UserError: if the second time differs, a replacement is no token, or nothing is predicted in any of them.
        """
        is_source = not self.return_masked_tokens
        count = 0
        for index in range(min(len(self), _SEQUENCES_TO_TRY)):
            tokens = self.masked(self.epoch, index)
            if not torch.equal(tokens, self.masked(self.epoch, index)):
                raise UserError(
                    f"{self.option} masks a sequence in several ways; draw only with the generator that it gets"
                )
            is_token = (tokens >= 0) & (tokens < len(self.vocab)) & tokens.ne(self.pad_idx)
            if is_source and not is_token.all():
                raise UserError(
                    f"{self.option} puts {tokens[~is_token][0]} in place of a token; return ids of dict.txt"
                )
            count += int(is_token.sum())
        with errors_name(self.option, self.function, _DUTY):
            if not count:
                raise ValueError("it predicts nothing in any sequence that was tried")


def word_starts(dictionary: Dictionary, tokenizer: Tokenizer | None) -> "torch.ByteTensor | UnmarkedWordStarts":
    """Return [vocabulary] uint8, 1 for subwords that start a word and for special tokens.

    Args:
        tokenizer: tokenizer of the data-bin; None for a data-bin without one, whose subwords are sentencepiece's.

    Raises:
        UserError: if no subword is marked as the start of a word, or words are marked elsewhere, as at their ends.
    """
    special = [dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk(), dictionary.index("<mask>")]
    starts = _marked_starts(dictionary.symbols) if tokenizer is None else tokenizer.word_starts()
    starts[special] = False
    if tokenizer is None:
        is_marked = starts.sum() > _marked_ends(dictionary.symbols)
    else:
        is_marked = starts.any() and _marks_words(tokenizer, starts)
    if not is_marked:
        raise UserError(
            "--mask-whole-words: the tokenizer does not mark the subwords that start a word (as U+2581 at the start of "
            "a symbol of dict.txt does), so word starts are unknown; put the tokenizer of the data into the data-bin, "
            "or remove the option"
        )
    starts[special] = True
    flags = torch.from_numpy(starts.astype(np.uint8))
    if tokenizer is not None:
        [first_word] = tokenizer.encode_lines(["a"])
        if not starts[first_word[:1]].all():
            return UnmarkedWordStarts(flags, special)
    return flags


def _marked_starts(symbols: Sequence[str]) -> np.ndarray:
    return np.array([symbol.startswith(WORD_START) for symbol in symbols])


def _marked_ends(symbols: Sequence[str]) -> int:
    """Return the number of sentencepiece's subwords that are marked as the end of a word."""
    return sum(symbol.endswith(WORD_START) and symbol != WORD_START for symbol in symbols)


def _marks_words(tokenizer: Tokenizer, starts: np.ndarray) -> bool:
    """Return whether most words of a text of the tokenizer's own subwords begin with a marked one."""
    subwords = (tokenizer.token_text(number).strip() for number in range(len(SPECIALS), tokenizer.mask))
    words = " ".join(itertools.islice(filter(str.isalpha, subwords), _WORDS_TO_TRY))
    text = f"a {words}"
    ids, spans = encode_with_spans(tokenizer, text)
    begins = np.diff(word_numbers(text, spans.tolist()), prepend=0) > 0
    return 2 * starts[ids[begins]].sum() >= begins.sum()


def warn_of_long_words(sequences: FairseqDataset, starts: "torch.ByteTensor | UnmarkedWordStarts", rate: float) -> None:
    """Log a warning if nothing is masked in a part of the sequences, because the rate of their words is below one.

    Args:
        rate: masking rate of words.
    """
    count = min(len(sequences), _SEQUENCES_TO_TRY)
    tried = [sequences[len(sequences) * number // count] for number in range(count)]
    lengths = [len(tokens) for tokens in tried]
    words = np.array([int(starts.gather(0, tokens).sum()) for tokens in tried])
    unmasked = np.maximum(0, 1 - rate * words).mean()
    if unmasked > _MOST_UNMASKED:
        logger.warning(
            "--mask-whole-words: nothing is masked in about %.0f %% of the sequences, which have %.0f words of %.0f "
            "tokens; a line without spaces is one word. Remove the option, or raise --mask-prob or --tokens-per-sample",
            100 * unmasked,
            np.median(words),
            np.mean(lengths) / max(np.mean(words), 1),
        )


class UnmarkedWordStarts:
    """Word starts of a tokenizer that marks the space before a word, so that the first word of a line has no mark.

    fairseq's ``MaskTokensDataset`` only calls :meth:`gather`.

    Args:
        starts: [vocabulary] uint8, 1 for subwords that are marked, and for special tokens.
    """

    def __init__(self, starts: torch.ByteTensor, special: list[int]):
        self.starts = starts
        self.special = torch.tensor(special)

    def gather(self, dim: int, tokens: torch.Tensor) -> torch.ByteTensor:
        """Return [tokens] uint8, 1 for tokens that start a word: those marked, and those after a special token."""
        starts = self.starts.gather(dim, tokens)
        starts[1:] |= torch.isin(tokens[:-1], self.special).to(starts.dtype)
        return starts


class EarlyMasksDataset(DrawnByEpoch):
    """Adds ``net_input.early_masks`` [B, T] bool to every batch: a random fraction of its ``<mask>`` tokens.

    The encoder sees these tokens, an ablation of the MAE-LM paper (figure 4). They are drawn by seed, epoch and index
    of the sequence, so they depend neither on the batch nor on the number of data workers.

    Args:
        dataset: dataset whose batches have ``id`` [B] and ``net_input.src_tokens`` [B, T].
        fraction: fraction of the ``<mask>`` tokens of a sequence, in (0, 1]; fractional counts are rounded at random.
    """

    def __init__(self, dataset: FairseqDataset, mask: int, fraction: float, seed: int):
        super().__init__(dataset)
        self.mask = mask
        self.fraction = fraction
        self.seed = seed

    def collater(self, samples: list) -> dict:
        batch = self.dataset.collater(samples)
        if batch:
            is_mask = batch["net_input"]["src_tokens"].eq(self.mask)
            early = torch.zeros_like(is_mask)
            for row, sequence in enumerate(batch["id"].tolist()):
                masked = is_mask[row].nonzero().squeeze(1)
                early[row, self._draw(sequence, masked)] = True
            batch["net_input"]["early_masks"] = early
        return batch

    def _draw(self, sequence: int, positions: torch.Tensor) -> torch.Tensor:
        # The 1 separates these draws from fairseq's, which are seeded with the same three numbers.
        generator = np.random.default_rng((1, self.seed, self.epoch, sequence))
        count = int(self.fraction * len(positions) + generator.random())
        chosen = generator.choice(len(positions), count, replace=False)
        return positions[torch.from_numpy(chosen)]


class LayoutDataset(BaseWrapperDataset):
    """Adds ``layout`` (core/packing.py) to every batch. It is computed once, on the CPU, in the data workers.

    Args:
        dataset: dataset whose batches have ``net_input.src_tokens`` and ``target``, both [B, T] padded with ``pad``,
            and optionally ``net_input.early_masks``.
        needs: layouts that the network reads, see :func:`~mae_lm_fairseq.core.packing.batch_layout`.
        flops: computes ``flops``, a number that every batch gets too; None for batches without it.
        fixed_sizes: adds dummies to the batches; those that it fits have ``bucket`` and ``dummies``, their sizes.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        pad: int,
        mask: int,
        needs: frozenset[str] = NEEDED_BY_SOME,
        flops: Callable[[BatchLayout], int] | None = None,
        fixed_sizes: FixedSizes | None = None,
    ):
        super().__init__(dataset)
        self.pad = pad
        self.mask = mask
        self.needs = needs
        self.flops = flops
        self.fixed_sizes = fixed_sizes

    def collater(self, samples: list) -> dict:
        batch = self.dataset.collater(samples)
        if batch:
            batch["layout"] = self._layout(batch)
            if self.flops is not None:
                batch["flops"] = self.flops(batch["layout"])
            if self.fixed_sizes is not None:
                self._add_dummies(batch, self.fixed_sizes)
        return batch

    def _layout(self, batch: dict, width: int | None = None) -> BatchLayout:
        inputs = batch["net_input"]
        return batch_layout(
            inputs["src_tokens"],
            is_predicted=batch["target"].ne(self.pad),
            pad=self.pad,
            mask=self.mask,
            early_masks=inputs.get("early_masks"),
            needs=self.needs,
            width=width,
        )

    def _add_dummies(self, batch: dict, fixed_sizes: FixedSizes) -> None:
        fixed = fixed_sizes.pad_batch(batch["net_input"]["src_tokens"], batch["target"])
        if fixed is not None:
            batch["net_input"]["src_tokens"] = fixed.tokens
            batch["target"] = fixed.target
            batch["bucket"] = fixed.bucket
            batch["dummies"] = fixed.dummies
            batch["layout"] = self._layout(batch, fixed.bucket.width)

"""Masked samples and their layout.

Which tokens are masked is drawn by fairseq's ``MaskTokensDataset``, as for RoBERTa, from seed, epoch and sample; there,
``<s>`` and ``</s>`` are tokens like any other.
"""

import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset, MaskTokensDataset

from ..core.packing import batch_layout
from ..errors import UserError
from .tokenizer import WORD_START


def masked_pair(dataset: FairseqDataset, dictionary: Dictionary, **masking) -> tuple[FairseqDataset, FairseqDataset]:
    """The corrupted inputs and their targets (``<pad>`` where nothing is predicted).

    ``MaskTokensDataset.apply_mask`` is not used: the cache that it puts around both does not know the epoch, so
    that small data sets keep the masks of the epoch before.

    Args:
        dataset: of 1-D token tensors.
        masking: further arguments of fairseq's ``MaskTokensDataset``.
    """
    source, target = (
        MaskTokensDataset(dataset, dictionary, pad_idx=dictionary.pad(), return_masked_tokens=wanted, **masking)
        for wanted in (False, True)
    )
    return source, target


def word_starts(dictionary: Dictionary) -> torch.ByteTensor:
    """[vocabulary] 1 where a piece starts a word, read from sentencepiece's U+2581; special tokens do too.

    Raises:
        UserError: no piece is marked, so the dictionary is not sentencepiece's.
    """
    pieces = dictionary.symbols
    if not any(piece.startswith(WORD_START) for piece in pieces):
        raise UserError(
            "--mask-whole-words: no piece of dict.txt starts with U+2581, so words cannot be told; "
            "use a sentencepiece dictionary, or leave the option out"
        )
    special = {dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk(), dictionary.index("<mask>")}
    starts = [piece.startswith(WORD_START) or place in special for place, piece in enumerate(pieces)]
    return torch.tensor(starts, dtype=torch.uint8)


class LayoutDataset(BaseWrapperDataset):
    """Adds to every batch its ``layout`` (core/packing.py), computed once, on the CPU, in the data workers.

    Args:
        dataset: gives batches with ``net_input.src_tokens`` and ``target``, both [B, T] padded with ``pad``.
        pad, mask: ids of ``<pad>`` and ``<mask>``.
    """

    def __init__(self, dataset: FairseqDataset, pad: int, mask: int):
        super().__init__(dataset)
        self.pad = pad
        self.mask = mask

    def collater(self, samples: list) -> dict:
        batch = self.dataset.collater(samples)
        if batch:
            tokens, target = batch["net_input"]["src_tokens"], batch["target"]
            batch["layout"] = batch_layout(tokens, target.ne(self.pad), self.pad, self.mask)
        return batch

"""Order of the tokens in files for ``transformers``: there, a tokenizer keeps its own ids, which may differ from ours.

Rows of weights that belong to tokens are permuted. ``transformers`` numbers positions from the id of ``<pad>`` plus 1
(RoBERTa) or from 0 (BERT).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from mae_lm_fairseq.text.tokenizer import PAD, Tokenizer
from mae_lm_fairseq.trained.validation import TOKEN_WEIGHTS

_POSITIONS = tuple(f"autoencoder.{stack}.embed_positions.weight" for stack in ("encoder", "decoder"))


@dataclass(frozen=True)
class TokenOrder:
    """Ids of our tokens in a file for ``transformers``.

    Attributes:
        ids: int64[vocabulary], the other id of each of our ids.
        first_position: row of the first position in the other position embeddings.
    """

    ids: Tensor
    first_position: int

    def __getitem__(self, index: int) -> int:
        """Return the id there of one of our ids."""
        return int(self.ids[index])

    def exported(self, weights: Mapping[str, Tensor], of_tokens: Set[str] = TOKEN_WEIGHTS) -> dict[str, Tensor]:
        """Return weights by our names, with the rows of tokens and positions as in the other order."""
        return self._reordered(weights, self.ids.argsort(), PAD + 1, self.first_position, of_tokens)

    def restored(self, weights: Mapping[str, Tensor], of_tokens: Set[str] = TOKEN_WEIGHTS) -> dict[str, Tensor]:
        """Reverse :meth:`exported`, except for rows of positions that no token has; those are zero.

        Weights of other shapes than the network's stay as they are, for the check that follows.
        """
        return self._reordered(weights, self.ids, self.first_position, PAD + 1, of_tokens)

    def _reordered(
        self, weights: Mapping[str, Tensor], order: Tensor, before: int, after: int, of_tokens: Set[str]
    ) -> dict[str, Tensor]:
        is_same = torch.equal(order, torch.arange(len(order)))
        reordered = dict(weights)
        for name, weight in weights.items():
            if name in of_tokens and not is_same and weight.dim() and len(weight) >= len(order):
                reordered[name] = torch.cat([weight[: len(order)][order], weight[len(order) :]])
            elif name in _POSITIONS and before != after and weight.dim() == 2:
                reordered[name] = torch.cat([weight.new_zeros(after, weight.shape[1]), weight[before:]])
        return reordered


def token_order(tokenizer: Tokenizer | None, size: int) -> TokenOrder:
    """Return the order in which a tokenizer is exported: ours for None, of ``size`` symbols with ``<mask>``."""
    ids = torch.arange(size) if tokenizer is None else torch.from_numpy(tokenizer.exported_ids).long()
    return TokenOrder(ids, int(ids[PAD]) + 1)

"""Order of the tokens in files for ``transformers``: there, a tokenizer keeps its own ids, which may differ from ours.

Rows of weights that belong to tokens are permuted. ``transformers`` numbers positions from the id of ``<pad>`` plus 1
(RoBERTa) or from 0 (BERT).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.text.tokenizer import PAD, Tokenizer
from mae_lm_fairseq.trained.validation import token_weights

_POSITIONS = {f"autoencoder.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")}


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

    def exported(self, weights: Mapping[str, Tensor], config: MaskedAutoencoderConfig) -> dict[str, Tensor]:
        """Return weights by our names, with the rows of tokens and positions as in the other order."""
        return _moved(_permuted(weights, self.ids.argsort(), config), PAD + 1, self.first_position)

    def restored(self, weights: Mapping[str, Tensor], config: MaskedAutoencoderConfig) -> dict[str, Tensor]:
        """Reverse :meth:`exported`, except for rows of positions that no token has; those are zero.

        Weights of other shapes than the network's stay as they are, for the check that follows.
        """
        return _moved(_permuted(weights, self.ids, config), self.first_position, PAD + 1)


def _permuted(weights: Mapping[str, Tensor], order: Tensor, config: MaskedAutoencoderConfig) -> dict[str, Tensor]:
    """Return weights with the rows of tokens in another order; rows that no token has stay at the end."""
    permuted = dict(weights)
    size = len(order)
    if torch.equal(order, torch.arange(size)):
        return permuted
    for name in token_weights(config) & weights.keys():
        weight = weights[name]
        if weight.dim() and len(weight) >= size:
            permuted[name] = torch.cat([weight[:size][order], weight[size:]])
    return permuted


def _moved(weights: dict[str, Tensor], before: int, after: int) -> dict[str, Tensor]:
    """Move the embedding of the first position to another row, and return the weights."""
    if before == after:
        return weights
    for name in _POSITIONS & weights.keys():
        weight = weights[name]
        if weight.dim() == 2:
            unused = weight.new_zeros(after, weight.shape[1])
            weights[name] = torch.cat([unused, weight[before:]])
    return weights


def token_order(tokenizer: Tokenizer | None, size: int) -> TokenOrder:
    """Return the order in which a tokenizer is exported: ours for None, of ``size`` symbols with ``<mask>``."""
    ids = torch.arange(size) if tokenizer is None else torch.from_numpy(tokenizer.exported_ids).long()
    return TokenOrder(ids, int(ids[PAD]) + 1)

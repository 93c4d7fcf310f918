"""Order of the tokens in an export: the exported tokenizer keeps its own ids, which may differ from fairseq's.

Rows of weights that belong to tokens are permuted. ``transformers`` numbers positions from the id of ``<pad>`` plus 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mae_lm_fairseq.pretrained.reading import Pretrained
from mae_lm_fairseq.pretrained.validation import PAD
from mae_lm_fairseq.text.tokenizer import BOS, EOS, UNK
from mae_lm_fairseq.utils.errors import UserError

_TOKEN_WEIGHTS = ("encoder.embed_tokens.weight", "lm_head.weight", "lm_head.bias")
_POSITIONS = "embed_positions.weight"
MPNET_PAD = 1
"""Id of ``<pad>`` in the code of MPNet, which its configuration does not change."""


@dataclass(frozen=True)
class TokenOrder:
    """Exported ids of our tokens.

    Attributes:
        ids: int64[vocabulary], the exported id of each of our ids.
        first_position: row of the first position in the exported position embeddings.
    """

    ids: Tensor
    first_position: int

    @property
    def bos(self) -> int:
        return int(self.ids[BOS])

    @property
    def pad(self) -> int:
        return int(self.ids[PAD])

    @property
    def eos(self) -> int:
        return int(self.ids[EOS])

    @property
    def mask(self) -> int:
        return int(self.ids[-1])

    def weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights by our names, with the rows of tokens and positions as exported."""
        return {name: self._exported(name, weight) for name, weight in weights.items()}

    def _exported(self, name: str, weight: Tensor) -> Tensor:
        if name.removeprefix("autoencoder.") in _TOKEN_WEIGHTS:
            return weight[self.ids.argsort()]
        if name.endswith(_POSITIONS) and self.first_position != PAD + 1:
            return torch.cat([weight.new_zeros(self.first_position, weight.shape[1]), weight[PAD + 1 :]])
        return weight


def token_order(pretrained: Pretrained, kind: str = "") -> TokenOrder:
    """Return the order for an export.

    Args:
        pretrained: the model to export.
        kind: ``mpnet`` or ``roberta`` for a stock class.

    Raises:
        UserError: if the class takes another token for padding.
    """
    size = len(pretrained.symbols)
    tokenizer = pretrained.tokenizer
    ids = torch.arange(size) if tokenizer is None else torch.from_numpy(tokenizer.exported_ids).long()
    pad = int(ids[PAD])
    if kind != "mpnet":
        return TokenOrder(ids, pad + 1)
    if pad != MPNET_PAD:
        instead = int(ids.argsort()[MPNET_PAD])
        token = tokenizer.token_text(instead)
        is_used = instead in (BOS, EOS, UNK, size - 1) or instead in tokenizer.encode_lines([token])[0]
        if is_used:
            raise UserError(
                f"transformers' MPNet takes id {MPNET_PAD} for padding, which is the token {token!r} in "
                f"{tokenizer.path}; --autoencoder exports the model with a class of this package"
            )
    return TokenOrder(ids, MPNET_PAD + 1)

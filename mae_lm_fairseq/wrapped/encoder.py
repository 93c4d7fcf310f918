"""An encoder of ``transformers`` behind the interface of :mod:`mae_lm_fairseq.core.encoder`.

Weights keep their names and shapes. The rows of tokens are in the order of our ids, and rows that no token has follow.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.packing import BatchLayout, Layout, from_rows, pack, to_rows


class Kind(NamedTuple):
    """Properties of a type of encoder, which a test checks.

    Attributes:
        shortens: whether states follow from ``position_ids`` alone, so that rows without ``[MASK]`` may be shortened.
            In all others, whose attention depends on the indices in a row, ``[MASK]`` stays and is no key.
        output_norm: name in the base model of the layer norm behind the last layer, if there is one.
        has_relative_positions: whether the layers know the positions, so that a decoder of them needs no more.
    """

    shortens: bool = False
    output_norm: str = ""
    has_relative_positions: bool = False


_ABSOLUTE, _RELATIVE = Kind(shortens=True), Kind(has_relative_positions=True)
_ROTARY = Kind(shortens=True, has_relative_positions=True)
KINDS = {
    **dict.fromkeys(("albert", "bert", "camembert", "data2vec-text", "distilbert", "electra", "ernie"), _ABSOLUTE),
    **dict.fromkeys(("rembert", "roberta", "xlm-roberta"), _ABSOLUTE),
    "megatron-bert": Kind(shortens=True, output_norm="encoder.ln"),
    "roberta-prelayernorm": Kind(shortens=True, output_norm="LayerNorm"),
    **dict.fromkeys(("gte", "nomic_bert"), _ROTARY),
    **dict.fromkeys(("deberta", "deberta-v2", "mpnet", "roformer"), _RELATIVE),
    "modernbert": _RELATIVE._replace(output_norm="final_norm"),
}
"""Types by ``model_type``. A numerical probe would be fooled, by biases at their initial scale, say. Others depend on
padding (ConvBERT, FNet), or their head cannot be taken apart (ESM, EuroBERT)."""


def kind_of(model_type: str) -> Kind:
    """Return the row of :data:`KINDS` of a type.

    Raises:
        ValueError: if it has none.
    """
    if not isinstance(model_type, str) or model_type not in KINDS:
        raise ValueError(f"its model type is {model_type!r}, not one of {', '.join(sorted(KINDS))}")
    return KINDS[model_type]


class _Wrapped(nn.Module):
    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        """Keep angles of rotary positions in float32, which half precision would round to other positions."""
        buffers = {id(buffer) for buffer in self.buffers()}

        def moved(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            return tensor.to(converted.device) if id(tensor) in buffers else converted

        return super()._apply(moved, recurse)


class WrappedEncoder(_Wrapped):
    """An encoder of ``transformers``. A row is computed as the original does, alone or in a batch.

    Args:
        model: the base model, without its pooler.
        pad: our id of ``<pad>``.
        sees_masks: whether ``[MASK]`` is an ordinary token (MLM) or is left out (MAE-LM, 3ML).
        max_positions: maximum length of a sequence.
    """

    attention_backend = AttentionBackend.auto

    def __init__(self, model: nn.Module, pad: int, sees_masks: bool, max_positions: int):
        super().__init__()
        self.model, self.sees_masks = model, sees_masks
        self.needs = frozenset() if sees_masks else frozenset({"visible"})
        self.kind = kind_of(model.config.model_type)
        self.first_position = first_position(model)
        self.dim = model.config.hidden_size
        self.max_positions = max_positions
        self._move_padding(pad)

    def _move_padding(self, pad: int):
        """Exchange the rows of our token for padding and of the original's, which is zero in most new models."""
        table = self.embed_tokens
        if table.padding_idx is not None:
            rows = [pad, table.padding_idx]
            with torch.no_grad():
                table.weight[rows] = table.weight[rows[::-1]]
        table.padding_idx = pad

    @property
    def embed_tokens(self) -> nn.Embedding:
        """The token embeddings, whose size may differ from :attr:`dim`."""
        return self.model.get_input_embeddings()

    @property
    def layers(self) -> list[nn.Module]:
        """The layers from the lowest to the last; a layer that is used several times is listed as often."""
        count = self.model.config.num_hidden_layers
        groups = getattr(getattr(self.model, "encoder", None), "albert_layer_groups", None)
        if groups:
            return [groups[layer * len(groups) // count] for layer in range(count)]
        lists = (module for module in self.model.modules() if isinstance(module, nn.ModuleList))
        return list(next(layers for layers in lists if len(layers) == count))

    @property
    def output_layer_norm(self) -> nn.Module:
        """The layer norm behind the last layer, or no operation."""
        return self.model.get_submodule(self.kind.output_norm) if self.kind.output_norm else nn.Identity()

    def mask_embedding(self, mask: int) -> Tensor:
        """Return the embedding [dim] of ``[MASK]``, in the size of the hidden states."""
        embedding = self.embed_tokens.weight[mask]
        if len(embedding) == self.dim:
            return embedding
        shape = (self.dim, len(embedding))
        linears = (module for module in self.model.modules() if isinstance(module, nn.Linear))
        return next(linear for linear in linears if linear.weight.shape == shape)(embedding)

    def seen(self, layout: BatchLayout) -> Layout:
        """Return the positions that the encoder has states of."""
        return layout.sequence if self.sees_masks else layout.visible

    def layouts(self, layout: BatchLayout) -> list[Layout]:
        """Return the positions that the hidden states of the embeddings and of every layer belong to."""
        return [self.seen(layout)] * (self.model.config.num_hidden_layers + 1)

    def forward(self, tokens: Tensor, layout: BatchLayout) -> list[Tensor]:
        """Encode [B, T] int64 tokens; return packed hidden states [N, dim] of the embeddings and of every layer."""
        if self.sees_masks or self.kind.shortens:
            seen = self.seen(layout)
            states = self._states(tokens, seen, seen.occupied())
            return [from_rows(rows, seen) for rows in states]

        sequence, visible = layout.sequence, layout.visible_in_sequence
        is_visible = torch.zeros_like(sequence.index, dtype=torch.bool).index_fill(0, visible, True)
        states = self._states(tokens, sequence, to_rows(is_visible, sequence))
        return [from_rows(rows, sequence).index_select(0, visible) for rows in states]

    def _states(self, tokens: Tensor, layout: Layout, is_key: Tensor) -> tuple[Tensor, ...]:
        positions = layout.row_positions.expand(layout.rows, -1)
        return self.model(
            input_ids=to_rows(pack(tokens, layout), layout),
            attention_mask=is_key.long(),
            position_ids=positions + self.first_position,
            output_hidden_states=True,
        ).hidden_states


class WrappedDecoder(_Wrapped):
    """Decoder of MAE-LM made of the last layers of a wrapped encoder, for types whose layers know the positions.

    Args:
        model: a base model with as many layers as the decoder has.
    """

    needs = frozenset({"visible"})

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        model.set_input_embeddings(nn.Identity())
        model.pooler = None
        self.first_position = first_position(model)

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        """Return the hidden states [number predicted, dim], see :mod:`mae_lm_fairseq.core.decoder`."""
        sequence = layout.sequence
        joined = mask_embedding.to(states.dtype).expand(sequence.index.numel(), -1)
        joined = joined.index_copy(0, layout.visible_in_sequence, states)
        positions = sequence.row_positions.expand(sequence.rows, -1)
        rows = self.model(
            inputs_embeds=to_rows(joined, sequence),
            attention_mask=sequence.occupied().long(),
            position_ids=positions + self.first_position,
        ).last_hidden_state
        return from_rows(rows, sequence).index_select(0, layout.predicted_in_sequence)


def first_position(model: nn.Module) -> int:
    """Return the row of the first position in the position embeddings: the padding id + 1 in RoBERTa's family."""
    tables = (table for name, table in model.named_modules() if name.endswith("position_embeddings"))
    padding = getattr(next(tables, None), "padding_idx", None)
    return 0 if padding is None else padding + 1

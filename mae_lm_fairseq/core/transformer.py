"""Transformer layers, embeddings, and the stack that encoder and decoder are built on."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mae_lm_fairseq.core.attention import MultiheadAttention
from mae_lm_fairseq.core.attention_backends import AttentionBackend, AttentionPattern, FusedPattern, attention_pattern
from mae_lm_fairseq.core.config import StackConfig
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.packing import Layout
from mae_lm_fairseq.core.relative_position import RelativePositionBias
from mae_lm_fairseq.utils.compilation import compiled, product_dtype


class TransformerLayer(nn.Module):
    """Attention and feed-forward block, each followed by dropout and residual connection.

    Layer norm follows the residual connection (post-norm, Vaswani et al., 2017) or, with ``pre_norm``, precedes the
    block (Xiong et al., 2020, arXiv 2002.04745).
    """

    def __init__(self, config: StackConfig):
        super().__init__()
        self.attention = MultiheadAttention(config.dim, config.heads, config.attention_dropout)
        self.attention_layer_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.fc1 = nn.Linear(config.dim, config.ffn_dim)
        self.fc2 = nn.Linear(config.ffn_dim, config.dim)
        self.final_layer_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.pre_norm = config.pre_norm

    def forward(self, states: Tensor, pattern: AttentionPattern, queries: Tensor | None = None) -> Tensor:
        """Return the new hidden states of the queries.

        Args:
            states: [number of keys, dim] packed hidden states that are attended to.
            pattern: attention pattern of queries and keys.
            queries: [number of queries, dim] packed; None means all of ``states``.
        """
        norm = self.attention_layer_norm
        update = self.attention(self._before(norm, states), pattern, self._before(norm, queries))
        return self.feed_forward(self._after(norm, states if queries is None else queries, update))

    def feed_forward(self, states: Tensor) -> Tensor:
        """Apply the feed-forward block, [N, dim] to [N, dim]."""
        norm = self.final_layer_norm
        update = self.fc2(F.gelu(self.fc1(self._before(norm, states))))
        return self._after(norm, states, update)

    def _before(self, norm: nn.LayerNorm, states: Tensor | None) -> Tensor | None:
        """Return what a block reads: in pre-norm, the normalised hidden states."""
        return _normalise(norm, states) if self.pre_norm and states is not None else states

    def _after(self, norm: nn.LayerNorm, states: Tensor, update: Tensor) -> Tensor:
        """Return the hidden states plus the output of a block; in post-norm, normalised."""
        states = states + self.dropout(update)
        return states if self.pre_norm else _normalise(norm, states)


def _normalise(norm: nn.LayerNorm, states: Tensor) -> Tensor:
    """Apply a layer norm. In compiled layers, the result has the precision of matrix products, which costs nothing."""
    states = norm(states)
    return states.to(product_dtype(states)) if torch.compiler.is_compiling() else states


class SelfCrossLayer(TransformerLayer):
    """Transformer decoder layer (Vaswani et al., 2017): adds a cross-attention block before the feed-forward block."""

    def __init__(self, config: StackConfig):
        super().__init__(config)
        self.cross_attention = MultiheadAttention(config.dim, config.heads, config.attention_dropout)
        self.cross_attention_layer_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)

    def forward(
        self,
        states: Tensor,
        pattern: AttentionPattern,
        queries: Tensor,
        memory: Tensor,
        memory_pattern: AttentionPattern,
    ) -> Tensor:
        """Return the new hidden states [number of queries, dim] of the queries.

        Args:
            states: [number of keys, dim] packed, keys of the self-attention.
            pattern: attention pattern of queries and keys.
            queries: [number of queries, dim] packed.
            memory: [number of memories, dim] packed, keys of the cross-attention.
            memory_pattern: attention pattern of queries and memories.
        """
        norm = self.attention_layer_norm
        update = self.attention(self._before(norm, states), pattern, self._before(norm, queries))
        queries = self._after(norm, queries, update)
        norm = self.cross_attention_layer_norm
        update = self.cross_attention(memory, memory_pattern, self._before(norm, queries))
        return self.feed_forward(self._after(norm, queries, update))


class Embedding(nn.Embedding):
    """``torch.nn.Embedding`` whose gradient is the same in every run.

    torch 2.11 and later sum the gradients of frequent rows on a GPU in any order (pytorch 172454), unless deterministic
    algorithms are required; then a resumed run differs from one that was not interrupted.
    """

    def forward(self, rows: Tensor) -> Tensor:
        return _LookUp.apply(self.weight, rows, self.padding_idx) if self.training else super().forward(rows)


class PositionEmbedding(Embedding):
    """Learned absolute positions. Position 0 uses row ``pad + 1``, as in fairseq's RoBERTa."""

    def __init__(self, max_positions: int, dim: int, pad: int):
        super().__init__(max_positions + pad + 1, dim, padding_idx=pad)
        self.max_positions = max_positions

    def forward(self, positions: Tensor) -> Tensor:
        return super().forward(positions + self.padding_idx + 1)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, rows: Tensor, padding_idx: int | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.of_weight = len(weight), -1 if padding_idx is None else padding_idx
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")
        try:
            return torch.ops.aten.embedding_dense_backward(grad, *ctx.saved_tensors, *ctx.of_weight, False), None, None
        finally:
            torch.set_deterministic_debug_mode(before)


class TransformerStack(nn.Module):
    """Position embedding, layer norm, relative position bias and layers; base class of encoders and decoders.

    Args:
        config: configuration of the stack.
        embed_positions: position table, possibly shared with another stack.
        layer_type: class of the layers.

    Attributes:
        checkpoint_activations: keep only the input of each layer for the backward pass, which then recomputes the
            layer: less memory, a third more computation.
        attention_backend: how the layers compute attention; not ``auto``.
        compiles_layers: whether training compiles the layers, if attention is ``fused``.
        output_layer_norm: layer norm of the last layer's output; no operation without ``pre_norm``.
    """

    checkpoint_activations = False
    attention_backend = AttentionBackend.eager
    compiles_layers = False

    def __init__(
        self,
        config: StackConfig,
        embed_positions: PositionEmbedding,
        layer_type: type[TransformerLayer] = TransformerLayer,
    ):
        super().__init__()
        self.embed_positions = embed_positions
        self.embed_layer_norm = nn.LayerNorm(config.dim, config.layer_norm_eps)
        self.dropout = Dropout(config.dropout)
        self.relative_bias = None
        if config.relative_buckets:
            sizes = config.relative_buckets, config.relative_max_distance, config.heads, embed_positions.max_positions
            self.relative_bias = RelativePositionBias(*sizes, config.relative_bucketing)
        self.layers = nn.ModuleList(layer_type(config) for _ in range(config.layers))
        self.output_layer_norm = nn.LayerNorm(config.dim, config.layer_norm_eps) if config.pre_norm else nn.Identity()

    def embed(self, states: Tensor, layout: Layout) -> Tensor:
        """Return the input [N, dim] of the first layer: ``states`` plus positions, after layer norm and dropout."""
        return self.dropout(self.embed_layer_norm(states + self.embed_positions(layout.positions)))

    def pattern(self, queries: Layout, keys: Layout) -> AttentionPattern:
        """Return the pattern in which each of ``queries`` attends to all ``keys`` of its row."""
        return attention_pattern(queries, keys, self.relative_bias, self.attention_backend)

    def apply_layer(self, layer: TransformerLayer, *inputs) -> Tensor:
        """Apply a layer, compiled or with activation checkpointing if enabled."""
        if not torch.is_grad_enabled():
            return layer(*inputs)
        if self.compiles_layers and self.training and _has_sizes_of_compiled_code(inputs):
            if not layer.pre_norm:  # as the layers below return them
                inputs = [x.to(product_dtype(x)) if isinstance(x, Tensor) else x for x in inputs]
            layer = partial(compiled(type(layer).forward), layer)
        return checkpoint(layer, *inputs, use_reentrant=False) if self.checkpoint_activations else layer(*inputs)


def _has_sizes_of_compiled_code(inputs: tuple) -> bool:
    """Return whether no size is below two, for which torch.compile compiles code of its own."""
    sizes = [min(pattern.rows[4:]) for pattern in inputs if isinstance(pattern, FusedPattern)]
    return min(sizes, default=0) > 1

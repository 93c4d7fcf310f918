"""Masked language models with and without a decoder, as classes of ``transformers`` in plain PyTorch.

``mae-lm export --with-decoder`` of the package mae_lm_fairseq writes this file beside the weights; it needs no other
file of the package. It computes MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060), 3ML (Liao et al., Findings of EMNLP
2022, arXiv 2211.04898) and the masked language model of BERT and RoBERTa.

In MAE-LM and 3ML, the encoder sees the visible tokens only, and a decoder predicts the ``<mask>`` tokens from its
output. Here nothing is taken out of the batch: positions that the encoder does not see are no keys of its attention,
and their hidden states are zero in what the models return.

Symbols: B rows of a batch, T tokens of the longest row, H attention heads, dim the hidden size.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, ModelOutput

IGNORED = -100
"""Label of positions without a target."""
EMPTY_KEY = -3e4
"""Added to the attention scores of positions that are no keys. Their attention weights become exactly zero, and the
value is finite in half precision."""
DEFAULTS: Mapping[str, Any] = {
    "mask_join": "decoder",
    "encoder_layers": 12,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "decoder_layers": 4,
    "decoder_attention": "self",
    "decoder_embed_dim": None,
    "decoder_ffn_embed_dim": None,
    "decoder_attention_heads": None,
    "decoder_share_positions": False,
    "reset_mask_states": False,
    "mask_states": 1,
    "renumber_visible": False,
    "max_positions": 512,
    "relative_buckets": 32,
    "relative_max_distance": 128,
    "relative_bucketing": "t5",
    "decoder_relative_buckets": 0,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "decoder_dropout": 0.0,
    "init_std": 0.02,
    "layer_norm_eps": 1e-5,
    "pre_norm": False,
    "untie_output_weights": False,
    "wrapped": None,
}
"""Options of the network, and what they are in MAE-LM base."""


class StackSizes(NamedTuple):
    """Options of the encoder, or of the decoder."""

    layers: int
    dim: int
    ffn_dim: int
    heads: int
    relative_buckets: int
    dropout: float
    attention_dropout: float


class MAELMConfig(PretrainedConfig):
    """Configuration of the network and its vocabulary.

    Args:
        network: options that differ from :data:`DEFAULTS`; others are kept, and not used.
        vocab_size: number of tokens, special tokens included.
        mask_token_id: id of ``<mask>``; None for the last id.
        about: facts about the training. ``mask_in_encoder`` is the fraction of the ``<mask>`` tokens that the encoder
            saw in pretraining.
        others: see ``PretrainedConfig``.
    """

    model_type = "mae_lm"

    def __init__(
        self,
        network: dict | None = None,
        vocab_size: int = 32000,
        mask_token_id: int | None = None,
        about: dict | None = None,
        **others,
    ):
        self.network = {**DEFAULTS, **(network or {})}
        self.vocab_size = vocab_size
        self.mask_token_id = vocab_size - 1 if mask_token_id is None else mask_token_id
        self.about = about or {}
        ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
        super().__init__(**{**ids, "tie_word_embeddings": True, **others})

    # Sizes of the encoder, by the names that they have in transformers.
    hidden_size = property(lambda self: self.network["encoder_embed_dim"])
    num_hidden_layers = property(lambda self: self.network["encoder_layers"])
    num_attention_heads = property(lambda self: self.network["encoder_attention_heads"])
    max_position_embeddings = property(lambda self: self.network["max_positions"])

    def encoder_sizes(self) -> StackSizes:
        """Return the options of the encoder."""
        network = self.network
        return StackSizes(
            layers=network["encoder_layers"],
            dim=network["encoder_embed_dim"],
            ffn_dim=network["encoder_ffn_embed_dim"],
            heads=network["encoder_attention_heads"],
            relative_buckets=network["relative_buckets"],
            dropout=network["dropout"],
            attention_dropout=network["attention_dropout"],
        )

    def decoder_sizes(self) -> StackSizes:
        """Return the options of the decoder; sizes that are not set are the encoder's."""
        network = self.network
        encoder = self.encoder_sizes()
        return StackSizes(
            layers=network["decoder_layers"],
            dim=network["decoder_embed_dim"] or encoder.dim,
            ffn_dim=network["decoder_ffn_embed_dim"] or encoder.ffn_dim,
            heads=network["decoder_attention_heads"] or encoder.heads,
            relative_buckets=network["decoder_relative_buckets"],
            dropout=network["decoder_dropout"],
            attention_dropout=network["decoder_dropout"],
        )


class Batch(NamedTuple):
    """The roles of the positions of a batch, each [B, T] bool, and their numbers."""

    is_token: Tensor
    """All positions but padding."""
    is_mask: Tensor
    """``<mask>`` tokens."""
    is_early: Tensor
    """``<mask>`` tokens that the encoder of MAE-LM sees."""
    is_visible: Tensor
    """Positions that the encoder sees."""
    positions: Tensor
    """[B, T] int64: position of each token in its row, from 0; padding is not counted."""


def batch_of(input_ids: Tensor, attention_mask: Tensor | None, config: MAELMConfig) -> Batch:
    """Return the roles of the positions of a batch.

    Args:
        input_ids: [B, T] int64.
        attention_mask: [B, T], 0 at padding; None for no padding but ``<pad>`` tokens.

    Raises:
        ValueError: if the rows are longer than the network's positions.
    """
    longest = config.network["max_positions"]
    if input_ids.shape[1] > longest:
        raise ValueError(f"the rows have {input_ids.shape[1]} tokens; this model takes at most {longest}")
    is_token = input_ids.ne(config.pad_token_id)
    if attention_mask is not None:
        is_token = is_token & attention_mask.bool()
    positions = counted(is_token)
    is_mask = is_token & input_ids.eq(config.mask_token_id)
    is_early = is_mask & seen_masks(positions, config.about.get("mask_in_encoder") or 0.0)
    is_visible = is_token
    if config.network["mask_join"] == "decoder":
        is_visible = is_token & (~is_mask | is_early)
    return Batch(is_token, is_mask, is_early, is_visible, positions)


def counted(is_counted: Tensor) -> Tensor:
    """Number the positions of each row for which [B, T] is True from 0; others take the number before them."""
    return (is_counted.cumsum(1) - 1).clamp(min=0)


def seen_masks(positions: Tensor, fraction: float) -> Tensor:
    """Return at which positions the encoder sees ``<mask>``: a fraction of them, the same ones in every text."""
    if not fraction:
        return torch.zeros_like(positions, dtype=torch.bool)
    draws = np.random.default_rng(0).random(positions.shape[1])
    is_seen = torch.from_numpy(draws < fraction).to(positions.device)
    return is_seen[positions]


def t5_bucket(offset: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return T5's bidirectional bucket of each offset of a key from a query (Raffel et al., 2020)."""
    half = buckets // 2
    exact = half // 2
    distance = offset.abs()
    logarithm = torch.log(distance.clamp(min=1).float() / exact)
    growth = logarithm / math.log(max_distance / exact)
    far = exact + (growth * (half - exact)).long()
    bucket = torch.where(distance < exact, distance, far.clamp(max=half - 1))
    return bucket + half * (offset > 0)


def symmetric_bucket(offset: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each offset as in the code of MAE-LM's authors: as many to the left as to the right."""
    last = buckets // 2 - 1
    exact = buckets // 4
    distance = offset.abs()
    logarithm = torch.log(distance.clamp(min=1).float() / exact)
    growth = logarithm / math.log((max_distance - 1) / exact)
    far = exact + torch.ceil(growth * (last - exact)).long()
    bucket = torch.where(distance < exact, distance, far.clamp(max=last))
    return bucket * offset.sign() + last


BUCKETINGS = {"t5": t5_bucket, "symmetric": symmetric_bucket}


class RelativePositionBias(nn.Module):
    """A learned scalar per head and bucket of distances, added to the attention scores of all layers of a stack."""

    def __init__(self, network: Mapping[str, Any], buckets: int, heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.bucket_of: Callable[[Tensor, int, int], Tensor] = BUCKETINGS[network["relative_bucketing"]]
        self.max_distance = network["relative_max_distance"]

    def forward(self, positions: Tensor) -> Tensor:
        """Return the bias [B, H, T, T] of every query and key, in float32, given the positions [B, T]."""
        reach = positions.shape[1] - 1
        # On the CPU, where rounding at the ends of buckets is the same for every device.
        offsets = torch.arange(-reach, reach + 1, device="cpu")
        buckets = self.bucket_of(offsets, len(self.weight), self.max_distance).to(positions.device)
        by_offset = self.weight.float().index_select(0, buckets)  # [offsets, H]
        offset = positions[:, None, :] - positions[:, :, None]
        return F.embedding(offset + reach, by_offset).permute(0, 3, 1, 2)


class Pattern(NamedTuple):
    """Positions that all queries of their row attend to."""

    is_key: Tensor
    """[B, T] bool."""
    bias: Tensor
    """float32, broadcastable to [B, H, T, T]: position bias, and :data:`EMPTY_KEY` where there is no key."""


def eager_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Compute attention step by step."""
    scores = (q * q.shape[-1] ** -0.5 @ k.transpose(2, 3)).float() + bias
    weights = torch.softmax(scores, dim=-1).to(v.dtype)
    return F.dropout(weights, dropout) @ v


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Compute attention with PyTorch's fused kernels."""
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), dropout)


class Attention(nn.Module):
    """Scaled dot-product attention with one joint projection for queries, keys and values."""

    def __init__(self, config: MAELMConfig, sizes: StackSizes):
        super().__init__()
        self.config = config
        self.heads = sizes.heads
        self.dropout = sizes.attention_dropout
        self.qkv_proj = nn.Linear(sizes.dim, 3 * sizes.dim)
        self.out_proj = nn.Linear(sizes.dim, sizes.dim)

    def forward(self, states: Tensor, pattern: Pattern, keys: Tensor | None = None) -> Tensor:
        """Return the update [B, T, dim] of the queries ``states``, which attend to ``keys``, or to themselves."""
        q, k, v = self.qkv_proj(states).chunk(3, dim=-1)
        if keys is not None:
            _, k, v = self.qkv_proj(keys).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        # A row without a key mixes zeros.
        v = v.masked_fill(~pattern.is_key[:, None, :, None], 0)
        attend = eager_attention if self.config._attn_implementation == "eager" else sdpa_attention
        mixed = attend(q, k, v, pattern.bias, self.dropout if self.training else 0.0)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and feed-forward block, each with a residual connection and a layer norm.

    The norm follows the residual connection or, in pre-norm, precedes the block.
    """

    def __init__(self, config: MAELMConfig, sizes: StackSizes):
        super().__init__()
        eps = config.network["layer_norm_eps"]
        self.pre_norm = config.network["pre_norm"]
        self.attention = Attention(config, sizes)
        self.attention_layer_norm = nn.LayerNorm(sizes.dim, eps)
        self.fc1 = nn.Linear(sizes.dim, sizes.ffn_dim)
        self.fc2 = nn.Linear(sizes.ffn_dim, sizes.dim)
        self.final_layer_norm = nn.LayerNorm(sizes.dim, eps)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, states: Tensor, pattern: Pattern, keys: Tensor | None = None) -> Tensor:
        """Return the new hidden states [B, T, dim] of ``states``, which attend to ``keys``, or to themselves."""
        norm = self.attention_layer_norm
        normed_keys = None if keys is None else self.before(norm, keys)
        update = self.attention(self.before(norm, states), pattern, normed_keys)
        return self.feed_forward(self.after(norm, states, update))

    def feed_forward(self, states: Tensor) -> Tensor:
        """Apply the feed-forward block."""
        norm = self.final_layer_norm
        update = self.fc2(F.gelu(self.fc1(self.before(norm, states))))
        return self.after(norm, states, update)

    def before(self, norm: nn.LayerNorm, states: Tensor) -> Tensor:
        """Return what a block reads."""
        return norm(states) if self.pre_norm else states

    def after(self, norm: nn.LayerNorm, states: Tensor, update: Tensor) -> Tensor:
        """Return the hidden states after the update of a block."""
        states = states + self.dropout(update)
        return states if self.pre_norm else norm(states)


class SelfCrossLayer(Layer):
    """Layer with cross-attention to a memory before the feed-forward block."""

    def __init__(self, config: MAELMConfig, sizes: StackSizes):
        super().__init__(config, sizes)
        self.cross_attention = Attention(config, sizes)
        self.cross_attention_layer_norm = nn.LayerNorm(sizes.dim, config.network["layer_norm_eps"])

    def forward(self, states: Tensor, pattern: Pattern, memory: Tensor, memory_pattern: Pattern) -> Tensor:
        """Return the new hidden states [B, T, dim]."""
        norm = self.attention_layer_norm
        update = self.attention(self.before(norm, states), pattern)
        states = self.after(norm, states, update)
        norm = self.cross_attention_layer_norm
        update = self.cross_attention(self.before(norm, states), memory_pattern, memory)
        return self.feed_forward(self.after(norm, states, update))


class Stack(nn.Module):
    """Position embeddings, relative position bias and layers of the encoder, or of a decoder."""

    layer_type: type[Layer] = Layer

    def __init__(self, config: MAELMConfig, sizes: StackSizes):
        super().__init__()
        network = config.network
        eps = network["layer_norm_eps"]
        self.pad = config.pad_token_id
        # As in fairseq's RoBERTa, position 0 is the row after that of padding.
        self.embed_positions = nn.Embedding(network["max_positions"] + self.pad + 1, sizes.dim, self.pad)
        self.embed_layer_norm = nn.LayerNorm(sizes.dim, eps)
        self.dropout = nn.Dropout(sizes.dropout)
        self.relative_bias = None
        if sizes.relative_buckets:
            self.relative_bias = RelativePositionBias(network, sizes.relative_buckets, sizes.heads)
        self.layers = nn.ModuleList(self.layer_type(config, sizes) for _ in range(sizes.layers))
        self.output_layer_norm = nn.LayerNorm(sizes.dim, eps) if network["pre_norm"] else nn.Identity()

    def embed(self, states: Tensor, positions: Tensor, table: nn.Embedding) -> Tensor:
        """Return the input [B, T, dim] of the first layer: hidden states plus positions."""
        return self.dropout(self.embed_layer_norm(states + table(positions + self.pad + 1)))

    def pattern(self, positions: Tensor, is_key: Tensor) -> Pattern:
        """Return the pattern in which all positions attend to the keys."""
        if self.relative_bias is None:
            bias = torch.zeros(is_key.shape, device=is_key.device)[:, None, None]
        else:
            bias = self.relative_bias(positions)
        return Pattern(is_key, bias.masked_fill(~is_key[:, None, None], EMPTY_KEY))


class Encoder(Stack):
    """Encoder, which attends to the visible positions."""

    def __init__(self, config: MAELMConfig):
        sizes = config.encoder_sizes()
        super().__init__(config, sizes)
        self.renumbers = config.network["renumber_visible"]
        self.embed_tokens = nn.Embedding(config.vocab_size, sizes.dim, self.pad)

    def forward(self, input_ids: Tensor, batch: Batch) -> list[Tensor]:
        """Return the hidden states [B, T, dim] of the embeddings and of every layer; see :func:`seen_states`."""
        positions = counted(batch.is_visible) if self.renumbers else batch.positions
        pattern = self.pattern(positions, batch.is_visible)
        states = self.embed(self.embed_tokens(input_ids), positions, self.embed_positions)
        hidden_states = [states]
        for layer in self.layers:
            states = layer(states, pattern)
            hidden_states.append(states)
        hidden_states[-1] = self.output_layer_norm(states)
        return hidden_states


def seen_states(hidden_states: Iterable[Tensor], batch: Batch) -> tuple[Tensor, ...]:
    """Return hidden states with zeros where the encoder sees nothing, as what they have there means nothing."""
    is_unseen = ~batch.is_visible[..., None]
    return tuple(states.masked_fill(is_unseen, 0) for states in hidden_states)


class Decoder(Stack):
    """Decoder of MAE-LM and 3ML-self, whose positions attend to all tokens; the base class of other decoders.

    Visible positions start from the encoder's output, others from the embedding of ``<mask>``.
    """

    def __init__(self, config: MAELMConfig):
        sizes = config.decoder_sizes()
        super().__init__(config, sizes)
        if config.network["decoder_share_positions"]:
            self.embed_positions = None
        self.resets = config.network["reset_mask_states"]
        width = config.hidden_size
        self.project_in = nn.Identity() if sizes.dim == width else nn.Linear(width, sizes.dim)
        self.project_out = nn.Identity() if sizes.dim == width else nn.Linear(sizes.dim, width)

    def forward(self, states: Tensor, encoder: Encoder, mask: int, batch: Batch) -> Tensor:
        """Return the hidden states [B, T, dim of the encoder] to predict from.

        Args:
            states: [B, T, dim of the encoder], its output.
            encoder: has the embeddings.
            mask: id of ``<mask>``.
            batch: roles of the positions.
        """
        states = self.project_in(states)
        mask_embedding = self.project_in(encoder.embed_tokens.weight[mask]).to(states.dtype)
        if self.resets:
            states = torch.where(batch.is_early[..., None], mask_embedding, states)
        joined = torch.where(batch.is_visible[..., None], states, mask_embedding)
        table = encoder.embed_positions if self.embed_positions is None else self.embed_positions
        stream = self.embed(joined, batch.positions, table)
        decoded = self.decode(stream, states, batch)
        return self.project_out(self.output_layer_norm(decoded))

    def decode(self, stream: Tensor, states: Tensor, batch: Batch) -> Tensor:
        """Return the output [B, T, dim] of the layers, given the first one's input and the encoder's output."""
        pattern = self.pattern(batch.positions, batch.is_token)
        for layer in self.layers:
            stream = layer(stream, pattern)
        return stream


class CrossDecoder(Decoder):
    """Decoder whose positions attend to the encoder's output, and not to each other."""

    def decode(self, stream: Tensor, states: Tensor, batch: Batch) -> Tensor:
        pattern = self.pattern(batch.positions, batch.is_visible)
        for layer in self.layers:
            stream = layer(stream, pattern, states)
        return stream


class SelfCrossDecoder(Decoder):
    """Decoder of 3ML-cross, whose positions attend to the ``<mask>`` tokens, then to the encoder's output."""

    layer_type = SelfCrossLayer

    def decode(self, stream: Tensor, states: Tensor, batch: Batch) -> Tensor:
        pattern = self.pattern(batch.positions, batch.is_mask)
        memory_pattern = self.pattern(batch.positions, batch.is_visible)
        for layer in self.layers:
            stream = layer(stream, pattern, states, memory_pattern)
        return stream


DECODERS = {"self": Decoder, "cross": CrossDecoder, "self_cross": SelfCrossDecoder}


class LMHead(nn.Module):
    """Dense layer, GELU, layer norm and output weights: the token embeddings, or weights of its own."""

    def __init__(self, config: MAELMConfig):
        super().__init__()
        dim = config.hidden_size
        self.dense = nn.Linear(dim, dim)
        self.layer_norm = nn.LayerNorm(dim, config.network["layer_norm_eps"])
        self.weight = None
        if config.network["untie_output_weights"]:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Return the logits [B, T, vocabulary], given hidden states and the token embeddings."""
        states = self.layer_norm(F.gelu(self.dense(states)))
        return F.linear(states, embeddings if self.weight is None else self.weight, self.bias)


class Autoencoder(nn.Module):
    """The encoder and, if tokens are predicted, the decoder and the language model head.

    Weights have the same names as in checkpoints of mae_lm_fairseq.
    """

    def __init__(self, config: MAELMConfig, predicts: bool):
        super().__init__()
        reason = why_unsupported(config.network)
        if reason:
            raise ValueError(f"modeling_mae_lm.py does not compute this network: {reason}")
        self.mask = config.mask_token_id
        self.encoder = Encoder(config)
        self.decoder = self.lm_head = None
        if predicts:
            if config.network["decoder_layers"]:
                self.decoder = DECODERS[config.network["decoder_attention"]](config)
            self.lm_head = LMHead(config)

    def predict(self, states: Tensor, batch: Batch) -> Tensor:
        """Return the logits [B, T, vocabulary], zero at padding, given the encoder's output [B, T, dim]."""
        if self.decoder is not None:
            states = self.decoder(states, self.encoder, self.mask, batch)
        logits = self.lm_head(states, self.encoder.embed_tokens.weight)
        return logits.masked_fill(~batch.is_token[..., None], 0)


def why_unsupported(network: Mapping[str, Any]) -> str:
    """Return which part of a network this file does not compute; empty if it computes all of it."""
    if network["wrapped"]:
        return "its encoder is a wrapped one, of a type that transformers computes"
    if network["mask_states"] > 1:
        return f"ExLM, each <mask> has {network['mask_states']} hidden states"
    if network["mask_join"] == "encoder":
        return "mask later, <mask> joins inside the encoder"
    if network["decoder_attention"] not in DECODERS:
        return f"its decoder {network['decoder_attention']} is not one of {', '.join(DECODERS)}"
    return ""


class MAELMPreTrainedModel(PreTrainedModel):
    """Initialisation of the weights, and other things that the models share."""

    config_class = MAELMConfig
    base_model_prefix = "autoencoder"
    main_input_name = "input_ids"
    accepts_loss_kwargs = False
    """The loss is the mean of a batch: transformers' Trainer must divide it by the number of accumulated batches."""
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        std = self.config.network["init_std"]
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        elif getattr(module, "weight", None) is not None:
            nn.init.normal_(module.weight, std=std)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.zeros_(module.weight[module.padding_idx])

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embeddings."""
        return self.autoencoder.encoder.embed_tokens

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Return the token embeddings, whose number is fixed.

        Raises:
            NotImplementedError: if another number is asked for.
        """
        if pad_to_multiple_of or new_num_tokens not in (None, self.config.vocab_size):
            raise NotImplementedError(f"this model has a fixed vocabulary of {self.config.vocab_size} tokens")
        return self.get_input_embeddings()

    def returns_states(self, output_hidden_states: bool | None) -> bool:
        """Return whether all hidden states are returned; None for what the configuration says."""
        return self.config.output_hidden_states if output_hidden_states is None else output_hidden_states

    def returned(self, output: ModelOutput, return_dict: bool | None) -> ModelOutput | tuple[Tensor, ...]:
        """Return an output by name or as a tuple; None for what the configuration says."""
        has_names = self.config.return_dict if return_dict is None else return_dict
        return output if has_names else output.to_tuple()


class MAELMModel(MAELMPreTrainedModel):
    """The encoder, for features and fine-tuning."""

    _keys_to_ignore_on_load_unexpected = (r"^autoencoder\.(decoder|lm_head)\.",)

    def __init__(self, config: MAELMConfig):
        super().__init__(config)
        self.autoencoder = Autoencoder(config, predicts=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **others,
    ) -> BaseModelOutput | tuple[Tensor, ...]:
        """Return the encoder's hidden states [B, T, dim], zero at padding and where it does not see ``<mask>``.

        Args:
            input_ids: [B, T] int64.
            attention_mask: [B, T], 0 at padding; None for no padding but ``<pad>`` tokens.
            output_hidden_states: also return those of the embeddings and of all layers.
            return_dict: False for a tuple without names.
            others: see :func:`check_others`.
        """
        check_others(others)
        batch = batch_of(input_ids, attention_mask, self.config)
        hidden_states = seen_states(self.autoencoder.encoder(input_ids, batch), batch)
        all_states = hidden_states if self.returns_states(output_hidden_states) else None
        output = BaseModelOutput(last_hidden_state=hidden_states[-1], hidden_states=all_states)
        return self.returned(output, return_dict)


class MAELMForMaskedLM(MAELMPreTrainedModel):
    """Encoder, decoder and language model head."""

    def __init__(self, config: MAELMConfig):
        super().__init__(config)
        self.autoencoder = Autoencoder(config, predicts=True)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **others,
    ) -> MaskedLMOutput | tuple[Tensor, ...]:
        """Predict a token at every position; at ``<mask>``, from the decoder's output if there is a decoder.

        Args:
            input_ids: [B, T] int64.
            attention_mask: [B, T], 0 at padding; None for no padding but ``<pad>`` tokens.
            labels: [B, T] int64, -100 at positions without a target.
            output_hidden_states: also return the encoder's hidden states of the embeddings and of all layers.
            return_dict: False for a tuple without names.
            others: see :func:`check_others`.

        Returns:
            logits [B, T, vocabulary], zero at padding, and with labels before them the mean cross-entropy.
        """
        check_others(others)
        batch = batch_of(input_ids, attention_mask, self.config)
        hidden_states = self.autoencoder.encoder(input_ids, batch)
        logits = self.autoencoder.predict(hidden_states[-1], batch)
        all_states = seen_states(hidden_states, batch) if self.returns_states(output_hidden_states) else None
        output = MaskedLMOutput(loss=mean_loss(logits, labels), logits=logits, hidden_states=all_states)
        return self.returned(output, return_dict)


def check_others(others: Mapping[str, Any]) -> None:
    """Check the further keywords of a call: None and False ask for nothing, and all tokens have the same type.

    Raises:
        TypeError: if a keyword asks for something.
    """
    for name, value in others.items():
        is_asked = value is not None and value is not False
        if is_asked and name != "token_type_ids":
            raise TypeError(f"{name} is not an option of this model, which does not compute it; leave it out")


def mean_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Return the mean cross-entropy of logits [B, T, vocabulary] against labels [B, T]; None without labels."""
    if labels is None:
        return None
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)

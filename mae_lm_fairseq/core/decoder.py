"""Decoders: turn the encoder's output into hidden states for prediction. Used in pretraining only.

A decoder takes the encoder's packed hidden states, the mask embedding [encoder dim] and the layout of the batch. It
returns packed hidden states [number predicted, encoder dim] of the predicted positions. ``needs`` names the layouts
that it reads, as in :mod:`~mae_lm_fairseq.core.encoder`. :func:`build_decoder` selects the decoder.
Where ``[MASK]`` tokens are expanded (:mod:`~mae_lm_fairseq.core.expansion`), a decoder returns the states of
``layout.decoded`` instead, because a prediction at one ``[MASK]`` depends on the states of all.

In every decoder, a visible position starts from its hidden state in the encoder, and every other position from the mask
embedding. Predicted positions that are visible (the kept and random tokens of 80/10/10) therefore start from the
encoder as well. A prediction does not depend on which other positions are predicted, because the keys of attention
follow from the tokens alone.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mae_lm_fairseq.core.config import DECODER_ATTENTIONS, MaskedAutoencoderConfig, MaskJoin, not_a_decoder
from mae_lm_fairseq.core.expansion import CloneEmbedding, expand_part
from mae_lm_fairseq.core.packing import NEEDED_BY_SOME, BatchLayout, Layout, batch_layout, indices_in
from mae_lm_fairseq.core.transformer import PositionEmbedding, SelfCrossLayer, TransformerLayer, TransformerStack
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.own_code import errors_name
from mae_lm_fairseq.utils.registries import register_name


class NoDecoder(nn.Module):
    """Replacement for the decoder when the encoder sees ``[MASK]``: selects hidden states at predicted positions."""

    needs: frozenset[str] = frozenset()

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        return states.index_select(0, layout.predicted_in_sequence)


class ExpandedStates(NoDecoder):
    """Replacement for the decoder when the encoder expands ``[MASK]``: selects the states of decoded positions."""

    needs = frozenset({"masked", "decoded"})

    def __init__(self, clones: int):
        super().__init__()
        self.clones = clones

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        expansion = expand_part(layout.decoded, layout.sequence, layout.masked, self.clones)
        return states.index_select(0, expansion.part_in_whole)


class UnknownDecoder(NoDecoder):
    """Replacement for a decoder whose code has not been imported: the encoder is of use without it.

    It ignores the weights that are loaded.

    Args:
        name: value of ``decoder_attention``.
    """

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        check_decoder(self.name)

    def _load_from_state_dict(self, *args) -> None:
        pass


def keep_mask_states(states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
    """Return the encoder's hidden states unchanged."""
    return states


def reset_mask_states(states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
    """Replace the encoder's hidden states at visible ``[MASK]`` tokens by the mask embedding; [number visible, dim]."""
    early = layout.early_in_visible
    return states.index_copy(0, early, mask_embedding.expand(early.numel(), -1))


class Decoder(TransformerStack):
    """Base class of decoders with layers.

    Provides the position embeddings, the initial hidden states, and projections if encoder and decoder differ in hidden
    size.

    Args:
        config: configuration of the network.
        embed_positions: position table, in the decoder's hidden size.
    """

    needs: frozenset[str] = frozenset({"visible"})
    layer_type: type[TransformerLayer] = TransformerLayer

    def __init__(self, config: MaskedAutoencoderConfig, embed_positions: PositionEmbedding):
        super().__init__(config.decoder, embed_positions, self.layer_type)
        dim, width = config.decoder.dim, config.encoder.dim
        self.project_in = nn.Identity() if dim == width else nn.Linear(width, dim)
        self.project_out = nn.Identity() if dim == width else nn.Linear(dim, width)
        self.treat_early_masks = reset_mask_states if config.reset_mask_states else keep_mask_states

    def forward(self, states: Tensor, mask_embedding: Tensor, layout: BatchLayout) -> Tensor:
        states = self.project_in(states)
        mask_embedding = self.project_in(mask_embedding).to(states.dtype)
        states = self.treat_early_masks(states, mask_embedding, layout)
        joined = mask_embedding.expand(layout.sequence.index.numel(), -1)
        joined = joined.index_copy(0, layout.visible_in_sequence, states)
        decoded = self.decode(states, joined, layout)
        return self.project_out(self.output_layer_norm(decoded))

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        """Return the hidden states [number predicted, dim] of the predicted positions.

        Args:
            states: [number visible, dim], from the encoder.
            joined: [number of tokens, dim], the same states, with the mask embedding at all other positions.
            layout: layout of the batch.
        """
        raise NotImplementedError


class SelfAttentionDecoder(Decoder):
    """Decoder of MAE-LM and 3ML-self: all positions pass through the layers and attend to all positions.

    It costs as much as the same number of encoder layers on the full sequence, except for the last layer. There, only
    predicted positions are queries, because no other output is used.
    """

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        return self.apply_layers(joined, layout.sequence, layout.predicted, layout.predicted_in_sequence)

    def apply_layers(self, joined: Tensor, sequence: Layout, wanted: Layout, wanted_in_sequence: Tensor) -> Tensor:
        """Return the hidden states of ``wanted``, given those that all of ``sequence`` start from."""
        joined = self.embed(joined, sequence)
        *layers, last_layer = self.layers
        if layers:
            pattern = self.pattern(sequence, sequence)
            for layer in layers:
                joined = self.apply_layer(layer, joined, pattern)
        queries = joined.index_select(0, wanted_in_sequence)
        pattern = self.pattern(wanted, sequence)
        return self.apply_layer(last_layer, joined, pattern, queries)


class ExpandedDecoder(SelfAttentionDecoder):
    """Decoder of MAE-LM in which every ``[MASK]`` passes through the layers as several states, as in ExLM."""

    needs = frozenset({"visible", "masked", "decoded"})

    def __init__(self, config: MaskedAutoencoderConfig, embed_positions: PositionEmbedding):
        super().__init__(config, embed_positions)
        self.clones = config.mask_states
        self.embed_clones = CloneEmbedding(self.clones, config.decoder.dim)

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        """Return the states [number of states, dim] of the decoded positions."""
        expansion = expand_part(layout.decoded, layout.sequence, layout.masked, self.clones)
        joined = self.embed_clones(joined, expansion.whole)
        return self.apply_layers(joined, expansion.whole.layout, expansion.part.layout, expansion.part_in_whole)


class CrossAttentionDecoder(Decoder):
    """Decoder in which predicted positions attend to the encoder's output, but not to each other.

    The encoder's output is not updated. Except for its keys and values, everything is computed at predicted positions
    only: at 15 % masking, a layer costs about a quarter of a layer on the full sequence. In pre-norm, the keys pass the
    layer norm of the queries, as they do in self-attention.
    """

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        queries = joined.index_select(0, layout.predicted_in_sequence)
        queries = self.embed(queries, layout.predicted)
        pattern = self.pattern(layout.predicted, layout.visible)
        for layer in self.layers:
            queries = self.apply_layer(layer, states, pattern, queries)
        return queries


class SelfCrossAttentionDecoder(Decoder):
    """Decoder of 3ML-cross: positions attend to the ``[MASK]`` tokens, then to the encoder's output, in each layer.

    The encoder's output is not updated. A predicted position that is visible is a query, but not a key. Compared with
    the cross-attention decoder, the attention among ``[MASK]`` tokens is the additional cost.
    """

    needs = frozenset({"visible", "masked", "decoded"})
    layer_type = SelfCrossLayer

    def decode(self, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
        masked, decoded, predicted, visible = layout.masked, layout.decoded, layout.predicted, layout.visible
        stream = joined.index_select(0, indices_in(decoded, layout.sequence))
        stream = self.embed(stream, decoded)
        masked_in_stream = indices_in(masked, decoded)
        *layers, last_layer = self.layers
        if layers:
            pattern = self.pattern(decoded, masked)
            memory_pattern = self.pattern(decoded, visible)
            for layer in layers:
                keys = stream.index_select(0, masked_in_stream)
                stream = self.apply_layer(layer, keys, pattern, stream, states, memory_pattern)
        keys = stream.index_select(0, masked_in_stream)
        queries = stream.index_select(0, indices_in(predicted, decoded))
        pattern = self.pattern(predicted, masked)
        memory_pattern = self.pattern(predicted, visible)
        return self.apply_layer(last_layer, keys, pattern, queries, states, memory_pattern)


DECODERS: dict[str, type[Decoder]] = {
    "self": SelfAttentionDecoder,
    "cross": CrossAttentionDecoder,
    "self_cross": SelfCrossAttentionDecoder,
}
"""Values of ``decoder_attention``."""


def register_decoder(name: str, decoder: type[Decoder]) -> None:
    """Make a class a value of ``--decoder-attention``, from a module of ``--user-dir``, say.

    Programs that read its checkpoints must also import that module. FLOPs are counted as those of
    :class:`SelfAttentionDecoder`.

    Raises:
        UserError: if another decoder has the name, or ``needs`` names other layouts than those of
            :data:`~mae_lm_fairseq.core.packing.NEEDED_BY_SOME`.
    """
    needs = frozenset(decoder.needs)
    if not needs <= NEEDED_BY_SOME:
        raise UserError(f"decoder {name}: needs = {decoder.needs!r} must have names of {sorted(NEEDED_BY_SOME)} alone")
    register_name(DECODERS, name, decoder)
    decoder.needs = needs
    if name not in DECODER_ATTENTIONS:
        DECODER_ATTENTIONS.append(name)


def check_decoder(name: str) -> None:
    """Raise a UserError if no decoder has the name, as that of a file whose code has not been imported."""
    if name not in DECODERS:
        raise UserError(f"decoder_attention {name} {not_a_decoder()}")


def build_decoder(config: MaskedAutoencoderConfig, pad: int, encoder_positions: PositionEmbedding) -> nn.Module:
    """Build the decoder for a configuration; an :class:`UnknownDecoder` if a file has named one of another program.

    Args:
        config: configuration of the network.
        pad: id of ``<pad>``.
        encoder_positions: the encoder's position table, which the decoder may share.
    """
    if config.mask_join is not MaskJoin.decoder:
        return NoDecoder() if config.mask_states == 1 else ExpandedStates(config.mask_states)
    if config.decoder_attention not in DECODERS:
        return UnknownDecoder(config.decoder_attention)
    if config.decoder_share_positions:
        positions = encoder_positions
    else:
        positions = PositionEmbedding(config.max_positions, config.decoder.dim, pad)
    decoder = DECODERS[config.decoder_attention] if config.mask_states == 1 else ExpandedDecoder
    return decoder(config, positions)


_DUTY = (
    "a decoder has __init__(self, config, embed_positions) and decode(self, states, joined, layout), which must return "
    "one state for each of the predicted positions"
)
_TRIED_STD = 0.05
"""Standard deviation of the weights with which a decoder is tried."""
_ROUNDING = 1e-5
"""Difference of hidden states up to which they are called the same."""


class _NotNeeded:
    """Stands for a layout that a decoder does not need, and says so when it is read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str):
        raise AttributeError(f'layout.{self._name} is read, but the class attribute needs does not name "{self._name}"')


def try_decoder(config: MaskedAutoencoderConfig) -> None:
    """Decode two short sequences, together and alone, if the decoder of a configuration is one of a user's directory.

    Raises:
        UserError: if the decoder fails, does not return one state for each predicted position, or returns other states
            for a sequence alone than in the batch; names file and line.
    """
    kind = DECODERS[config.decoder_attention]
    if config.mask_join is not MaskJoin.decoder or kind.__module__ == __name__:
        return
    pad, mask, kept = range(3)
    sequences = [torch.tensor([3, mask, kept, mask, 3]), torch.tensor([mask, 3, 3])]
    dim = config.encoder.dim

    def decode(states: Tensor, *sequences: Tensor) -> Tensor:
        tokens = pad_sequence(sequences, batch_first=True, padding_value=pad)
        layout = batch_layout(tokens, tokens <= kept, pad, mask, needs=kind.needs | {"visible"})
        for name in NEEDED_BY_SOME - kind.needs - {"visible"}:
            layout = layout._replace(**{name: _NotNeeded(name)})
        return decoder(states, torch.zeros(dim), layout)

    option = f"--decoder-attention {config.decoder_attention}"
    with torch.random.fork_rng(devices=[]), torch.no_grad(), errors_name(option, kind, _DUTY):
        decoder = build_decoder(config, pad, PositionEmbedding(config.max_positions, dim, pad)).eval()
        for parameter in decoder.parameters():  # a weight of zero would hide what it multiplies
            parameter.normal_(std=_TRIED_STD)
        decoder.decode = functools.partial(_decode, decoder.decode, config.decoder.dim)
        visible = [int((tokens > mask).sum()) for tokens in sequences]
        states = torch.randn(sum(visible), dim)
        together = decode(states, *sequences)
        alone = torch.cat(list(map(decode, states.split(visible), sequences)))
        if not torch.allclose(together, alone, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True):
            raise ValueError(
                "decode returns other states for a sequence alone than for the same sequence in a batch, without "
                "dropout; compute means and sums by sequence"
            )


def _decode(decode: Callable, dim: int, states: Tensor, joined: Tensor, layout: BatchLayout) -> Tensor:
    """Decode, and raise a ValueError if the result has another shape than [number predicted, ``dim``]."""
    decoded = decode(states, joined, layout)
    shape = None if decoded is None else list(decoded.shape)
    expected = [len(layout.predicted.index), dim]
    if shape != expected:
        raise ValueError(f"decode returns {shape}, not the shape {expected}: predicted positions x hidden size")
    return decoded

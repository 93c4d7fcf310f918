"""Comparison of an exported model with the original: token ids, hidden states and head outputs."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.text.comparison_texts import WITH_MASKS
from mae_lm_fairseq.text.hugging_face_tokenizer import import_tokenizers, no_panic
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK
from mae_lm_fairseq.text.tokenizer_files import load_from_transformers
from mae_lm_fairseq.trained.huggingface.stock import Counterpart
from mae_lm_fairseq.trained.huggingface.task_classes import ENCODER, MASKED_LM, WORDS
from mae_lm_fairseq.trained.huggingface.tokenizer import pair_differences
from mae_lm_fairseq.trained.huggingface.weight_files import transformers_errors
from mae_lm_fairseq.trained.reading import Pretrained, build_all
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.hugging_face import import_transformers

TOLERANCE = 1e-4
"""Maximum absolute difference of hidden states and logits in float32."""
_NOTHING_WRITTEN = "the export was not written"
_BATCH = 16


def check_stock(directory: Path, pretrained: Pretrained, to: Counterpart, lines: Sequence[str]) -> int:
    """Compare an exported directory, loaded the way users load it, with the original, on lines of text.

    Without a tokenizer, random ids are compared instead.

    Returns:
        The number of lines that the tokenizer splits into the same subwords in another order (see :func:`compare_ids`).

    Raises:
        UserError: if weights are missing or unexpected, or if ids, hidden states or logits differ.
    """
    if pretrained.tokenizer is None:
        generator, longest = random.Random(0), min(pretrained.config.max_positions, 64)
        vocabulary, lengths = range(EOS + 2, pretrained.mask), (longest, longest // 2, longest // 4, 3)
        ids = [[BOS, *generator.choices(vocabulary, k=length - 2), EOS] for length in lengths]
        reordered = 0
    else:
        as_words, as_pairs = to.task is WORDS, to.takes_our_pairs(pretrained)
        ids, reordered = compare_ids(directory, pretrained, lines, as_words, as_pairs)
    model = _load(directory, to)
    network, heads = (module.float() for module in build_all(pretrained))
    low, high = pretrained.about.score_range_of(to.head) or (0.0, 1.0)
    for start in range(0, len(ids), _BATCH):
        rows = list(map(torch.tensor, ids[start : start + _BATCH]))
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pretrained.pad)
        is_token = tokens.ne(pretrained.pad)
        with torch.inference_mode():
            theirs = model(to.order.ids[tokens], attention_mask=is_token.long(), output_hidden_states=True)
            states = encoder_states(network, tokens, pretrained.pad)
            outputs = _predictions(network, heads, to, states[-1])
        for layer, (ours, their) in enumerate(zip(states, theirs.hidden_states, strict=True)):
            _require_same(f"states of layer {layer}", ours[is_token], their[is_token])
        for name, ours in outputs.items():
            their = (getattr(theirs, name) - low) / (high - low)
            if to.task is MASKED_LM:
                ours, their = ours[..., : len(to.order.ids)], their[..., to.order.ids]
            per_token = ours.shape[:2] == tokens.shape
            _require_same(name, *((x[is_token] if per_token else x) for x in (ours, their)))
    return reordered


def _load(directory: Path, to: Counterpart) -> torch.nn.Module:
    options = {"add_pooling_layer": False} if to.task is ENCODER and to.has_unset_pooler else {}
    with transformers_errors(directory):
        model, loaded = getattr(import_transformers(), to.architecture).from_pretrained(
            directory, output_loading_info=True, use_safetensors=True, **options
        )
    loaded["unexpected_keys"] = set(loaded["unexpected_keys"]) - to.kept.keys()
    if problems := {kind: sorted(map(str, names)) for kind, names in loaded.items() if names}:
        raise UserError(f"{_NOTHING_WRITTEN}: its weights do not match {to.architecture}: {problems}")
    return model.eval()


def compare_ids(
    directory: Path, pretrained: Pretrained, lines: Sequence[str], as_words: bool = False, as_pairs: bool = False
) -> tuple[list[list[int]], int]:
    """Compare the tokenizer in a directory with the original, on lines of text or on the lists of their words.

    Special tokens and texts with masks are included. ``as_pairs`` also compares pairs of successive lines, and their
    token types.

    To a unigram model, two splits into the same subwords, such as 0 00 and 00 0, are equally probable, and rounding
    decides between them. Such differences are counted but accepted.

    Returns:
        our ids of each line between ``<s>`` and ``</s>``, truncated to the model's maximum length; and the
        number of lines with the same subwords in another order.

    Raises:
        UserError: if the ids differ in any other way.
    """
    tokenizer, fast, reordered = pretrained.tokenizer, load_from_transformers(directory), 0
    compared, ours = list(lines), tokenizer.encode_lines(list(lines))
    if as_words:
        split = ([word for word in line.split() if len(tokenizer.encode_lines([word])[0])] for line in lines)
        compared = [words for words in split if words]
        ours = [np.concatenate(tokenizer.encode_words(words)) for words in compared]
    # A tokenizer for lists of words also puts a space before a text.
    masked = [] if as_words or fast.mask_token is None else WITH_MASKS
    their_texts = [*compared, *(text.replace(MASK, fast.mask_token) for text in masked)]
    with no_panic(f"{directory}: the tokenizer (tokenizer.json) cannot encode a text"):
        theirs = fast(their_texts, is_split_into_words=as_words, verbose=False)["input_ids"]
    both = zip([*compared, *masked], [*ours, *map(tokenizer.encode_masked, masked)], theirs, strict=True)
    for text, ids, found in both:
        expected = tokenizer.exported_ids[[BOS, *ids, EOS]].tolist()
        if expected == found:
            continue
        if not (
            isinstance(fast.backend_tokenizer.model, import_tokenizers().models.Unigram)
            and sorted(expected) == sorted(found)
        ):
            split = " instead of ".join(" ".join(fast.convert_ids_to_tokens(ids))[:200] for ids in (found, expected))
            raise UserError(f"{_NOTHING_WRITTEN}: its tokenizer differs from the original on {text!r:.200}: {split}")
        reordered += 1
    if as_pairs and (differences := pair_differences(fast, compared)):
        joined = " and ".join(differences)
        raise UserError(f"{_NOTHING_WRITTEN}: its tokenizer joins pairs otherwise than in training, where {joined}")
    longest = pretrained.config.max_positions - 2
    return [[BOS, *ids[:longest].tolist(), EOS] for ids in ours], reordered


def encoder_states(network: MaskedAutoencoder, tokens: Tensor, pad: int) -> list[Tensor]:
    """Return the hidden states [B, T, dim] of the embeddings and every layer, given [B, T] ids without ``<mask>``."""
    layout = batch_layout(tokens, torch.ones_like(tokens, dtype=torch.bool), pad, network.mask)
    return network.unpack_states(network.encode(tokens, layout), layout, tokens.shape[1])


def _predictions(
    network: MaskedAutoencoder, heads: Mapping[str, torch.nn.Module], to: Counterpart, states: Tensor
) -> dict[str, Tensor]:
    if to.task is ENCODER:
        return {}
    logits = (network.lm_head if to.task is MASKED_LM else heads[to.head])(states)
    return dict(zip(to.task.outputs, [logits] if len(to.task.outputs) == 1 else logits.unbind(-1), strict=True))


def _require_same(what: str, ours: Tensor, theirs: Tensor):
    difference = (ours - theirs).abs().max().item()
    if not difference <= TOLERANCE:  # NaN is refused, too
        raise UserError(f"{_NOTHING_WRITTEN}: its {what} differ by {difference:.2g}, more than {TOLERANCE:g}")

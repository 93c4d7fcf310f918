"""Comparison of an exported model with the original: token ids, hidden states and head outputs."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers.models import Unigram
from torch import Tensor

from mae_lm_fairseq.checkpoints.reading import Pretrained, build_all
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.huggingface.stock import Counterpart
from mae_lm_fairseq.huggingface.task_classes import ENCODER, MASKED_LM
from mae_lm_fairseq.huggingface.tokenizer import load_tokenizer, pair_differences, transformers_errors
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, SPECIALS, Tokenizer
from mae_lm_fairseq.utils.errors import UserError

TOLERANCE = 1e-4
"""Maximum absolute difference of hidden states and logits in float32."""
NOTHING_WRITTEN = "the export was not written"
_BATCH = 16

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "On 14 July 1789, at 5:30 p.m., about 1,000 people (mostly from the suburbs) stood before the gate.",
    "Wait - what? \"No!\" she said; 'never again'... & then 50% of them left for $3.99 @ home_page #7.",
    "Die Straße führt über Köln nach Łódź; l'été, à Besançon, était très chaud — ¿y mañana?",
    "Η γλώσσα είναι ελληνική. Быстрая лиса прыгает. שלום עולם. مرحبا بالعالم.",  # noqa: RUF001
    "東京は日本の首都です。 我们今天去北京。 안녕하세요 세계.",
    "A cup of coffee ☕, a smile 😀 and ½ a cake ① for ﬁve people.",
    "  Spaces   in front,  between    and behind   ",
    "One.",
    "",
)
"""Sentences that every comparison includes: several scripts and lengths."""


def comparable(lines: Sequence[str]) -> list[str]:
    """Return :data:`SENTENCES` and the lines without literal special tokens, which the tokenizers read differently."""
    specials = (*SPECIALS, MASK, "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
    return [*SENTENCES, *(line for line in lines if not any(special in line for special in specials))]


def check_stock(directory: Path, pretrained: Pretrained, to: Counterpart, lines: Sequence[str]) -> int:
    """Compare an exported directory, loaded the way users load it, with the original.

    Args:
        directory: the exported directory.
        pretrained: the original model.
        to: the class it was exported as.
        lines: text for the comparison. Without a tokenizer, random ids are used instead.

    Returns:
        The number of lines that the tokenizer splits into the same subwords in another order (see :func:`compare_ids`).

    Raises:
        UserError: if weights are missing or unexpected, or if ids, hidden states or logits differ.
    """
    ids, reordered = texts(directory, pretrained, to, lines)
    model = load(getattr(transformers, to.architecture), directory, to)
    network, heads = (module.float() for module in build_all(pretrained))
    for tokens in batches(ids, pretrained.pad):
        is_token = tokens.ne(pretrained.pad)
        with torch.inference_mode():
            theirs = model(to.order.ids[tokens], attention_mask=is_token.long(), output_hidden_states=True)
            states = encoder_states(network, tokens, pretrained.pad)
            outputs = predictions(network, heads, to, states[-1])
        for layer, (ours, their) in enumerate(zip(states, theirs.hidden_states, strict=True)):
            require_same(f"states of layer {layer}", ours[is_token], their[is_token])
        low, high = pretrained.about.score_range_of(to.head) or (0.0, 1.0)
        for name, ours in outputs.items():
            their = (getattr(theirs, name) - low) / (high - low)
            if to.task is MASKED_LM:
                their = their[..., to.order.ids]
            per_token = ours.shape[:2] == tokens.shape
            require_same(name, *((x[is_token] if per_token else x) for x in (ours, their)))
    return reordered


def load(model_class: type, directory: Path, to: Counterpart) -> transformers.PreTrainedModel:
    """Load the model in a directory, and check that its weights are exactly those of its class, and kept ones.

    Raises:
        UserError: if weights are missing or unexpected.
    """
    options = {"add_pooling_layer": False} if to.task is ENCODER and to.has_unset_pooler else {}
    with transformers_errors(directory):
        model, loaded = model_class.from_pretrained(
            directory, output_loading_info=True, use_safetensors=True, **options
        )
    loaded["unexpected_keys"] = set(loaded["unexpected_keys"]) - to.kept.keys()
    if problems := {kind: sorted(map(str, names)) for kind, names in loaded.items() if names}:
        raise UserError(f"{NOTHING_WRITTEN}: its weights do not match {model_class.__name__}: {problems}")
    return model.eval()


def texts(
    directory: Path, pretrained: Pretrained, to: Counterpart, lines: Sequence[str]
) -> tuple[list[list[int]], int]:
    """Return the ids for the comparison, and the number of reordered lines from :func:`compare_ids`."""
    if pretrained.tokenizer is None:
        return random_ids(pretrained), 0
    return compare_ids(directory, pretrained, lines, to.task.reads_words, to.takes_our_pairs(pretrained))


def compare_ids(
    directory: Path, pretrained: Pretrained, lines: Sequence[str], as_words: bool = False, as_pairs: bool = False
) -> tuple[list[list[int]], int]:
    """Compare the tokenizer in a directory with the original, on lines of text or on the lists of their words.

    Special tokens are included. ``as_pairs`` also compares pairs of successive lines, and their token types.

    To a unigram model, two splits into the same subwords, such as 0 00 and 00 0, are equally probable, and rounding
    decides between them. Such differences are counted but accepted.

    Returns:
        our ids of each line between ``<s>`` and ``</s>``, truncated to the model's maximum length; and the
        number of lines with the same subwords in another order.

    Raises:
        UserError: if the ids differ in any other way.
    """
    limit = pretrained.config.max_positions
    fast = load_tokenizer(directory)
    words = [_words(pretrained.tokenizer, line) for line in lines] if as_words else [[line] for line in lines]
    lines, words = zip(*((line, found) for line, found in zip(lines, words, strict=True) if found), strict=True)
    encode = pretrained.tokenizer.encode_words if as_words else pretrained.tokenizer.encode_lines
    ours, reordered = [np.concatenate(encode(each)) for each in words], 0
    exported_ids = pretrained.tokenizer.exported_ids
    texts = list(words) if as_words else list(lines)
    theirs = fast(texts, is_split_into_words=as_words, verbose=False)["input_ids"]
    for line, expected, found in zip(lines, ours, theirs, strict=True):
        expected = exported_ids[[BOS, *expected, EOS]].tolist()
        if expected == found:
            continue
        if not (isinstance(fast.backend_tokenizer.model, Unigram) and sorted(expected) == sorted(found)):
            split = [" ".join(fast.convert_ids_to_tokens(ids))[:200] for ids in (found, expected)]
            raise UserError(
                f"{NOTHING_WRITTEN}: its tokenizer differs from the original on {line[:200]!r}: {split[0]} instead of "
                f"{split[1]}"
            )
        reordered += 1
    if as_pairs and (differences := pair_differences(fast, lines)):
        joined = " and ".join(differences)
        raise UserError(f"{NOTHING_WRITTEN}: its tokenizer joins pairs otherwise than in training, where {joined}")
    return [[BOS, *ids[: limit - 2].tolist(), EOS] for ids in ours], reordered


def _words(tokenizer: Tokenizer, line: str) -> list[str]:
    """Return the words of a line that ``transformers`` labels: not those of which the tokenizer leaves nothing."""
    return [word for word in line.split() if len(tokenizer.encode_lines([word])[0])]


def random_ids(pretrained: Pretrained) -> list[list[int]]:
    """Return deterministic sequences of random ids with several lengths, for a model without a tokenizer."""
    generator, longest = random.Random(0), min(pretrained.config.max_positions, 64)
    vocabulary = range(EOS + 2, pretrained.mask)
    return [
        [BOS, *generator.choices(vocabulary, k=length - 2), EOS] for length in (longest, longest // 2, longest // 4, 3)
    ]


def batches(ids: Sequence[Sequence[int]], pad: int) -> Iterator[Tensor]:
    """Yield padded batches, [sequences, longest] int64."""
    for start in range(0, len(ids), _BATCH):
        rows = [torch.tensor(row) for row in ids[start : start + _BATCH]]
        yield torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def encoder_states(network: MaskedAutoencoder, tokens: Tensor, pad: int) -> list[Tensor]:
    """Return the hidden states [B, T, dim] of the embeddings and every layer, given [B, T] ids without ``<mask>``."""
    layout = batch_layout(tokens, torch.ones_like(tokens, dtype=torch.bool), pad, network.mask)
    return network.unpack_states(network.encode(tokens, layout), layout, tokens.shape[1])


def predictions(
    network: MaskedAutoencoder, heads: Mapping[str, torch.nn.Module], to: Counterpart, states: Tensor
) -> dict[str, Tensor]:
    """Apply the original heads to hidden states [B, T, dim]; return outputs by the counterpart's names."""
    if to.task is ENCODER:
        return {}
    head = network.lm_head if to.task is MASKED_LM else heads[to.head]
    outputs, logits = to.task.outputs, head(states)
    return dict(zip(outputs, [logits] if len(outputs) == 1 else logits.unbind(-1), strict=True))


def require_same(what: str, ours: Tensor, theirs: Tensor):
    """Check that two tensors are finite and differ by at most :data:`TOLERANCE`.

    Raises:
        UserError: if they differ by more or are not finite.
    """
    difference = (ours - theirs).abs().max().item()
    if not difference <= TOLERANCE:
        raise UserError(
            f"{NOTHING_WRITTEN}: its {what} differ from the original's by {difference:.2g}, more than {TOLERANCE:g}"
        )

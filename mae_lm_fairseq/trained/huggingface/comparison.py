"""Comparison of an exported model with the original: token ids, hidden states and head outputs."""

import random
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.packing import batch_layout, seen_masks, unpack
from mae_lm_fairseq.text.comparison_texts import WITH_MASKS
from mae_lm_fairseq.text.hugging_face_tokenizer import import_tokenizers, no_panic
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, Tokenizer
from mae_lm_fairseq.text.tokenizer_files import load_from_transformers
from mae_lm_fairseq.trained.huggingface.stock import Counterpart
from mae_lm_fairseq.trained.huggingface.task_classes import ANSWERS, ENCODER, MASKED_LM, WORDS
from mae_lm_fairseq.trained.huggingface.tokenizer import (
    exported_sequence,
    pair_differences,
    tokens_of,
    write_tokenizer,
)
from mae_lm_fairseq.trained.huggingface.weight_files import transformers_errors
from mae_lm_fairseq.trained.reading import Pretrained, build, build_all
from mae_lm_fairseq.trained.token_order import token_order
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_bytes
from mae_lm_fairseq.utils.hugging_face import import_transformers

TOLERANCE = 1e-4
"""Maximum absolute difference of hidden states and logits in float32."""
MASKED_ROWS = 500
"""Rows with ``<mask>`` that are compared at least: lines are used again, with other tokens masked."""
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
        ids = random_ids(pretrained)
        reordered = 0
    else:
        as_words, as_pairs = to.task is WORDS, to.takes_our_pairs(pretrained)
        ids, reordered = compare_ids(directory, pretrained, lines, as_words, as_pairs)
    model = _load(directory, to)
    network, heads = (module.float() for module in build_all(pretrained))
    low, high = pretrained.about.score_range_of(to.head) or (0.0, 1.0)
    size = len(to.order.ids)
    for tokens in _batches(ids, pretrained.pad):
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
                ours = ours[..., :size]
                their = their[..., to.order.ids]
            if ours.shape[:2] == tokens.shape:  # an output of each token
                ours = ours[is_token]
                their = their[is_token]
            _require_same(name, ours, their)
    return reordered


def check_with_decoder(directory: Path, pretrained: Pretrained, ids: Sequence[Sequence[int]]):
    """Compare an exported directory in plain PyTorch with the original, on our ids of lines with ``<mask>`` tokens.

    Hidden states and logits are compared at all positions, on at least :data:`MASKED_ROWS` rows. The class is that of
    the file in the directory, imported from this package: no code is imported from a directory.

    Raises:
        UserError: if weights are missing or unexpected, or if hidden states or logits differ.
    """
    from mae_lm_fairseq.trained.huggingface.modeling_mae_lm import MAELMForMaskedLM

    model = _loaded(MAELMForMaskedLM, directory)
    network = build(pretrained).float()
    order = token_order(pretrained.tokenizer, len(pretrained.symbols)).ids
    for tokens in _batches(_masked_rows(ids, pretrained.mask), pretrained.pad):
        is_token = tokens.ne(pretrained.pad)
        with torch.inference_mode():
            theirs = model(order[tokens], attention_mask=is_token.long(), output_hidden_states=True)
            states, logits = states_and_logits(network, tokens, pretrained)
        for layer, (ours, their) in enumerate(zip(states, theirs.hidden_states, strict=True)):
            _require_same(f"states of layer {layer}", ours, their)
        _require_same("logits", logits, theirs.logits[..., order])


def _masked_rows(ids: Sequence[Sequence[int]], mask: int) -> list[list[int]]:
    """Return the lines in turn, at least :data:`MASKED_ROWS`, each with another fraction of its tokens masked."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(max(len(ids), MASKED_ROWS)):
        row = np.array(ids[number % len(ids)])
        is_masked = generator.random(len(row)) < generator.random()
        is_masked[[0, -1]] = False
        rows.append(np.where(is_masked, mask, row).tolist())
    return rows


def states_and_logits(
    network: MaskedAutoencoder, tokens: Tensor, pretrained: Pretrained
) -> tuple[list[Tensor], Tensor]:
    """Return hidden states [B, T, dim] of all layers of the encoder, and logits [B, T, vocabulary], given [B, T] ids.

    They are zero at padding, and hidden states also where the encoder does not see ``<mask>``.
    """
    pad, mask = pretrained.pad, pretrained.mask
    early = seen_masks(tokens, mask, pretrained.mask_in_encoder)
    layout = batch_layout(tokens, torch.ones_like(tokens, dtype=torch.bool), pad, mask, early)
    states = network.encode(tokens, layout)
    logits = network.predict(states[-1], layout)
    length = tokens.shape[1]
    return network.unpack_states(states, layout, length), unpack(logits, layout.predicted, length)


def _batches(ids: Sequence[Sequence[int]], pad: int) -> Iterator[Tensor]:
    """Yield ids [B, T], padded on the right."""
    for start in range(0, len(ids), _BATCH):
        rows = [torch.tensor(row) for row in ids[start : start + _BATCH]]
        yield torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)


def random_ids(pretrained: Pretrained) -> list[list[int]]:
    """Return ids to compare where there is no tokenizer."""
    generator = random.Random(0)
    vocabulary = range(EOS + 2, pretrained.mask)
    longest = min(pretrained.config.max_positions, 64)
    ids = []
    for length in (longest, longest // 2, longest // 4, 3):
        ids.append([BOS, *generator.choices(vocabulary, k=length - 2), EOS])
    return ids


def _load(directory: Path, to: Counterpart) -> torch.nn.Module:
    options = {"add_pooling_layer": False} if to.task is ENCODER and to.has_unset_pooler else {}
    return _loaded(getattr(import_transformers(), to.architecture), directory, to.kept, **options)


def _loaded(model_class: type, directory: Path, kept: Collection[str] = (), **options) -> torch.nn.Module:
    """Load a directory, whose weights must be those of the class, and may include those of the names ``kept``."""
    with transformers_errors(directory):
        model, loaded = model_class.from_pretrained(
            directory, output_loading_info=True, use_safetensors=True, **options
        )
    loaded["unexpected_keys"] = set(loaded["unexpected_keys"]).difference(kept)
    problems = {kind: sorted(map(str, names)) for kind, names in loaded.items() if names}
    if problems:
        raise UserError(f"{_NOTHING_WRITTEN}: its weights do not match {model_class.__name__}: {problems}")
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
    tokenizer = pretrained.tokenizer
    fast = load_from_transformers(directory)
    if as_words:
        texts = _lists_of_words(tokenizer, lines)
        ids = [np.concatenate(tokenizer.encode_words(words)) for words in texts]
    else:
        texts = list(lines)
        ids = tokenizer.encode_lines(texts)
    # A tokenizer for lists of words also puts a space before a text.
    masked = [] if as_words or fast.mask_token is None else WITH_MASKS
    their_texts = [*texts, *(text.replace(MASK, fast.mask_token) for text in masked)]
    with no_panic(f"{directory}: the tokenizer (tokenizer.json) cannot encode a text"):
        theirs = fast(their_texts, is_split_into_words=as_words, verbose=False)["input_ids"]

    is_unigram = isinstance(fast.backend_tokenizer.model, import_tokenizers().models.Unigram)
    reordered = 0
    ours = [*ids, *map(tokenizer.encode_masked, masked)]
    for text, our_ids, actual in zip([*texts, *masked], ours, theirs, strict=True):
        expected = exported_sequence(tokenizer, our_ids)
        if actual == expected:
            continue
        if not is_unigram or sorted(actual) != sorted(expected):
            split = f"{tokens_of(actual, fast):.200} instead of {tokens_of(expected, fast):.200}"
            raise UserError(f"{_NOTHING_WRITTEN}: its tokenizer differs from the original on {text!r:.200}: {split}")
        reordered += 1

    differences = pair_differences(fast, texts) if as_pairs else []
    if differences:
        joined = " and ".join(differences)
        raise UserError(f"{_NOTHING_WRITTEN}: its tokenizer joins pairs otherwise than in training, where {joined}")
    longest = pretrained.config.max_positions - 2
    return [[BOS, *row[:longest].tolist(), EOS] for row in ids], reordered


def write_compared_tokenizer(
    pretrained: Pretrained, directory: Path, lines: Sequence[str]
) -> tuple[list[list[int]], int]:
    """Write the tokenizer as :func:`write_tokenizer` does, and return what :func:`compare_ids` returns.

    Raises:
        UserError: as these do. Nothing is written in this case.
    """
    with tempfile.TemporaryDirectory() as temporary:
        write_tokenizer(pretrained, Path(temporary))
        compared = compare_ids(Path(temporary), pretrained, lines)
        for path in Path(temporary).iterdir():
            write_bytes(directory / path.name, path.read_bytes())
    return compared


def _lists_of_words(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[str]]:
    """Return the words of each line, without those that have no tokens, and without lines that have no words."""
    texts = []
    for line in lines:
        words = [word for word in line.split() if len(tokenizer.encode_lines([word])[0])]
        if words:
            texts.append(words)
    return texts


def encoder_states(network: MaskedAutoencoder, tokens: Tensor, pad: int) -> list[Tensor]:
    """Return the hidden states [B, T, dim] of the embeddings and every layer, given [B, T] ids without ``<mask>``."""
    layout = batch_layout(tokens, torch.ones_like(tokens, dtype=torch.bool), pad, network.mask)
    return network.unpack_states(network.encode(tokens, layout), layout, tokens.shape[1])


def _predictions(
    network: MaskedAutoencoder, heads: Mapping[str, torch.nn.Module], to: Counterpart, states: Tensor
) -> dict[str, Tensor]:
    if to.task is ENCODER:
        return {}
    head = network.lm_head if to.task is MASKED_LM else heads[to.head]
    logits = head(states)
    if to.task is ANSWERS:
        start, end = logits.unbind(-1)
        return {"start_logits": start, "end_logits": end}
    return {"logits": logits}


def _require_same(what: str, ours: Tensor, theirs: Tensor):
    difference = (ours - theirs).abs().max().item()
    if not difference <= TOLERANCE:  # NaN is refused, too
        raise UserError(f"{_NOTHING_WRITTEN}: its {what} differ by {difference:.2g}, more than {TOLERANCE:g}")

"""Tokenizers for ``transformers``.

A tokenizer of Hugging Face's library is exported as it is, with its own ids.

For a sentencepiece model, a fast tokenizer with fairseq's ids is built. It gives the same ids as sentencepiece on text
in any script, including unknown characters, except for the cases that model cards list (``cards.toml``).
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.hugging_face_tokenizer import (
    TOKENIZER_JSON,
    HuggingFaceTokenizer,
    exported_library,
    import_tokenizers,
    library_errors,
    no_panic,
    steps_of,
    words_after_spaces,
)
from mae_lm_fairseq.text.sentencepiece_tokenizer import WORD_START, SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, PAD, SPECIALS, UNK, Tokenizer
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.hugging_face import TOKENIZER_CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def exported_tokenizer(
    tokenizer: SentencePieceTokenizer | HuggingFaceTokenizer, symbols: tuple[str, ...], max_length: int
) -> "PreTrainedTokenizerFast":
    """Return a tokenizer for ``transformers``, with fairseq's special tokens around a text or a pair.

    ``max_length`` is the maximum sequence length in tokens, ``<s>`` and ``</s>`` included.

    Raises:
        UserError: if ``transformers`` cannot represent the tokenizer.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _sentencepiece_tokenizer(tokenizer.files[TOKENIZER], symbols, max_length)
    return _library_tokenizer(tokenizer, max_length)


def exported_sequence(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the ids elsewhere of ``<s> ids </s>``, given our ids."""
    return tokenizer.exported_ids[[BOS, *ids, EOS]].tolist()


def tokens_of(ids: Sequence[int], fast: "PreTrainedTokenizerFast") -> str:
    """Return the tokens of ids, separated by spaces, for messages."""
    return " ".join(fast.convert_ids_to_tokens(ids))


def write_tokenizer(pretrained: Pretrained, directory: Path):
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises:
        UserError: if ``transformers`` cannot represent the tokenizer.
    """
    fast = exported_tokenizer(pretrained.tokenizer, pretrained.symbols, pretrained.config.max_positions)
    fast.save_pretrained(directory)
    # transformers 4 also knows the tokenizer class by this name.
    _update_json(directory / TOKENIZER_CONFIG, {"tokenizer_class": "PreTrainedTokenizerFast"})


def read_lists_of_words(tokenizer: SentencePieceTokenizer | HuggingFaceTokenizer | None, directory: Path):
    """Make a written tokenizer encode each of a list of words as after a space, as token classification does.

    Where this is a setting, as in byte-level BPE, it also puts a space before a text.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return
    described = json.loads(exported_library(tokenizer).to_str())
    if words_after_spaces(described) == described:
        return
    path = directory / TOKENIZER_JSON
    if path.exists():
        _update_json(path, words_after_spaces(json.loads(path.read_bytes())))
    _update_json(directory / TOKENIZER_CONFIG, {"add_prefix_space": True})


def _update_json(path: Path, changes: dict):
    """Write a file with changed values; others stay, if there is one already."""
    before = json.loads(path.read_bytes()) if path.exists() else {}
    write_text(path, json.dumps(before | changes, indent=2, ensure_ascii=False) + "\n")


def pair_differences(fast: "PreTrainedTokenizerFast", texts: Sequence[str] = ("a", "b")) -> list[str]:
    """Return how this package joins two texts where a tokenizer joins them otherwise; empty if both are the same.

    Ours are ``<s> A </s> </s> B </s>``, all with the first token type. Each text is joined with the next one.
    """
    texts = list(texts)
    with no_panic("the tokenizer (tokenizer.json) cannot encode a pair of texts"):
        pairs = fast(texts[:-1], texts[1:], verbose=False)
        singles = fast(texts, verbose=False)["input_ids"]
    joined = [[*first, first[-1], *second[1:]] for first, second in itertools.pairwise(singles)]
    differences = []
    if any(map(any, pairs.get("token_type_ids", []))):
        differences.append("both texts have the first token type")
    if pairs["input_ids"] != joined:
        differences.append("two separators are between them")
    return differences


def _library_tokenizer(tokenizer: HuggingFaceTokenizer, max_length: int) -> "PreTrainedTokenizerFast":
    library = exported_library(tokenizer)
    if library.get_vocab_size() > tokenizer.mask + 1:
        raise UserError(
            f"{tokenizer.path}: dict.txt lacks some of its tokens; fairseq reads them as <unk>, and transformers cannot"
        )
    added = library.get_added_tokens_decoder()
    specials = [added[int(tokenizer.exported_ids[index])] for index in (BOS, PAD, EOS, UNK, tokenizer.mask)]
    bos, _, eos, *_ = (token.content for token in specials)
    processors = import_tokenizers().processors
    template = _template(library, bos, eos)
    trims = [processors.ByteLevel(**settings) for settings in _offset_settings(json.loads(library.to_str()))]
    library.post_processor = processors.Sequence([*trims, template]) if trims else template
    return _with_roles(library, specials, max_length)


def _template(library, bos: str, eos: str):
    """Return the step that puts special tokens around a text or a pair."""
    ids = [(token, library.token_to_id(token)) for token in (bos, eos)]
    single = f"{bos} $A {eos}"
    pair = f"{single} {eos} $B {eos}"
    return import_tokenizers().processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _offset_settings(described: Mapping[str, Any]) -> list[dict[str, bool]]:
    """Return the settings of the steps that leave spaces out of the offsets of subwords, which are the original's.

    A byte-level tokenizer that was trained here has none of them, and gets RoBERTa's.
    """
    steps = steps_of(described["post_processor"])
    pre_tokenizers = steps_of(described["pre_tokenizer"])
    if not steps and any(step["type"] == "ByteLevel" for step in pre_tokenizers):
        adds_space = any(step.get("add_prefix_space") for step in pre_tokenizers)
        return [{"trim_offsets": True, "add_prefix_space": adds_space}]
    trimming = [step for step in steps if step.get("trim_offsets")]
    return [{"trim_offsets": True, "add_prefix_space": step["add_prefix_space"]} for step in trimming]


def _with_roles(library, specials: Sequence, max_length: int) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    bos, pad, eos, unk, mask = specials
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        bos_token=bos,
        cls_token=bos,
        eos_token=eos,
        sep_token=eos,
        unk_token=unk,
        pad_token=pad,
        mask_token=mask,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
    )


def _sentencepiece_tokenizer(model: bytes, symbols: tuple[str, ...], max_length: int) -> "PreTrainedTokenizerFast":
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    _check(proto, symbols)
    tokenizers = import_tokenizers()
    model = _bpe(proto, symbols) if proto.trainer_spec.model_type == _BPE else _unigram(proto, symbols)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = _normalizer(proto.normalizer_spec)
    # A text starts with a word, but text directly after a <mask> continues one.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(WORD_START, prepend_scheme="first", split=False)
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(MASK, f" {MASK}"),
            decoders.Replace(WORD_START, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = _template(tokenizer, SPECIALS[BOS], SPECIALS[EOS])
    mask = tokenizers.AddedToken(MASK, lstrip=True, normalized=False, special=True)
    return _with_roles(tokenizer, [*SPECIALS, mask], max_length)


def _check(proto, symbols: tuple[str, ...]):
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    marks_spaces = normalizer.escape_whitespaces and normalizer.remove_extra_whitespaces
    marks_starts = normalizer.add_dummy_prefix and not trainer.treat_whitespace_as_suffix
    types = {piece.type for piece in proto.pieces}
    # fairseq-preprocess leaves out of the dictionary what does not occur.
    requirements = {
        "is neither BPE nor unigram": trainer.model_type in (_UNIGRAM, _BPE),
        "has pieces that the dictionary lacks": _pieces(proto).keys() <= set(symbols),
        "has user-defined or unused pieces": types <= {_NORMAL, _UNKNOWN, _CONTROL, _BYTE},
        "keeps repeated spaces, or does not mark the start of every word": marks_spaces and marks_starts,
    }
    for problem, is_true in requirements.items():
        if not is_true:
            raise UserError(f"a sentencepiece model that {problem} has no fast tokenizer")


def _pieces(proto) -> dict[str, float]:
    return {piece.piece: piece.score for piece in proto.pieces if piece.type in (_NORMAL, _BYTE)}


def _unigram(proto, symbols: tuple[str, ...]):
    scores = _pieces(proto)
    vocabulary = [(symbol, scores.get(symbol, 0.0)) for symbol in symbols]
    byte_fallback = proto.trainer_spec.byte_fallback
    return import_tokenizers().models.Unigram(vocabulary, unk_id=UNK, byte_fallback=byte_fallback)


def _bpe(proto, symbols: tuple[str, ...]):
    # sentencepiece does not store merges: they are all splits of a piece into two pieces, best piece first.
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == _NORMAL}
    merges = []
    for piece in sorted(scores, key=scores.get, reverse=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((left, right))
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    return import_tokenizers().models.BPE(
        vocab=vocabulary,
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def _normalizer(spec):
    tokenizers = import_tokenizers()
    normalizers = tokenizers.normalizers
    # Whitespace is U+0020 only, as in sentencepiece; `Strip` of `tokenizers` would remove more.
    steps = [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Replace(tokenizers.Regex(" $"), "")]
    if spec.precompiled_charsmap:
        with library_errors("the sentencepiece model's table of normalisation is damaged"):
            steps.insert(0, normalizers.Precompiled(spec.precompiled_charsmap))
    return normalizers.Sequence(steps)

"""Opens tokenizers of any kind: from a data-bin or bundle, from a path, or after a check that they fit a checkpoint."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mae_lm_fairseq.text.comparison_texts import WITH_MASKS, texts_for
from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER, dictionary_fingerprint
from mae_lm_fairseq.text.dictionary import parse_symbols, read_symbols
from mae_lm_fairseq.text.hugging_face_tokenizer import (
    ENCODER_JSON,
    TOKENIZER_JSON,
    VOCAB_BPE,
    FairseqBPETokenizer,
    HuggingFaceTokenizer,
    library_errors,
)
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer import MASK, Tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_bytes
from mae_lm_fairseq.utils.hugging_face import AS_DATA, TOKENIZER_CONFIG, import_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_KINDS = (SentencePieceTokenizer, FairseqBPETokenizer, HuggingFaceTokenizer)
# The first whose files exist is authoritative: a bundle may also have a tokenizer.json for transformers.
TOKENIZER_FILES = sorted({name for kind in _KINDS for name in kind.FILES} - {DICTIONARY})
"""Names of files that belong to a tokenizer in a data-bin or bundle."""
NAMES = f"{TOKENIZER}, {TOKENIZER_JSON}, or {ENCODER_JSON} and {VOCAB_BPE}"
"""The files in words, for messages."""
_CONFIGS = (TOKENIZER_CONFIG, "config.json", "special_tokens_map.json", "added_tokens.json")
"""Files of ``transformers``, which can change what the other files of a tokenizer do."""


def find_tokenizer(directory: str | Path) -> Tokenizer | None:
    """Return the tokenizer in the directory of a data-bin or bundle; None if it has none.

    Where ``fairseq-preprocess`` ordered the symbols of a sentencepiece model, its tokens have the ids of that order.

    Raises:
        UserError: if a file is damaged or missing.
    """
    for kind in _KINDS:
        path = Path(directory, kind.FILES[0])
        if os.path.exists(path):
            tokenizer = kind(path)
            dictionary = path.with_name(DICTIONARY)
            has_order = kind is SentencePieceTokenizer and dictionary.exists()
            return _in_order_of(tokenizer, dictionary) if has_order else tokenizer
    return None


def _in_order_of(tokenizer: SentencePieceTokenizer, path: Path) -> SentencePieceTokenizer:
    """Return a tokenizer with the ids of a dictionary, unless a manifest beside it says that the data has others."""
    content = read_bytes(path)
    *symbols, _ = parse_symbols(content, path)
    if symbols == tokenizer.symbols:
        return tokenizer
    manifest = path.with_name(MANIFEST)
    if manifest.exists() and Manifest.read(manifest).dictionary_sha256 != dictionary_fingerprint(symbols):
        return tokenizer
    return SentencePieceTokenizer(tokenizer.path, tokenizer.files[TOKENIZER], content)


def missing_tokenizer(directory: str | Path) -> UserError:
    """Return the error for a data-bin or model whose tokenizer is needed."""
    return UserError(f"{directory} has no tokenizer ({NAMES}), which text needs; put that of the training there")


def open_tokenizer_path(path: str | Path) -> Tokenizer:
    """Return the tokenizer at a path.

    Args:
        path: a sentencepiece model, a ``tokenizer.json``, or a directory: a data-bin, a bundle, a directory of
            Hugging Face, or GPT-2's ``encoder.json`` and ``vocab.bpe`` with fairseq's ``dict.txt``.

    Raises:
        UserError: if there is no tokenizer, or it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        is_ours = (path / DICTIONARY).exists()
        is_of_transformers = any((path / name).exists() for name in _CONFIGS)
        if is_of_transformers and not is_ours:
            return as_loaded(load_from_transformers(path), path)
        tokenizer = find_tokenizer(path)
        if tokenizer is None:
            raise missing_tokenizer(path)
        return tokenizer
    if path.name == ENCODER_JSON:
        return FairseqBPETokenizer(path)
    return HuggingFaceTokenizer(path) if path.suffix == ".json" else SentencePieceTokenizer(path)


def load_from_transformers(directory: Path) -> "PreTrainedTokenizerFast":
    """Return the tokenizer in a directory as users of ``transformers`` load it.

    Raises:
        UserError: if ``transformers`` cannot load it, it has no ``tokenizer.json``, or its code would have to run.
    """
    with library_errors(f"{directory}: transformers cannot load its tokenizer (tokenizer.json)"):
        loaded = import_transformers().AutoTokenizer.from_pretrained(directory, **AS_DATA)
    if not loaded.is_fast:
        raise UserError(f"{directory}: its tokenizer has no tokenizer.json, and transformers cannot make one")
    if loaded.split_special_tokens:
        raise UserError(
            f"{directory / TOKENIZER_CONFIG}: split_special_tokens is true, which this package does not support; set "
            "it to false, so that special tokens in a text are tokens"
        )
    return loaded


def as_loaded(loaded: "PreTrainedTokenizerFast", directory: Path) -> Tokenizer:
    """Return the tokenizer that ``transformers`` loaded from a directory; of our export, its sentencepiece model.

    Raises:
        UserError: if fairseq cannot represent its tokens, or it encodes a text otherwise than the one of
            ``transformers``.
    """
    content = loaded.backend_tokenizer.to_str()
    tokenizer = HuggingFaceTokenizer(directory / TOKENIZER_JSON, content.encode())
    model = directory / TOKENIZER
    # Those that transformers makes of a sentencepiece model split at spaces, and start words where the model does not.
    pre_tokenizer = json.loads(content)["pre_tokenizer"] or {}
    if model.exists() and pre_tokenizer.get("split") is False:
        of_model = SentencePieceTokenizer(model)
        if of_model.symbols == tokenizer.symbols:
            tokenizer = of_model
    with library_errors(f"{directory}: transformers cannot encode a text with its tokenizer"):
        _check_same_ids(tokenizer, loaded, directory)
    return tokenizer


def _check_same_ids(tokenizer: Tokenizer, loaded: "PreTrainedTokenizerFast", directory: Path):
    """Raise a UserError if a text, or one with masks, has other ids than in ``transformers``."""

    exported_ids = tokenizer.exported_ids
    if loaded.mask_token_id not in (None, exported_ids[tokenizer.mask]):
        raise UserError(
            f"{directory}: its mask token is {loaded.mask_token!r}; only {MASK} and [MASK] are supported, so "
            "rename it in the files of the tokenizer"
        )

    def compare(text: str, their_text: str, ids: Sequence[int]) -> None:
        ours = exported_ids[ids].tolist()
        theirs = loaded(their_text, add_special_tokens=False, verbose=False)["input_ids"]
        if isinstance(tokenizer, SentencePieceTokenizer) and sorted(theirs) == sorted(ours):
            return  # to a unigram model, two splits into the same subwords are equally probable
        if theirs != ours:
            our_tokens, their_tokens = (" ".join(loaded.convert_ids_to_tokens(ids)) for ids in (ours, theirs))
            raise UserError(
                f"{directory}: its tokenizer makes {their_tokens!r:.200} of the text {text!r:.80}; here it is "
                f"{our_tokens!r:.200}"
            )

    texts = texts_for(tokenizer)
    for text, ids in zip(texts, tokenizer.encode_lines(texts), strict=True):
        compare(text, text, ids)
    if loaded.mask_token is not None:
        for text in WITH_MASKS:
            compare(text, text.replace(MASK, loaded.mask_token), tokenizer.encode_masked(text))


def open_tokenizer(data_bin: Path, checkpoint: str | Path | None = None, dictionary: str | None = None) -> Tokenizer:
    """Return the tokenizer of the data-bin of a pretraining, for preparing data of other tasks.

    Args:
        data_bin: directory with a tokenizer, dict.txt and, unless it was made by hand, manifest.json.
        checkpoint: checkpoint to fine-tune, for the error message.
        dictionary: fingerprint of the dictionary that the checkpoint was trained with, or None if unknown.

    Raises:
        UserError: if a file is missing, or the files do not match each other or the checkpoint.
    """
    tokenizer = find_tokenizer(data_bin)
    if tokenizer is None:
        raise missing_tokenizer(f"--data-bin {data_bin}")
    fingerprint = dictionary_fingerprint(tokenizer.symbols)
    *symbols, _ = read_symbols(data_bin / DICTIONARY)
    fits = symbols == tokenizer.symbols
    if fits and (data_bin / MANIFEST).exists():
        manifest = Manifest.read(data_bin / MANIFEST)
        fits = manifest.tokenizer_sha256 == tokenizer.fingerprint and manifest.dictionary_sha256 == fingerprint
    if not fits:
        raise UserError(
            f"--data-bin {data_bin}: {tokenizer.path.name}, {DICTIONARY} and {MANIFEST} do not belong together; "
            "restore those that the data was prepared with"
        )
    if dictionary not in (None, fingerprint):
        raise UserError(
            f"--data-bin {data_bin}: not the tokenizer of {checkpoint}, which was trained with another dictionary; "
            "use the data-bin that it was pretrained on"
        )
    return tokenizer

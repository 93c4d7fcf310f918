"""Tokenizers of Hugging Face's library ``tokenizers``, and GPT-2's byte-level BPE in the files of fairseq's RoBERTa.

The library's ids are mapped to fairseq's by a table. For tokenizers trained by this package it is the identity.

In a text, ``<s> <pad> </s> <unk> <mask>`` are ordinary text, as for sentencepiece. Further special tokens, such as
markers of entities, are tokens.
"""

import contextlib
import copy
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import parse_symbols
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, PAD, SPECIALS, UNK, Tokenizer
from mae_lm_fairseq.utils.errors import UserError, first_line
from mae_lm_fairseq.utils.files import parse_json, read_bytes

TOKENIZER_JSON = "tokenizer.json"
ENCODER_JSON, VOCAB_BPE = "encoder.json", "vocab.bpe"
"""GPT-2's byte-level BPE: ids of the tokens, and merges."""
_NONCHARACTER = "\U0010ffff"
"""Unknown to every vocabulary."""
_NEVER_IN_UTF8 = {chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
"""Bytes that no text in UTF-8 has, as the characters that byte-level BPE writes for them."""
_DROP_SPACES = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers after which a word does not show whether a space was before it."""
_ONE_SPACE = {"String": " "}
_SEQUENCES = ("normalizers", "pretokenizers", "decoders", "processors")
"""Names of the lists of steps in a described tokenizer."""
_OTHER_NAMES = {"<s>": "[CLS]", "<pad>": "[PAD]", "</s>": "[SEP]", "<unk>": "[UNK]", MASK: "[MASK]"}


def import_tokenizers():
    """Return the module ``tokenizers``, without threads unless the user has asked for them.

    Preparation has one process per core, and the library warns of processes that fork after it has used threads.

    Raises:
        ModuleNotFoundError: if it is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers


class HuggingFaceTokenizer(Tokenizer):
    """A ``tokenizer.json``: byte-level BPE, WordPiece or Unigram.

    ``<s> <pad> </s> <unk> <mask>`` may have BERT's names (``[CLS]`` and so on). Those that the file lacks are added to
    it, and :attr:`files` has the completed file. The other tokens keep their order in fairseq's dictionary.

    Args:
        content: its content, if it has been read already.

    Raises:
        UserError: if the file is not a tokenizer, drops unknown characters or cannot encode them, or fairseq cannot
            represent its tokens.
    """

    FILES, LIBRARY = (TOKENIZER_JSON,), "tokenizers"

    def __init__(self, path: str | Path, content: bytes | None = None):
        content = read_bytes(path) if content is None else content
        with library_errors(f"{path}: not a tokenizer of Hugging Face, or damaged"):
            library = import_tokenizers().Tokenizer.from_str(content.decode())
        if _add_special_tokens(library):
            content = library.to_str(pretty=True).encode()
        vocabulary = library.get_vocab(with_added_tokens=True)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise UserError(f"{path}: token ids have gaps; save the tokenizer without them")

        roles = _special_tokens(vocabulary)
        added = library.get_added_tokens_decoder().values()
        are_special = {token.content for token in added if token.special}
        self.further_specials = frozenset(are_special.difference(roles.values()))
        if self.further_specials:
            library = _with_special(library, self.further_specials, False)

        by_id = sorted(vocabulary, key=vocabulary.get)
        ordinary = [token for token in by_id if token not in roles.values()]
        specials = [roles[name] for name in SPECIALS]
        tokens = [*specials, *ordinary, roles[MASK]]
        order = np.array([vocabulary[token] for token in tokens])
        symbols = [*SPECIALS, *map(_symbol, ordinary)]
        self._start(path, {TOKENIZER_JSON: content}, library, symbols, order)
        self.unknown_ids = self._find_unknown_ids()

    further_specials: frozenset[str] = frozenset()
    """Special tokens without a role here. They are found in a text, which the library does for others only."""

    def _start(self, path: str | Path, files: Mapping[str, bytes], library, symbols: Sequence[str], order: np.ndarray):
        # Where a model finds special tokens in ordinary text, as Unigram does, they are unknown.
        fairseq_ids = np.full(library.get_vocab_size(), UNK)
        ordinary = order[len(SPECIALS) : -1]
        fairseq_ids[ordinary] = np.arange(len(SPECIALS), len(symbols))
        super().__init__(path, files, symbols, fairseq_ids)
        library.no_padding()
        library.no_truncation()
        library.encode_special_tokens = True
        if hasattr(library.model, "dropout"):  # BPE; meant for training
            library.model.dropout = None
        self.library = library
        self._order = order

    def _find_unknown_ids(self) -> tuple[int, ...]:
        """Return the value of ``unknown_ids``: the library's token for unknown characters may be an ordinary one."""
        unknown = _NONCHARACTER
        if self.is_byte_level:
            alphabet = set(import_tokenizers().pre_tokenizers.ByteLevel.alphabet())
            known = self.library.get_vocab(with_added_tokens=False)
            missing = alphabet - known.keys() - _NEVER_IN_UTF8
            if not missing:
                return (UNK,)
            unknown = min(missing)
        with library_errors(f"{self.path}: cannot encode unknown characters"):
            tokens = self.library.model.tokenize(unknown)
        if not tokens:
            raise UserError(f"{self.path}: drops unknown characters; use one with an unknown token or all bytes")
        if len(tokens) > 1:  # its bytes
            return (UNK,)
        return tuple({UNK, int(self._fairseq_ids[tokens[0].id])})

    @property
    def exported_ids(self) -> np.ndarray:
        return self._order

    def library_ids(self, lines: list[str]) -> list[list[int]]:
        return self._ids_of(self.library, lines)

    def library_ids_of_words(self, words: list[str]) -> list[list[int]]:
        return self._ids_of(self._library_for_words, words)

    def _ids_of(self, library, texts: list[str]) -> list[list[int]]:
        with self._no_panic():
            encodings = library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _no_panic(self) -> contextlib.AbstractContextManager:
        return no_panic(f"{self.path}: cannot encode or decode a text")

    @cached_property
    def _library_for_words(self):
        """The library's tokenizer, but every text is a word after a space."""
        described = _description(self.library)
        after_spaces = words_after_spaces(described)
        if after_spaces == described:
            return self.library
        library = _library_from(after_spaces)
        library.encode_special_tokens = True
        return library

    @cached_property
    def added_tokens(self) -> list[str]:
        """Tokens that the library finds in a text before its model splits it, without those that have a role here."""
        special_ids = [*range(len(SPECIALS)), self.mask]
        roles = map(self.token, special_ids)
        added = self.library.get_added_tokens_decoder().values()
        return sorted({token.content for token in added}.difference(roles))

    def encode_masked(self, text: str) -> list[int]:
        library, fairseq_ids = self._with_mask
        with self._no_panic():
            return fairseq_ids[library.encode(text, add_special_tokens=False).ids].tolist()

    @cached_property
    def _with_mask(self) -> tuple[Any, np.ndarray]:
        """The library's tokenizer, but ``<mask>`` in a text is the mask token; and fairseq's ids of its ids."""
        described = _description(self.library)
        mask = self.token(self.mask)
        added = []
        for token in described["added_tokens"]:
            if token["content"] == mask:
                added.append({**token, "content": MASK})
            elif not token["special"]:
                added.append(token)
        described |= {"added_tokens": added, "post_processor": None}
        library = _library_from(described)

        known = self.library.get_vocab()
        fairseq_ids = np.full(len(self._fairseq_ids) + 1, UNK)
        for token, index in library.get_vocab().items():
            fairseq_ids[index] = self.mask if token == MASK else self._fairseq_ids[known[token]]
        return library, fairseq_ids

    def decode(self, ids: Iterable[int]) -> str:
        library_ids = [self.exported_ids[index] for index in ids if index not in (BOS, PAD, EOS)]
        with self._no_panic():
            text = self.library.decode(library_ids, skip_special_tokens=False)
        return text.replace(self.token(self.mask), MASK)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        with self._no_panic():
            encoding = self.library.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64)
        return self._fairseq_ids[encoding.ids], offsets.reshape(-1, 2)

    def normalize(self, text: str) -> str:
        normalizer = self.library.normalizer
        with self._no_panic():
            return normalizer.normalize_str(text) if normalizer else text

    def token(self, index: int) -> str:
        """Return the library's token of a fairseq id."""
        return self.library.id_to_token(int(self.exported_ids[index]))

    def token_text(self, index: int) -> str:
        token = self.token(index)
        if index < len(SPECIALS) or index == self.mask:
            return token
        if self.is_byte_level:
            with self._no_panic():
                return self.library.decode([int(self.exported_ids[index])], skip_special_tokens=False)
        if prefix := getattr(self.library.model, "continuing_subword_prefix", None):  # WordPiece's ##
            return token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
        return token.replace(self._word_start, " ") if self._word_start else token

    @cached_property
    def _steps(self) -> list[dict[str, Any]]:
        described = _description(self.library)
        parts = (described["normalizer"], described["pre_tokenizer"], described["decoder"])
        return list(chain.from_iterable(map(steps_of, parts)))

    @property
    def is_byte_level(self) -> bool:
        """Whether the tokenizer splits the bytes of a text, with the space before a word as part of it."""
        return any(step["type"] == "ByteLevel" for step in self._steps)

    @cached_property
    def _word_start(self) -> str | None:
        """Prefix of subwords at the start of a word, such as U+2581."""
        for step in self._steps:
            if step["type"] == "Metaspace":
                return step["replacement"]
            if _replaces_spaces(step):  # Llama, Gemma
                return step["content"]
        return None


class FairseqBPETokenizer(HuggingFaceTokenizer):
    """GPT-2's byte-level BPE with the dictionary of a fairseq data-bin, as in fairseq's recipe for RoBERTa.

    ``dict.txt`` has GPT-2's ids as symbols. Tokens whose ids it lacks are read as ``<unk>``, as in fairseq. The
    library's tokenizer has fairseq's ids, so that an export is like Hugging Face's RoBERTa.

    Args:
        path: path of ``encoder.json``; the other files are beside it.
        contents: contents of the files, if they have been read already.

    Raises:
        UserError: if a file is missing or damaged, or they do not belong together.
    """

    FILES = (ENCODER_JSON, VOCAB_BPE, DICTIONARY)

    def __init__(self, path: str | Path, *contents: bytes):
        path = Path(path)
        if not contents:
            contents = [read_bytes(path.with_name(name)) for name in self.FILES]
        encoder, merges, dictionary = contents
        symbols = parse_symbols(dictionary, path.with_name(DICTIONARY))
        tokens = parse_json(encoder, path, _tokens_by_id, "restore it")
        if not tokens.keys() & set(symbols):
            raise UserError(
                f"{path}: does not belong to {path.with_name(DICTIONARY)}, which has none of its ids; use the files "
                "that the data was encoded with"
            )
        ordered = [tokens.pop(symbol, symbol) for symbol in symbols]
        ordered += tokens.values()
        vocabulary = {token: index for index, token in enumerate(ordered)}
        with library_errors(f"{path.with_name(VOCAB_BPE)}: not the merges of the {ENCODER_JSON} beside it"):
            lines = merges.decode().split("\n")
            pairs = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
            model = import_tokenizers().models.BPE(vocabulary, pairs)
        library = byte_level(model)
        _add_special_tokens(library)
        files = dict(zip(self.FILES, contents, strict=True))
        self._start(path, files, library, symbols[:-1], np.arange(len(symbols)))


@contextlib.contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Convert any exception of the library in the ``with`` block to an error message, panics in Rust included.

    Raises:
        UserError: if the block raises an exception; ``message`` precedes its first line.
        ModuleNotFoundError: if a package is not installed.
        MemoryError: if there is not enough memory.
    """
    with no_panic(message):
        try:
            yield
        except (UserError, ModuleNotFoundError, MemoryError):
            raise
        except Exception as error:  # many types are raised
            raise UserError(f"{message}: {first_line(error)}") from None


@contextlib.contextmanager
def no_panic(message: str) -> Iterator[None]:
    """Convert a panic of the library in the ``with`` block, such as that of a regex that backtracks without end.

    A panic is no ``Exception``: it would pass all who expect one, and end a worker process.

    Raises:
        UserError: if the block raises a panic; ``message`` precedes its first line.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{message}: {first_line(error)}") from None


def _description(library) -> dict[str, Any]:
    """Return what a ``tokenizer.json`` of a tokenizer of the library has."""
    return json.loads(library.to_str())


def _library_from(described: dict[str, Any]):
    """Return the library's tokenizer of a description."""
    return import_tokenizers().Tokenizer.from_str(json.dumps(described))


def _tokens_by_id(ids: Mapping[str, int]) -> dict[str, str]:
    """Return the tokens of an ``encoder.json`` by their ids, as text."""
    return {str(ids[token]): token for token in ids}


def _symbol(token: str) -> str:
    """Return a token as dict.txt writes it: white space, which separates its columns, as codes."""
    return "".join(f"\\u{ord(char):04x}" if char.isspace() else char for char in token)


def _special_tokens(vocabulary: Mapping[str, int]) -> dict[str, str]:
    """Return the tokens of the vocabulary for the roles, by fairseq's name."""
    tokens = {}
    for name, other_name in _OTHER_NAMES.items():
        token = name if name in vocabulary else other_name
        if token in vocabulary:
            tokens[name] = token
    return tokens


def _add_special_tokens(library) -> bool:
    """Make the tokens of the roles special ones, and add those that the tokenizer lacks; return whether any changed."""
    tokens = _special_tokens(library.get_vocab(with_added_tokens=True))
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    names = (tokens.get(name, name) for name in _OTHER_NAMES)
    lacking = [name for name in names if name not in added or not added[name].special]
    library.add_special_tokens([_special_token(name, added.get(name)) for name in lacking])
    return bool(lacking)


def _special_token(name: str, ordinary: Any | None):
    """Return a special token, with the spaces that it takes as an ordinary added token, if it is one."""
    if ordinary is None:
        # As in RoBERTa, the space before a masked word belongs to it.
        return import_tokenizers().AddedToken(name, special=True, normalized=False, lstrip=name == MASK)
    ordinary.special = True
    return ordinary


def _with_special(library, contents: Collection[str], is_special: bool):
    """Return a tokenizer of the library in which some added tokens are special ones, or are not."""
    described = _description(library)
    for token in described["added_tokens"]:
        if token["content"] in contents:
            token["special"] = is_special
    return _library_from(described)


def exported_library(tokenizer: HuggingFaceTokenizer):
    """Return a copy of the library's tokenizer as its file describes it: further special tokens are special."""
    return _with_special(tokenizer.library, tokenizer.further_specials, True)


def steps_of(described: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a described normalizer, pre-tokenizer, decoder or post-processor."""
    if described is None:
        return []
    inside = next((described[name] for name in _SEQUENCES if name in described), [])
    return [described, *chain.from_iterable(map(steps_of, inside))]


def words_after_spaces(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a described tokenizer that encodes each of a list of words, the first one included, as after a space.

    Those of ``transformers`` have a setting for this, such as RoBERTa's ``add_prefix_space``, or add the space to every
    text. To the others, such as Gemma's, a step that adds it is given.
    """
    described = copy.deepcopy(dict(described))
    normalizers = steps_of(described["normalizer"])
    pre_tokenizers = steps_of(described["pre_tokenizer"])
    kinds = [step["type"] for step in pre_tokenizers if step["type"] != "Sequence"]
    if any(step["type"] == "Prepend" for step in normalizers):
        return described
    if "Metaspace" in kinds:
        for step in pre_tokenizers:
            if step.get("prepend_scheme") == "never":
                step["prepend_scheme"] = "always"
    elif kinds[:1] == ["ByteLevel"]:
        for step in (*pre_tokenizers, *steps_of(described["post_processor"])):
            if step["type"] in ("ByteLevel", "RobertaProcessing"):
                step["add_prefix_space"] = True
    elif not _DROP_SPACES.intersection(kinds):
        # A step behind another one would add the space to each part of a word.
        steps = [{"type": "Metaspace", "replacement": _space(normalizers), "prepend_scheme": "always", "split": False}]
        if described["pre_tokenizer"]:
            steps.append(described["pre_tokenizer"])
        described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return described


def _space(normalizers: Iterable[Mapping[str, Any]]) -> str:
    """Return the sign that normalizers, as Llama's and Gemma's, write for a space."""
    signs = [step["content"] for step in normalizers if _replaces_spaces(step)]
    return signs[0] if signs and len(signs[0]) == 1 else " "


def _replaces_spaces(step: Mapping[str, Any]) -> bool:
    return step["type"] == "Replace" and step["pattern"] == _ONE_SPACE


def byte_level(model):
    """Return a tokenizer of the library that splits the bytes of a text, as GPT-2's does."""
    library = import_tokenizers()
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer

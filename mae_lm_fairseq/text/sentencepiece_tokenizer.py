"""sentencepiece models as tokenizers: reading, and training of BPE and unigram models.

``dict.txt`` lists the pieces in the model's order, without its unknown and control pieces. A model trained here starts
with ``<unk> <s> </s>``, so the id of a piece in fairseq is its sentencepiece id plus one. A ``dict.txt`` in another
order, which ``fairseq-preprocess`` writes without ``--srcdict``, is matched by symbol.
"""

import io
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import compress
from pathlib import Path

import numpy as np
import sentencepiece

from mae_lm_fairseq.text.data_bin import DICTIONARY, TOKENIZER
from mae_lm_fairseq.text.dictionary import parse_symbols
from mae_lm_fairseq.text.tokenizer import BOS, EOS, MASK, PAD, SPECIALS, UNK, Tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_bytes

WORD_START = "\u2581"

# Serialised messages that follow each other are merged: normalizer_spec (field 3) { add_dummy_prefix (3): false }.
_NO_DUMMY_PREFIX, _DUMMY_PREFIX = b"\x1a\x02\x18\x00", b"\x1a\x02\x18\x01"

# sentencepiece's trainer skips longer sentences, with only a log message.
_LONGEST_SENTENCE = 4192


class SentencePieceTokenizer(Tokenizer):
    """A sentencepiece model.

    Args:
        path: path of a sentencepiece model.
        model: content of the file, if it has been read already.
        dictionary: content of a ``dict.txt`` whose symbols are these pieces in another order. Pieces that it lacks, as
            they do not occur in the training text, are ``<unk>``, as they are to fairseq.

    Raises:
        UserError: if the file is not a sentencepiece model, fairseq cannot represent its pieces, or the dictionary is
            that of another model.
    """

    FILES, LIBRARY = (TOKENIZER,), "sentencepiece"

    def __init__(self, path: str | Path, model: bytes | None = None, dictionary: bytes | None = None):
        model = read_bytes(path) if model is None else model
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
            # One call for all ids is ten times faster.
            ids = list(range(self._model.get_piece_size()))
            pieces = self._model.id_to_piece(ids)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not a sentencepiece model, or damaged; restore it, or use another one") from error
        is_special = np.array(self._model.is_unknown(ids), bool) | np.array(self._model.is_control(ids), bool)
        symbols = [*SPECIALS, *compress(pieces, ~is_special)]
        if len(symbols) == len(SPECIALS):
            raise UserError(f"{path}: not a sentencepiece model (it has no pieces)")
        # Control pieces never come out of text.
        fairseq_ids = np.where(is_special, UNK, len(SPECIALS) - 1 + np.cumsum(~is_special))
        files = {TOKENIZER: model}
        if dictionary is not None:
            files[DICTIONARY] = dictionary
            *ordered, _ = parse_symbols(dictionary, Path(path).with_name(DICTIONARY))
            fairseq_ids = _ids_in(ordered, symbols, Path(path))[fairseq_ids]
            symbols = ordered
        super().__init__(path, files, symbols, fairseq_ids)

    def library_ids(self, lines: list[str]) -> list[list[int]]:
        return self._model.encode(lines, out_type=int, num_threads=1)

    def encode_masked(self, text: str) -> list[int]:
        """Encode a text with masks; see the interface.

        White space before a ``<mask>`` belongs to the masked token. Text that follows a ``<mask>`` without white space
        continues its word: the full stop of "in <mask>." is encoded as at the end of a word. Where a model marks the
        ends of words, so does text before a ``<mask>``.
        """
        parts = text.split(MASK)
        last = len(parts) - 1
        marks_ends = self._marking.normalize("a")[-1] == WORD_START
        ids = []
        for number, part in enumerate(parts):
            if number > 0:
                ids.append(self.mask)
            edge, beside_mask = (last, part[-1:]) if marks_ends else (0, part[:1])
            if number == edge:
                model = self._model
            elif beside_mask.isspace():
                model = self._marking
            else:
                model = self._unmarking
            library_ids = model.encode(part if number == last else part.rstrip(), out_type=int)
            ids += self._fairseq_ids[library_ids].tolist()
        return ids

    def library_ids_of_words(self, words: list[str]) -> list[list[int]]:
        return self._marking.encode([f" {word}" for word in words], out_type=int, num_threads=1)

    def decode(self, ids: Iterable[int]) -> str:
        pieces = []
        for index in ids:
            if index == self.mask:
                # The model keeps unknown pieces such as <mask> unchanged; the word start before it becomes a space.
                pieces += [WORD_START, MASK]
            elif index not in (BOS, PAD, EOS):
                pieces.append(self.symbols[index])
        return self._model.decode_pieces(pieces)

    @cached_property
    def _unmarking(self) -> sentencepiece.SentencePieceProcessor:
        """The model without the mark of a space at the edge of a text."""
        return sentencepiece.SentencePieceProcessor(model_proto=self.files[TOKENIZER] + _NO_DUMMY_PREFIX)

    @cached_property
    def _marking(self) -> sentencepiece.SentencePieceProcessor:
        """The model with one mark of a space at the edge of a text that has a space there."""
        if self._unmarking.normalize(" a")[0] == WORD_START:
            return self._unmarking
        return sentencepiece.SentencePieceProcessor(model_proto=self.files[TOKENIZER] + _DUMMY_PREFIX)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text; see the interface. White space belongs to the following token."""
        encoded = self._model.encode(text, return_type="offset_mapping")
        ids = np.array(encoded["ids"], dtype=np.int64)
        offsets = np.array(encoded["offsets"], dtype=np.int64)
        return self._fairseq_ids[ids], offsets.reshape(-1, 2)

    def normalize(self, text: str) -> str:
        return self._model.normalize(text)

    def token_text(self, index: int) -> str:
        return MASK if index == self.mask else self.symbols[index].replace(WORD_START, " ")


def _ids_in(ordered: list[str], symbols: list[str], path: Path) -> np.ndarray:
    """Return the ids of symbols in an ordered dictionary."""
    known = set(symbols)
    for symbol in ordered:
        # Characters that the model does not know are symbols to fairseq, which also pads the dictionary.
        if symbol not in known and known.issuperset(symbol) and not symbol.startswith("madeupword"):
            raise UserError(
                f"{path}: {symbol} in the {DICTIONARY} beside it is not a piece of this model; restore the model that "
                "the data was encoded with"
            )
    ids = {symbol: index for index, symbol in enumerate(ordered)}
    return np.array([ids.get(symbol, UNK) for symbol in symbols])


def train_model(lines: Iterable[str], vocab_size: int, character_coverage: float, model_type: str = "bpe") -> bytes:
    """Train a model. The result is deterministic.

    Args:
        lines: text; sentencepiece keeps all of it in memory.
        vocab_size: number of pieces, including ``<unk> <s> </s>`` and the single characters.
        character_coverage: fraction of the text's characters that get their own piece; the rest become ``<unk>``.
        model_type: ``bpe`` or ``unigram``.

    Returns:
        The content of a sentencepiece model file.

    Raises:
        UserError: if sentencepiece cannot train: there is no text, or ``vocab_size`` does not fit it.
    """
    model = io.BytesIO()
    sentences = list(_sentences(lines))  # sentencepiece would hide an error of an iterator
    if not any(sentences):
        raise UserError("--train: the files contain no text")
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_sentence_length=_LONGEST_SENTENCE,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(f"--vocab-size {vocab_size}: sentencepiece cannot train on this text: {error}") from None
    return model.getvalue()


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        # sentencepiece does not normalise U+0085, and dict.txt cannot represent white space in a piece.
        line = " ".join(line.split())
        # The limit is in bytes, and a character has at most four.
        longest = _LONGEST_SENTENCE // 4
        start = 0
        while len(line) - start > longest:
            cut = line.rfind(" ", start + 1, start + longest)
            if cut < 0:
                cut = start + longest
            yield line[start:cut]
            start = cut
        yield line[start:]

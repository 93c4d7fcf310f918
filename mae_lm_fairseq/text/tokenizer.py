"""The one place that knows how sentencepiece's ids and fairseq's belong together.

fairseq puts ``<s> <pad> </s> <unk>`` at 0 to 3 and the lines of ``dict.txt`` behind them. ``dict.txt`` holds the pieces
in the model's own order, without its unknown and control pieces. A model trained here starts with ``<unk> <s> </s>``,
so a piece's id in fairseq is its id in sentencepiece plus one; any other layout is mapped by a table.
"""

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import sentencepiece

from mae_lm_fairseq.utils.errors import UserError

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
WORD_START = "\u2581"
BOS, PAD, EOS, UNK = range(len(SPECIALS))

# Serialised messages that follow each other are merged: normalizer_spec (field 3) { add_dummy_prefix (3): false }.
_NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"

SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 4, 2**31 - 1
"""Of a model to train: ``<unk> <s> </s>`` and one character; what sentencepiece can count."""
LOWEST_COVERAGE = 0.98
"""The lowest share of the text's characters to know that sentencepiece accepts."""

# sentencepiece's trainer leaves longer sentences out, with nothing but a line in its log.
LONGEST_SENTENCE = 4192


class Tokenizer:
    """A sentencepiece model that speaks fairseq's ids.

    Attributes:
        path: the model file.
        fingerprint: SHA-256 of the model file, in hexadecimal.
        pieces: the symbols of ``dict.txt`` in order; the first has id 4 in fairseq.

    Args:
        path: a sentencepiece model.
        model: its content, where that has been read already.

    Raises:
        UserError: the file is not a sentencepiece model, or fairseq cannot hold its pieces.
    """

    def __init__(self, path: str | Path, model: bytes | None = None):
        self.path = Path(path)
        try:
            model = self.path.read_bytes() if model is None else model
            if not model:  # sentencepiece takes this for "no model yet", and complains later
                raise UserError(f"{path}: not a sentencepiece model (it is empty)")
            self._model = sentencepiece.SentencePieceProcessor(model_proto=model)
            # Asked for all at once, which takes a tenth of the time.
            ids = list(range(self._model.get_piece_size()))
            pieces = self._model.id_to_piece(ids)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from None
        except (RuntimeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path}: not a sentencepiece model, or damaged; restore it, or name another one"
            ) from error
        self._model_bytes = model
        self.fingerprint = hashlib.sha256(model).hexdigest()
        special = np.array(self._model.is_unknown(ids), bool) | np.array(self._model.is_control(ids), bool)
        self.pieces: list[str] = [piece for piece, left_out in zip(pieces, special, strict=True) if not left_out]
        # int32[pieces of the model]: sentencepiece id -> fairseq id. Control pieces never come out of text.
        self._fairseq_ids = np.where(special, UNK, len(SPECIALS) - 1 + np.cumsum(~special)).astype(np.int32)
        self._refuse_what_fairseq_cannot_hold()

    def _refuse_what_fairseq_cannot_hold(self):
        if not self.pieces:
            raise UserError(f"{self.path}: not a sentencepiece model (it has no pieces)")
        for piece in {*SPECIALS, MASK}.intersection(self.pieces):
            raise UserError(f"{self.path}: has an ordinary piece {piece}, which is fairseq's own; train it without")
        for piece in self.pieces:
            if piece.split() != [piece]:
                raise UserError(f"{self.path}: has a piece with white space, {piece!r}, which dict.txt cannot hold")

    @property
    def symbols(self) -> list[str]:
        """fairseq's dictionary in order, ``<mask>`` not counted."""
        return [*SPECIALS, *self.pieces]

    @property
    def model_size(self) -> int:
        """Pieces in the model, its unknown and control pieces included: what ``--vocab-size`` means."""
        return len(self._fairseq_ids)

    def encode_lines(self, lines: list[str]) -> list[np.ndarray]:
        """fairseq ids of each line, as an int32 array without ``</s>``; nothing is added or cut."""
        return [self._fairseq_ids[ids] for ids in self._model.encode(lines, out_type=int, num_threads=1)]

    def encode_block(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """All lines in one array, each one ended by ``</s>``.

        Returns:
            tokens: int32[sum of sizes], fairseq ids.
            sizes: int32[lines], tokens of each line with its ``</s>``.
        """
        encoded = self._model.encode(lines, out_type=int, num_threads=1)
        sizes = np.fromiter(map(len, encoded), dtype=np.int32, count=len(encoded)) + np.int32(1)
        tokens = np.full(sizes.sum(), EOS, dtype=np.int32)
        inside = np.ones(len(tokens), dtype=bool)
        inside[np.cumsum(sizes) - 1] = False
        tokens[inside] = self._fairseq_ids[np.fromiter(chain.from_iterable(encoded), dtype=np.int32)]
        return tokens, sizes

    def encode_masked(self, text: str) -> list[int]:
        """fairseq ids of a text without ``</s>``, in which each ``<mask>`` stands for the token of that name.

        White space before a ``<mask>`` belongs to the masked token; where none follows it, a word goes on: the full
        stop of "in <mask>." is the piece for one at the end of a word.
        """
        first, *rest = text.split(MASK)
        ids = self._encode(self._model, first)
        for part in rest:
            goes_on = part[:1].strip() != ""
            ids += [len(self.symbols), *self._encode(self._continuing_model if goes_on else self._model, part)]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of fairseq ids, with ``<mask>`` where it is, and without ``<s> <pad> </s>``."""
        symbols = [*self.symbols, MASK]
        left_out = (BOS, PAD, EOS)
        pieces = [symbols[index] for index in ids if index not in left_out]
        # What the model does not know it leaves as it is; the mark before the mask becomes a space.
        pieces = [part for piece in pieces for part in ((WORD_START, MASK) if piece == MASK else (piece,))]
        return self._model.decode_pieces(pieces)

    def _encode(self, model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
        return self._fairseq_ids[model.encode(text.rstrip(), out_type=int)].tolist()

    @cached_property
    def _continuing_model(self) -> sentencepiece.SentencePieceProcessor:
        """The model that does not take the start of a text for the start of a word."""
        return sentencepiece.SentencePieceProcessor(model_proto=self._model_bytes + _NO_DUMMY_PREFIX)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The pieces of a text without ``</s>``, and the characters that sentencepiece made each of them of.

        Returns:
            ids: int32[pieces], fairseq's.
            offsets: int64[pieces, 2], begin and end in ``text``. White space belongs to the piece that follows it; when
                several pieces are made of one character, it belongs to the last, and the others are empty.
        """
        encoded = self._model.encode(text, return_type="offset_mapping")
        ids, offsets = (np.array(encoded[name], dtype=np.int64) for name in ("ids", "offsets"))
        return self._fairseq_ids[ids], offsets.reshape(-1, 2)

    def unknown_characters(self, lines: list[str]) -> Counter[str]:
        """How often each character that became part of an ``<unk>`` did so."""
        characters = Counter()
        for line in lines:
            ids = self._model.encode(line, out_type=int)
            surfaces = self._model.encode(line, out_type=str)
            for index, surface in zip(ids, surfaces, strict=True):
                if self._fairseq_ids[index] == UNK:
                    characters.update(surface)
        return characters

    def write_dictionary(self, path: str | Path, counts: np.ndarray | None = None):
        """Write ``dict.txt``.

        Args:
            path: the file to write.
            counts: int[len(symbols)], how often each symbol occurs; 1 each if left out.
        """
        counts = np.ones(len(self.symbols), dtype=np.int64) if counts is None else counts
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for piece, count in zip(self.pieces, counts[len(SPECIALS) :], strict=True):
                file.write(f"{piece} {count}\n")


def train_model(lines: Iterable[str], vocab_size: int, character_coverage: float) -> bytes:
    """Train a BPE model; the same lines give the same model.

    Args:
        lines: text; sentencepiece holds all of it in memory.
        vocab_size: pieces, with ``<unk> <s> </s>`` and the single characters among them.
        character_coverage: share of the text's characters that get pieces of their own; the rest become ``<unk>``.

    Returns:
        The content of a sentencepiece model file.

    Raises:
        UserError: the text does not suit the vocabulary size, or there is none.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            max_sentence_length=LONGEST_SENTENCE,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size) from error
    return model.getvalue()


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    """The lines in a form that sentencepiece's trainer takes, long ones in parts."""
    for line in lines:
        # Its normalisation leaves U+0085 alone, and white space in a piece could not stand in dict.txt.
        line = " ".join(line.split())
        # A character takes at most four bytes.
        while len(line) > LONGEST_SENTENCE // 4:
            cut = line.rfind(" ", 1, LONGEST_SENTENCE // 4)
            cut = cut if cut > 0 else LONGEST_SENTENCE // 4
            yield line[:cut]
            line = line[cut:]
        yield line


def _explain(error: RuntimeError, vocab_size: int) -> UserError:
    reason = str(error)
    if "sentences_.empty()" in reason or "all_chars_count" in reason:
        return UserError("--train: there is no text in the files")
    if "Vocabulary size too high" in reason:
        limit = reason.rsplit("<=", 1)[-1].strip(" .")
        return UserError(f"--vocab-size {vocab_size} is too large for this little text: at most {limit}")
    if least := re.search(r"smaller than required_chars\. \d+ vs (\d+)", reason):
        return UserError(
            f"--vocab-size {vocab_size} is too small for the characters in the text: at least {least[1]}; or lower "
            "--character-coverage"
        )
    return UserError(
        f"--vocab-size {vocab_size}: sentencepiece cannot train such a model on this text; try another size"
    )

"""Training of tokenizers: sentencepiece's, and byte-level BPE and WordPiece of Hugging Face's ``tokenizers``.

Training is deterministic. Special tokens have fairseq's ids, so that the ids of ``tokenizers`` are fairseq's.
"""

from collections import Counter
from collections.abc import Iterable

from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.hugging_face_tokenizer import TOKENIZER_JSON, HuggingFaceTokenizer, import_tokenizers
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.text.tokenizer import SPECIALS, Tokenizer
from mae_lm_fairseq.utils.errors import UserError

TRAINED_KINDS = ("sentencepiece-bpe", "sentencepiece-unigram", "byte-bpe", "wordpiece")
DEFAULT_KIND = TRAINED_KINDS[0]
_CONTINUED = "##"


def train_tokenizer(kind: str, lines: Iterable[str], vocab_size: int, character_coverage: float) -> Tokenizer:
    """Train a tokenizer. The result is deterministic.

    Args:
        kind: one of :data:`TRAINED_KINDS`.
        lines: text, which may be kept in memory.
        vocab_size: number of subwords, including ``<unk> <s> </s>``; ``<pad>`` and ``<mask>`` come on top.
        character_coverage: fraction of the text's characters in the vocabulary; byte-level BPE has all of them.

    Raises:
        UserError: if there is no text, or ``vocab_size`` is too large or too small for it.
    """
    if kind == "byte-bpe":
        return train_byte_bpe(lines, vocab_size)
    if kind == "wordpiece":
        return train_wordpiece(lines, vocab_size, character_coverage)
    model_type = kind.removeprefix("sentencepiece-")
    return SentencePieceTokenizer(TOKENIZER, train_model(lines, vocab_size, character_coverage, model_type))


def train_byte_bpe(lines: Iterable[str], vocab_size: int) -> HuggingFaceTokenizer:
    """Train GPT-2's and RoBERTa's kind of tokenizer, which has no unknown characters.

    Args:
        lines: text.
        vocab_size: number of subwords, including 256 bytes and ``<unk> <s> </s>``.

    Raises:
        UserError: if there is no text, or ``vocab_size`` is too large or too small for it.
    """
    library = import_tokenizers()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    _check_size(vocab_size, len(alphabet))
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size + 1,  # <pad>
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return _finished(tokenizer, vocab_size)


def train_wordpiece(lines: Iterable[str], vocab_size: int, character_coverage: float) -> HuggingFaceTokenizer:
    """Train BERT's kind of tokenizer, which keeps case and accents.

    A word with a character outside of the vocabulary, or of more than 100 characters, becomes one ``<unk>``.

    Args:
        lines: text; all of it is kept in memory.
        vocab_size: number of subwords, including ``<unk> <s> </s>`` and every character, at the start of a word and
            inside.
        character_coverage: fraction of the text's characters that are in the vocabulary.

    Raises:
        UserError: if there is no text, or ``vocab_size`` is too large or too small for it.
    """
    library, lines = import_tokenizers(), list(lines)
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token="<unk>", max_input_chars_per_word=100))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece(prefix=_CONTINUED, cleanup=False)
    alphabet = _frequent_characters(map(tokenizer.normalizer.normalize_str, lines), character_coverage)
    _check_size(vocab_size, 2 * len(alphabet))
    # The library numbers characters inside of words in random order, and equally frequent merges by these numbers.
    # Tokens that are named beforehand have a fixed order.
    named = [*SPECIALS, *(_CONTINUED + character for character in alphabet)]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=vocab_size + 1,  # <pad>
        special_tokens=named,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_CONTINUED,
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    # Without the special tokens of training.
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    finished = library.Tokenizer(library.models.WordPiece(vocabulary, unk_token="<unk>", max_input_chars_per_word=100))
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        setattr(finished, part, getattr(tokenizer, part))
    return _finished(finished, vocab_size)


def _frequent_characters(lines: Iterable[str], coverage: float) -> list[str]:
    """Return the most frequent characters that together make up a fraction of the text, sorted."""
    counts = Counter()
    for line in lines:
        counts.update(line)
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    wanted, found, chosen = coverage * counts.total(), 0, []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if found >= wanted:
            break
        chosen.append(character)
        found += count
    return sorted(chosen)


def _check_size(vocab_size: int, characters: int):
    least = characters + 3
    if not characters:
        raise UserError("--train: the files contain no text")
    if vocab_size < least:
        raise UserError(f"--vocab-size {vocab_size} is too small for this kind of tokenizer and text: at least {least}")


def _finished(tokenizer, vocab_size: int) -> HuggingFaceTokenizer:
    tokenizer.add_special_tokens(list(SPECIALS))
    found = HuggingFaceTokenizer(TOKENIZER_JSON, tokenizer.to_str(pretty=True).encode())
    if found.model_size < vocab_size:
        raise UserError(f"--vocab-size {vocab_size} is too large for this text: at most {found.model_size}")
    return found

"""Training of a tokenizer of any kind."""

from collections.abc import Iterable

from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.hugging_face_training import train_byte_bpe, train_wordpiece
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.text.tokenizer import Tokenizer

TRAINED_KINDS = ("sentencepiece-bpe", "sentencepiece-unigram", "byte-bpe", "wordpiece")
DEFAULT_KIND = TRAINED_KINDS[0]


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

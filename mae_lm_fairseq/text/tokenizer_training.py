"""Training of tokenizers: sentencepiece's, and byte-level BPE of Hugging Face's ``tokenizers``.

Training is deterministic. Special tokens have fairseq's ids, so that the ids of ``tokenizers`` are fairseq's.
"""

from collections.abc import Iterable

from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.hugging_face_tokenizer import (
    TOKENIZER_JSON,
    HuggingFaceTokenizer,
    byte_level,
    import_tokenizers,
)
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.text.tokenizer import SPECIALS, Tokenizer
from mae_lm_fairseq.utils.errors import UserError

TRAINED_KINDS = ("sentencepiece-bpe", "sentencepiece-unigram", "byte-bpe")
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
        return _train_byte_bpe(lines, vocab_size)
    model_type = kind.removeprefix("sentencepiece-")
    return SentencePieceTokenizer(TOKENIZER, train_model(lines, vocab_size, character_coverage, model_type))


def _train_byte_bpe(lines: Iterable[str], vocab_size: int) -> HuggingFaceTokenizer:
    library = import_tokenizers()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = byte_level(library.models.BPE())
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size + 1,  # <pad>
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    trained = HuggingFaceTokenizer(TOKENIZER_JSON, tokenizer.to_str(pretty=True).encode())
    subwords = len(trained.pieces) + 3  # <unk> <s> </s>
    if subwords != vocab_size:
        raise UserError(
            f"--vocab-size {vocab_size}: byte-level BPE has at least {len(alphabet) + 3} subwords, and makes "
            f"{subwords} of this text; choose another number"
        )
    return trained

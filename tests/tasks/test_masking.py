"""Masking: rate, whole words, and changes from epoch to epoch."""

import io
import re

import pytest
import sentencepiece
import torch
from fairseq.data import BaseWrapperDataset, Dictionary

from mae_lm_fairseq.tasks.masking import masked_pair, warn_of_long_words, word_starts
from mae_lm_fairseq.text.offsets import encode_with_spans
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from tests.support.refusals import refused
from tests.support.tokenizers import ALL_KINDS, make, paragraphs


@pytest.fixture
def dictionary():
    dictionary = Dictionary()
    for piece in ("▁the", "▁cat", "s", "▁un", "believ", "able", "."):
        dictionary.add_symbol(piece)
    dictionary.add_symbol("<mask>")
    return dictionary


class Items(BaseWrapperDataset):
    def __init__(self, items=()):
        super().__init__([])
        self.items = items

    def __getitem__(self, index):
        return self.items[index]

    def __len__(self):
        return len(self.items)


def test_word_starts_of_a_dictionary_without_its_tokenizer(dictionary):
    starts = word_starts(dictionary, None)
    assert [dictionary[i] for i in range(len(dictionary)) if not starts[i]] == ["s", "believ", "able", "."]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_whole_words_of_any_tokenizer_are_masked_together(kind):
    # Without punctuation, which is a word of its own to WordPiece.
    tokenizer, lines = make(kind), [re.sub(r"[^\w ]", "", line) for line in paragraphs(200, seed=4)]
    dictionary = Dictionary()
    for piece in tokenizer.pieces:
        dictionary.add_symbol(piece)
    dictionary.add_symbol("<mask>")
    # Two lines in each sequence: without a mark of its own, the first word of a line follows <s> or </s>.
    texts, blocks = [], []
    for line in zip(lines[::2], lines[1::2], strict=True):
        spans, ids = zip(*(words_and_ids(tokenizer, part) for part in line), strict=True)
        texts.append([-1, *spans[0], -1, *(1000 + word for word in spans[1]), -1])
        blocks.append(torch.tensor([0, *ids[0], 2, *ids[1], 2]))
    _, target = masked_pair(
        Items(blocks),
        dictionary,
        mask_idx=tokenizer.mask,
        seed=1,
        mask_prob=0.3,
        mask_whole_words=word_starts(dictionary, tokenizer),
    )
    alone = 0
    for number, words in enumerate(texts):
        predicted = target[number].ne(dictionary.pad()).tolist()
        groups = {word: {p for w, p in zip(words, predicted, strict=True) if w == word} for word in set(words) - {-1}}
        assert all(len(group) == 1 for group in groups.values())
        # A word is masked alone, without the token before it.
        first = [place for place in range(1, len(words)) if words[place] not in (-1, words[place - 1])]
        alone += sum(predicted[place] and not predicted[place - 1] for place in first)
    assert alone > 100


def words_and_ids(tokenizer, line):
    """Return the number of each token's word, words being separated by spaces, and the ids."""
    ids, spans = encode_with_spans(tokenizer, line)
    return [line[: end - 1].count(" ") for _, end in spans.tolist()], ids.tolist()


@pytest.mark.parametrize("symbols", [["262"], ["▁", "the▁", "s▁", "un"]], ids=["no marks", "marks at the ends"])
def test_a_dictionary_without_word_starts_is_refused(symbols):
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    with refused("--mask-whole-words"):
        word_starts(dictionary, None)


def test_a_tokenizer_that_marks_the_ends_of_words_is_refused(tmp_path):
    """The mark is a subword of its own there, which begins words; whole lines were masked, or nothing."""
    model = io.BytesIO()
    options = {"vocab_size": 90, "treat_whitespace_as_suffix": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(paragraphs(300)), model_writer=model, **options)
    tokenizer = SentencePieceTokenizer(tmp_path / "sentencepiece.bpe.model", model.getvalue())
    assert "▁" in tokenizer.pieces
    dictionary = Dictionary()
    for piece in (*tokenizer.pieces, "<mask>"):
        dictionary.add_symbol(piece)
    with refused("--mask-whole-words"):
        word_starts(dictionary, tokenizer)


@pytest.mark.parametrize(
    ("words", "rate", "unmasked"), [(12, 0.15, None), (2, 0.15, 40), (2, 0.3, None), (1, 0.15, 55)]
)
def test_sequences_in_which_nothing_can_be_masked_are_reported(dictionary, caplog, words, rate, unmasked):
    """A sequence has <s>, </s> and some words, all of which count as words; 0.15 of four is less than one."""
    ids = [dictionary.index(piece) for piece in ("▁un", "believ", "able")]
    sequences, starts = Items([torch.tensor([0, *words * ids, 2])] * 50), word_starts(dictionary, None)
    warn_of_long_words(sequences, starts, rate)
    assert [f"about {unmasked} %" in record.getMessage() for record in caplog.records] == [True] * (
        unmasked is not None
    )
    mask = dictionary.index("<mask>")
    _, target = masked_pair(sequences, dictionary, mask_idx=mask, seed=1, mask_prob=rate, mask_whole_words=starts)
    nothing = sum(target[number].eq(dictionary.pad()).all().item() for number in range(50))
    assert nothing == pytest.approx((unmasked or 0) / 2, abs=12)

"""Masking: rate, whole words, and changes from epoch to epoch."""

import io
import re

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq.data import BaseWrapperDataset, Dictionary

from mae_lm_fairseq.tasks.masking import masked_pair, warn_of_long_words, word_starts
from mae_lm_fairseq.text.offsets import encode_with_spans
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.utils.errors import UserError
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


class Sentences(Items):
    def __init__(self, dictionary, n=200):
        super().__init__()
        words = [["▁the"], ["▁cat", "s"], ["▁un", "believ", "able"], ["▁cat", "."]]
        rng = np.random.default_rng(0)
        self.items = []
        for _ in range(n):
            pieces = [piece for i in rng.integers(len(words), size=12) for piece in words[i]]
            self.items.append(torch.tensor([0, *(dictionary.index(piece) for piece in pieces), 2]))


def pair(dictionary, **changes):
    masking = {"mask_prob": 0.15, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "seed": 1, **changes}
    return masked_pair(Sentences(dictionary), dictionary, mask_idx=dictionary.index("<mask>"), **masking)


def test_all_predicted_tokens_are_masks_at_the_given_rate(dictionary):
    source, target = pair(dictionary, mask_prob=0.3)
    predicted, tokens = 0, 0
    for i in range(len(source)):
        is_predicted = target[i].ne(dictionary.pad())
        assert torch.equal(source[i].eq(dictionary.index("<mask>")), is_predicted)
        original = torch.where(is_predicted, target[i], source[i])
        assert torch.equal(original, source.dataset[i])
        predicted, tokens = predicted + int(is_predicted.sum()), tokens + len(original)
    # The number per sentence is rounded at random: an error of about half a token in each of 200 sentences.
    assert predicted / tokens == pytest.approx(0.3, abs=0.5 / 22 / 200**0.5 * 5)


def test_eighty_ten_ten(dictionary):
    source, target = pair(dictionary, mask_prob=0.5, leave_unmasked_prob=0.1, random_token_prob=0.1)
    kept = masks = total = 0
    for i in range(len(source)):
        is_predicted = target[i].ne(dictionary.pad())
        total += int(is_predicted.sum())
        masks += int(source[i][is_predicted].eq(dictionary.index("<mask>")).sum())
        kept += int(source[i][is_predicted].eq(target[i][is_predicted]).sum())
    # Five standard deviations; a random token equals the original in one of eight cases.
    tolerance = 5 * (0.8 * 0.2 / total) ** 0.5
    assert masks / total == pytest.approx(0.8, abs=tolerance)
    assert kept / total == pytest.approx(0.1 + 0.1 / 8, abs=tolerance)


def test_masks_change_with_the_epoch_at_once_and_come_back(dictionary):
    source, target = pair(dictionary)
    seen = []
    for epoch in (1, 2, 1):
        source.set_epoch(epoch)
        target.set_epoch(epoch)
        seen.append((source[0].tolist(), target[0].tolist()))
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]


def test_whole_words_are_masked_together(dictionary):
    starts = word_starts(dictionary, None)
    assert [dictionary[i] for i in range(len(dictionary)) if not starts[i]] == ["s", "believ", "able", "."]
    source, target = pair(dictionary, mask_whole_words=starts, mask_prob=0.3)
    split_words = 0
    for i in range(len(source)):
        original, is_predicted = source.dataset[i], target[i].ne(dictionary.pad())
        for place in range(1, len(original)):
            if not starts[original[place]]:
                assert is_predicted[place] == is_predicted[place - 1]
                split_words += 1
    assert split_words > 1000


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
    with pytest.raises(UserError, match="--mask-whole-words"):
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
    with pytest.raises(UserError, match="--mask-whole-words"):
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
    _, target = pair(dictionary, mask_whole_words=starts, mask_prob=rate)
    target.dataset = sequences
    nothing = sum(target[number].eq(dictionary.pad()).all().item() for number in range(50))
    assert nothing == pytest.approx((unmasked or 0) / 2, abs=12)

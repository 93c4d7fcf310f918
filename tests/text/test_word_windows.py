"""Windows of sentences: every word is labelled once, where it has the most context, for any tokenizer and any word."""

import random
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from mae_lm_fairseq.text.tokenizer import BOS, EOS, UNK
from mae_lm_fairseq.text.word_windows import IGNORED, SPECIAL_TOKENS, WordWindows, windows_of
from mae_lm_fairseq.trained.tags import word_logits
from mae_lm_fairseq.trained.validation import WORD_HEAD
from tests.support.tokenizers import ALL_KINDS, HOSTILE, make

NOTHING = ["\u200b", "\ufeff", "\x00", "\u00ad", "\u00a0", ""]
WORDS = st.sampled_from([*NOTHING, *HOSTILE, "the", "of", "x" * 300, "xz" * 400, "e\u0301\u0323" * 50])
SENTENCES = st.lists(st.lists(WORDS | st.text(min_size=1, max_size=8), max_size=12), min_size=1, max_size=3)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40))
@settings(deadline=None, max_examples=200)
def test_each_word_is_labelled_once_in_the_window_with_the_most_context(lengths):
    room = 12
    windows, starts = windows_of(3, lengths, room), np.cumsum([0, *lengths])

    def context(window, word):
        if not window.begin <= word < window.end:
            return -1
        return min(starts[word] - starts[window.begin], starts[window.end] - starts[word])

    labelled = [int(word) for window in windows for word in window.labelled]
    assert sorted(labelled) == list(range(len(lengths)))
    for window in windows:
        assert window.sentence == 3
        assert starts[window.end] - starts[window.begin] == window.size - SPECIAL_TOKENS <= room
        for word, position in zip(window.labelled, window.positions, strict=True):
            assert position == 1 + starts[word] - starts[window.begin]
            assert context(window, word) == max(context(other, word) for other in windows)
    assert [window.begin for window in windows] == sorted({window.begin for window in windows})
    assert [window.end for window in windows] == sorted({window.end for window in windows})


def test_windows_overlap_by_half():
    windows = windows_of(0, [1] * 100, room=20)
    assert [(window.begin, window.end) for window in windows[:3]] == [(0, 20), (10, 30), (20, 40)]
    assert [len(window.labelled) for window in windows] == [16, *[10] * 7, 14]


def test_memory_grows_with_the_text_only():
    windows = windows_of(0, [1] * 200_000, room=20)  # a table of words and windows would take 32 GB
    assert sum(len(window.labelled) for window in windows) == 200_000


class Echo(torch.nn.Module):
    """A model whose only logit of a token is the token's id."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.classification_heads = {WORD_HEAD: types.SimpleNamespace(labels=1)}

    def classify(self, src_tokens, head):
        assert head == WORD_HEAD
        return src_tokens[..., None], {}


@pytest.mark.parametrize("kind", ALL_KINDS)
@given(sentences=SENTENCES, longest=st.integers(8, 40))
@settings(deadline=None, max_examples=40)
def test_hostile_words_get_one_label_each_in_order(kind, sentences, longest):
    tokenizer = make(kind)
    windows = WordWindows(sentences, tokenizer, longest)
    logits_of_words = word_logits(Echo(), windows)
    assert [len(logits) for logits in logits_of_words] == [len(sentence) for sentence in sentences]
    for sentence, logits in zip(sentences, logits_of_words, strict=True):
        for word, logit in zip(sentence, logits, strict=True):
            ids = tokenizer.encode_words([word])[0]
            assert len(ids) > 0
            assert logit == [ids[0]]
    for window in map(windows.__getitem__, range(len(windows))):
        tokens = window["tokens"].tolist()
        assert len(tokens) <= longest
        assert (tokens[0], tokens[-1]) == (BOS, EOS)
        assert BOS not in tokens[1:]
        assert EOS not in tokens[:-1]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_words_are_encoded_as_after_a_space(kind):
    tokenizer, words = make(kind), ["the", "tokenizer", "don't", "is", "e-mail"]
    [in_text] = tokenizer.encode_lines([" ".join(["of", *words])])
    [first] = tokenizer.encode_lines(["of"])
    assert np.concatenate([first, *tokenizer.encode_words(words)]).tolist() == in_text.tolist()
    [nothing] = tokenizer.encode_words([""])
    assert nothing.tolist() == [UNK] or len(tokenizer.encode_lines([" "])[0]) > 0


def test_targets_and_batches():
    tokenizer = make("sentencepiece-bpe")
    sentences = [["the", "of", "the"] * 10, ["of"], ["the", "of"]]
    targets = [[random.Random(1).randrange(5) for _ in range(30)], [IGNORED], [IGNORED, 7]]
    windows = WordWindows(sentences, tokenizer, 16, 1, targets)
    samples = [windows[index] for index in range(len(windows))]
    batch = windows.batch(samples)
    assert windows.batch([]) == {}
    assert sorted(batch["target"][batch["target"] != IGNORED].tolist()) == sorted([*targets[0], 7])
    assert batch["nwords"] == 31
    assert batch["net_input"]["src_tokens"].shape == batch["target"].shape
    assert batch["ntokens"] == windows.sizes.sum()
    # A window without a target is no training sequence.
    assert sorted(windows.order) == [index for index in range(len(windows)) if windows.windows[index].sentence != 1]
    assert windows.counts == {"sentences": 3, "words": 33, "windows": len(windows), "split_sentences": 1}

"""Choice of the best layer of a probe: by the development text."""

from types import SimpleNamespace

import pytest
import torch

from mae_lm_fairseq.measures.probe import probe_layers
from mae_lm_fairseq.statistics.token_states import LayerStates
from mae_lm_fairseq.text.conllu import LabelledSentence

WORDS = "abcdef"
FIRST = 10
"""Id of the first word."""
STATES = [[0, 0, 0, 0, 0, 0], [1, -1, 1, -1, -1, 1], [1, -1, -1, 1, 1, -1]]
"""By layer, the state of each word: for c and d the first layer has that of their label, for e and f the second one."""
LABELS = ["X", "Y"] * 3


class KnownStates:
    """An encoder that knows words alone."""

    layers, dim, max_tokens, pad = 2, 1, 8, 1

    def __call__(self, tokens, see_masks):
        index = tokens.flatten().ne(self.pad).nonzero().squeeze(1)
        numbers = tokens.flatten()[index] - FIRST
        is_word = numbers >= 0
        tables = torch.tensor(STATES, dtype=torch.float32)
        return [LayerStates((table[numbers.clamp(min=0)] * is_word)[:, None], index) for table in tables]


def encode(word):
    return [FIRST + WORDS.index(word)], [(0, 1)]


def sentences(words):
    return [LabelledSentence(word, [0], [LABELS[WORDS.index(word)]], [word]) for word in words]


@pytest.mark.parametrize(("dev", "best", "last_less_best"), [(None, 1, -1.0), ("ef", 2, 0.0)])
def test_the_development_set_chooses_if_there_is_one(dev, best, last_less_best):
    parts = {"train": "ab" * 5, "test": "cd"} | ({"dev": dev} if dev else {})
    reader = SimpleNamespace(states=KnownStates(), encode=encode)
    found = probe_layers(reader, {name: sentences(words) for name, words in parts.items()}, "known")
    assert [row["accuracy"] for row in found["layers"]][1:] == [1.0, 0.0]
    assert [row.get("dev_accuracy") for row in found["layers"]][1:] == ([0.0, 1.0] if dev else [None, None])
    assert (found["best_layer"], found["last_less_best"]) == (best, last_less_best)

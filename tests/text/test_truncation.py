"""A tokenizer.json that says to truncate and to pad, as those of many models do: text would be lost."""

import numpy as np

from mae_lm_fairseq.text.hugging_face_tokenizer import HuggingFaceTokenizer
from tests.support.tokenizers import given


def test_texts_are_neither_truncated_nor_padded():
    library = given("bert")
    expected = HuggingFaceTokenizer("tokenizer.json", library.to_str().encode())
    library.enable_truncation(8)
    library.enable_padding(length=16)
    found = HuggingFaceTokenizer("tokenizer.json", library.to_str().encode())
    short, long = "the of", "the of and to " * 20
    for line, other in zip(found.encode_lines([short, long]), expected.encode_lines([short, long]), strict=True):
        assert line.tolist() == other.tolist()
    assert found.encode_masked(long) == expected.encode_masked(long)
    for one, other in zip(found.encode_with_offsets(long), expected.encode_with_offsets(long), strict=True):
        assert np.array_equal(one, other)
    words = ["theofand" * 10]
    assert found.encode_words(words)[0].tolist() == expected.encode_words(words)[0].tolist()

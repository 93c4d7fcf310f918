"""Encoding of chunks by several workers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mae_lm_fairseq.text.parts import encode_by_all, encode_here
from mae_lm_fairseq.text.text_files import Chunk
from tests.support.tokenizers import paragraphs, write


def test_chunks_are_encoded_in_order_and_read_ahead_is_bounded(tmp_path):
    directory, taken = write(tmp_path, "sentencepiece-bpe"), []
    chunks = [Chunk(Path("x"), number, f"{line}\n".encode()) for number, line in enumerate(paragraphs(50))]

    def read():
        for chunk in chunks:
            taken.append(chunk)
            yield chunk

    with ThreadPoolExecutor(2) as pool:
        encoded = encode_by_all(pool, 2)(read(), directory)
        for number, (expected, (chunk, block)) in enumerate(zip(encode_here(chunks, directory), encoded, strict=True)):
            assert len(taken) <= number + 1 + 3 * 2
            assert chunk == expected[0]
            assert block.tokens.tolist() == expected[1].tokens.tolist()
    assert taken == chunks

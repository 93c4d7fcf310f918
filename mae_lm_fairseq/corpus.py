"""Split of a user's text file into training and validation text."""

from pathlib import Path

from mae_lm_fairseq.text.records import check_plain_text
from mae_lm_fairseq.text.text_files import read_chunks
from mae_lm_fairseq.text.text_samples import documents
from mae_lm_fairseq.utils.errors import UserError

VALID_FRACTION = 0.02
VALID_CHARACTERS = (20_000, 250_000)
"""Minimum and maximum size of the validation text: enough for a meaningful loss, and fast to evaluate often."""
FEWEST_CHARACTERS = 300_000
FEWEST_DOCUMENTS = 100
LINES_PER_DOCUMENT = 20


def read_documents(path: Path, max_bytes: int) -> list[list[str]]:
    """Read documents (lists of lines), separated by blank lines, from a text file, plain or compressed.

    A text with few blank lines, such as a novel, is cut into documents of 20 lines. Otherwise the validation split
    would be empty or too large.

    Args:
        path: the file.
        max_bytes: approximate number of bytes after which reading stops.

    Raises:
        UserError: if the file has records or cannot be read.
    """
    check_plain_text(path)
    lines, size = [], 0
    for chunk in read_chunks(path):
        lines += [" ".join(line.split()) for line in chunk.lines()]
        size += len(chunk.data)
        if size >= max_bytes:
            print(f"using the first {size / 1e6:.0f} MB of {path.name}, enough for this number of updates")
            break
    found = list(documents(lines))
    if len(found) < FEWEST_DOCUMENTS:
        filled = [line for line in lines if line]
        return [filled[i : i + LINES_PER_DOCUMENT] for i in range(0, len(filled), LINES_PER_DOCUMENT)]
    return found


def split_corpus(path: Path, train: Path, valid: Path, max_bytes: int) -> dict[str, int]:
    """Write documents from all parts of a text file to ``valid``, and the others to ``train``.

    A document goes to ``valid`` when it fits into the validation split's fraction of the text so far.

    Returns:
        The counts ``documents``, ``lines`` and ``characters``.
    """
    found = read_documents(path, max_bytes)
    sizes = [sum(map(len, document)) for document in found]
    characters = sum(sizes)
    if characters < FEWEST_CHARACTERS or len(found) < FEWEST_DOCUMENTS:
        raise UserError(
            f"{path} has {characters:,} characters in {len(found):,} documents; at least {FEWEST_CHARACTERS:,} "
            f"characters in {FEWEST_DOCUMENTS} documents of up to {LINES_PER_DOCUMENT} lines are required"
        )
    minimum, maximum = VALID_CHARACTERS
    fraction = min(maximum, max(minimum, VALID_FRACTION * characters)) / characters
    room = 0.0
    with open(train, "w", encoding="utf-8") as train_file, open(valid, "w", encoding="utf-8") as valid_file:
        for document, size in zip(found, sizes, strict=True):
            room += fraction * size
            output = valid_file if size <= room else train_file
            room -= size if size <= room else 0
            output.write("\n".join(document) + "\n\n")
    return {"documents": len(found), "lines": sum(map(len, found)), "characters": characters}

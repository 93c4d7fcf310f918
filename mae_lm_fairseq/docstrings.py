"""Text corpus from the docstrings of installed Python packages, which every installation has.

Packages are not imported: their sources are parsed with :mod:`ast`. A module becomes a document with one paragraph per
line; blank lines separate documents, as ``mae-lm prepare`` expects.
"""

import ast
import importlib.util
import inspect
import re
import sysconfig
import tokenize
import warnings
import zlib
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from mae_lm_fairseq.text.records import check_plain_text
from mae_lm_fairseq.text.text_files import read_chunks
from mae_lm_fairseq.text.text_samples import documents
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bar
from mae_lm_fairseq.utils.workers import WorkerPool

STDLIB = "stdlib"
PACKAGES = (STDLIB, "numpy", "scipy", "sklearn", "sympy", "networkx", "torch")

LETTERS = 0.88
VALID_PERCENT = 2

PROSE = re.compile(r"[A-Z].{39,}[.:]")
CODE = re.compile(r">>>|->|::|:math:|[{}\\$|]| : |(?:^|\s)(?:[-=~^*]{3,}|\.\. )")
MARKUP = re.compile(r":[\w:+-]+:(?=`)|`+_*|(?<!\w)\*{1,2}(?=\w)|(?<=\w)\*{1,2}(?!\w)|\s*\[\w+\]_|~\.?(?=\w)")


def paragraphs(doc: str) -> list[str]:
    """Return the prose of a docstring, one string per paragraph, without reStructuredText's inline markup.

    A paragraph is lines of the same indentation. It is prose if it begins and ends as a sentence, has at least 41
    characters, most of them letters, and no code, table or formula.
    """
    blocks = [" ".join(lines) for _, lines in groupby(inspect.cleandoc(doc).split("\n"), _indentation)]
    texts = [" ".join(MARKUP.sub("", block).split()) for block in blocks if not CODE.search(block)]
    return [text for text in texts if PROSE.fullmatch(text) and _letters(text) >= LETTERS * len(text)]


def _indentation(line: str) -> int:
    """Return the indentation of a line; -1 if it is blank."""
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _letters(text: str) -> int:
    return sum(character.isalpha() or character == " " for character in text)


def module_prose(path: str) -> list[str] | None:
    """Return the paragraphs of all docstrings in a source file, or ``None`` if it cannot be read or parsed."""
    try:
        with tokenize.open(path) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = (ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented))
    return [text for doc in docs if doc for text in paragraphs(doc)]


def find_sources(packages: Iterable[str] = PACKAGES) -> list[tuple[str, Path]]:
    """Return module names and source files of installed packages, sorted by name; missing packages are skipped."""
    sources = []
    for package in packages:
        root = _package_root(package)
        for path in root.rglob("*.py") if root else ():
            parts = path.relative_to(root).with_suffix("").parts
            if not {"tests", "test", "site-packages", "dist-packages"} & set(parts):
                sources.append((".".join((package, *parts)), path))
    return sorted(sources)


def _package_root(package: str) -> Path | None:
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def is_validation(module: str) -> bool:
    """Return whether a document belongs to the validation split: about one in fifty, by a hash of the module name."""
    return zlib.crc32(module.encode()) % 100 < VALID_PERCENT


def write_corpus(train: Path, valid: Path, packages: Iterable[str] = PACKAGES, processes: int = 2) -> dict[str, int]:
    """Write the prose of installed packages as a training and a validation text.

    Every paragraph is written only once: docstrings repeat a lot, and repetitions would be in both splits.

    Args:
        train: output file for the training documents.
        valid: output file for the validation documents.
        packages: names of packages; ``stdlib`` for the standard library.
        processes: number of worker processes for parsing.

    Returns:
        The counts ``files``, ``skipped``, ``documents``, ``paragraphs`` and ``characters``.
    """
    sources = find_sources(packages)
    if not sources:
        raise UserError(f"none of the packages {', '.join(packages)} is installed with its sources")
    counts = dict.fromkeys(("files", "skipped", "documents", "paragraphs", "characters"), 0)
    counts["files"] = len(sources)
    seen = set()
    with open(train, "w", encoding="utf-8") as train_file, open(valid, "w", encoding="utf-8") as valid_file:
        for module, texts in _read(sources, processes):
            fresh = [text for text in dict.fromkeys(texts or ()) if text not in seen]
            seen.update(fresh)
            counts["skipped"] += texts is None
            counts["documents"] += bool(fresh)
            counts["paragraphs"] += len(fresh)
            counts["characters"] += sum(map(len, fresh))
            if fresh:
                output = valid_file if is_validation(module) else train_file
                output.write("\n".join(fresh) + "\n\n")
    if counts["skipped"]:
        print(f"skipped {counts['skipped']} of {len(sources)} files that could not be read or parsed")
    return counts


def _read(sources: list[tuple[str, Path]], processes: int) -> Iterator[tuple[str, list[str] | None]]:
    """Yield each module with the result of :func:`module_prose`, in order, and show a progress bar."""
    with WorkerPool(processes) as pool:
        results = pool.map(module_prose, [str(path) for _, path in sources], chunksize=16)
        progress = progress_bar(results, desc="reading docstrings", total=len(sources), unit=" files")
        for (module, _), texts in zip(sources, progress, strict=True):
            yield module, texts


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

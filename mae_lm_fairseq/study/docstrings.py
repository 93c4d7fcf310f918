"""Text of the quickstart: the docstrings of installed Python packages, which every installation has.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from mae_lm_fairseq.utils.output import progress_bar
from mae_lm_fairseq.utils.workers import WorkerPool
from mae_lm_fairseq.utils.writing import create_file

STDLIB = "stdlib"
PACKAGES = (STDLIB, "numpy", "scipy", "sklearn", "sympy", "networkx", "torch")

UNREAD = {"tests", "test", "site-packages", "dist-packages"}
"""Directories whose modules are not read."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
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
    prose = []
    for _, lines in groupby(inspect.cleandoc(doc).split("\n"), _indentation):
        block = " ".join(lines)
        if not CODE.search(block):
            text = " ".join(MARKUP.sub("", block).split())
            if _is_prose(text):
                prose.append(text)
    return prose


def _indentation(line: str) -> int:
    if not line.strip():
        return -1
    return len(line) - len(line.lstrip())


def _is_prose(text: str) -> bool:
    letters = sum(sign.isalpha() or sign == " " for sign in text)
    return bool(PROSE.fullmatch(text)) and letters >= LETTERS * len(text)


def module_prose(path: str) -> list[str]:
    """Return the paragraphs of all docstrings in a source file; none if it cannot be read or parsed."""
    try:
        with tokenize.open(path) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            texts += paragraphs(ast.get_docstring(node, clean=False) or "")
    return texts


def find_sources(packages: Iterable[str] = PACKAGES) -> list[tuple[str, Path]]:
    """Return module names and source files of installed packages, sorted by name; missing packages are skipped."""
    sources = []
    for package in packages:
        root = _package_root(package)
        if root is None:
            continue
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if not UNREAD.intersection(parts):
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


def docstring_documents(packages: Iterable[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the paragraphs of each module of installed packages, and whether they are for validation.

    Every paragraph appears only once: docstrings repeat a lot, and repetitions would be in both splits.

    Args:
        packages: names of packages; ``stdlib`` for the standard library.
    """
    sources = find_sources(packages)
    paths = [str(path) for _, path in sources]
    seen = set()
    with WorkerPool(2) as pool:
        prose = pool.map(module_prose, paths, chunksize=16)
        progress = progress_bar(prose, desc="reading docstrings", total=len(paths), unit=" files")
        for (module, _), texts in zip(sources, progress, strict=True):
            new = [text for text in dict.fromkeys(texts) if text not in seen]
            seen.update(new)
            if new:
                yield new, is_validation(module)


def write_corpus(documents: Iterable[tuple[list[str], bool]], train: Path, valid: Path) -> Mapping[str, int]:
    """Write documents as a training and a validation text, with blank lines between them.

    Returns:
        The counts ``documents``, ``lines`` and ``characters``.
    """
    counts: Counter[str] = Counter()
    with create_file(train) as train_file, create_file(valid) as valid_file:
        for lines, is_valid in documents:
            text = "\n".join(lines) + "\n\n"
            file = valid_file if is_valid else train_file
            file.write(text.encode())
            counts.update(documents=1, lines=len(lines), characters=sum(map(len, lines)))
    return counts

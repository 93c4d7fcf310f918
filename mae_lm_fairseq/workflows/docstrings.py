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
from dataclasses import dataclass, field
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bar
from mae_lm_fairseq.utils.workers import WorkerPool

STDLIB = "stdlib"
PACKAGES = (STDLIB, "numpy", "scipy", "sklearn", "sympy", "networkx", "torch")

SHORTEST_PARAGRAPH = 40
SHORTEST_CONSTANT = 200
LETTERS = 0.88
VALID_PERCENT = 2

# Directives with prose as their content; all others contain code, math or tables.
PROSE_DIRECTIVES = {"note", "warning", "seealso", "versionadded", "versionchanged", "deprecated", "important", "tip"}

DIRECTIVE = re.compile(r"\.\. (?:(\w[\w-]*)::|.*)")
FENCE = re.compile(r"(```|~~~)")
CODE = re.compile(r"(>>>|\.\.\. |\$ |% |#|@|In \[|Out\[|:\w[^:`]*:(\s|$)|\||\+[-=]|[-=~^*+#\"]{3,})")
BULLET = re.compile(r"^(?:[-*+•]|\(?\w{1,2}[.)]|\[\w+\])\s+")
ARGUMENT = re.compile(r"^\*{0,2}[\w.`]+(?: \([^()]*(?:\([^()]*\)[^()]*)*\))?: +(?=\S)")
ROLE = re.compile(r":(?!math)[\w:+-]+:`(?:[^`<]*<)?([^`<>]+)>?`")
SIMPLE_MATH = re.compile(r":math:`\\?(?:text|mathrm|mathbf)?\{?(\w+)\}?`")
MARKUP = re.compile(r"`+_*|(?<!\w)\*{1,2}(?=\w)|(?<=\w)\*{1,2}(?!\w)|\s*\[\w+\]_|~\.?(?=\w)")
NOT_PROSE = re.compile(r":math:|[{}\\$|]|->|::|\w\([^()]*\)\s*$|^[\w*, ]+ : ")


@dataclass
class Paragraph:
    """Consecutive lines with the same indentation; a list item includes the deeper indented lines below it."""

    indent: int
    lines: list[str] = field(default_factory=list)
    hanging: bool = False

    def takes(self, indent: int, line: str) -> bool:
        return (indent == self.indent and not _starts_item(line)) or (self.hanging and indent > self.indent)


def _starts_item(line: str) -> bool:
    return bool(BULLET.match(line) or ARGUMENT.match(line))


def _text_lines(doc: str) -> Iterator[tuple[int, str]]:
    """Yield possible lines of prose with their indentation; code, directives and fenced blocks become blank lines."""
    hidden_below = None  # deeper indented lines belong to a literal block or directive
    fenced = False
    for raw in inspect.cleandoc(doc).split("\n"):
        line = raw.strip()
        indent = len(raw) - len(raw.lstrip())
        if not line:
            yield 0, ""
            continue
        if hidden_below is not None and indent <= hidden_below:
            hidden_below = None
        directive = DIRECTIVE.match(line)
        if FENCE.match(line):
            fenced = not fenced
        elif hidden_below is None and not fenced and directive:
            if directive[1] not in PROSE_DIRECTIVES:
                hidden_below = indent
        elif hidden_below is None and not fenced:
            if line.endswith("::"):
                hidden_below = indent
            yield indent, line
            continue
        yield 0, ""


def _blocks(doc: str) -> Iterator[list[str]]:
    """Split a docstring into paragraphs of lines, and drop those with a line of code, a table or a field."""
    current = None
    for indent, line in [*_text_lines(doc), (0, "")]:
        if current and line and current.takes(indent, line):
            current.lines.append(line)
            continue
        if current and not any(CODE.match(part) for part in current.lines):
            yield current.lines
        current = Paragraph(indent, [line], hanging=_starts_item(line)) if line else None


def _clean(lines: list[str]) -> str:
    """Join the lines of a paragraph, and remove list markers and reStructuredText's inline markup."""
    text = BULLET.sub("", " ".join(lines), count=1)
    text = ARGUMENT.sub("", text, count=1)
    text = SIMPLE_MATH.sub(r"\1", text)
    text = ROLE.sub(lambda role: role[1].lstrip("~!.").strip(), text)
    text = re.sub(r"::$", ":", MARKUP.sub("", text))
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    if len(text) < SHORTEST_PARAGRAPH or NOT_PROSE.search(text):
        return False
    letters = sum(character.isalpha() or character == " " for character in text)
    return letters >= LETTERS * len(text) and text.count(" ") >= len(text) / 12


def paragraphs(doc: str) -> list[str]:
    """Return the prose of a docstring, one string per paragraph.

    Doctests, literal and fenced blocks, tables, headings, field lists, directives without prose, and paragraphs with
    more than one math symbol are dropped.
    """
    return [text for text in map(_clean, _blocks(doc)) if _is_prose(text)]


def _docs(tree: ast.AST) -> Iterator[str]:
    """Yield docstrings, and long string arguments of calls (``add_docstr(torch.abs, ...)``), in source order."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node, clean=False)
            if doc:
                yield doc
        elif isinstance(node, ast.Call):
            for child in _call_constants(node):
                if isinstance(child.value, str) and len(child.value) >= SHORTEST_CONSTANT:
                    yield child.value


def _call_constants(call: ast.Call) -> Iterator[ast.Constant]:
    """Yield constants in a call's arguments (one level of tuples deep), and those whose method is called."""
    for argument in [call.func, *call.args]:
        candidates = argument.elts if isinstance(argument, ast.Tuple) else [argument]
        for candidate in candidates:
            value = candidate.value if isinstance(candidate, ast.Attribute) else candidate
            if isinstance(value, ast.Constant):
                yield value


def module_prose(path: str) -> list[str] | None:
    """Return the paragraphs of all docstrings in a source file, or ``None`` if it cannot be read or parsed."""
    try:
        with tokenize.open(path) as source, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return [text for doc in _docs(tree) for text in paragraphs(doc)]


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

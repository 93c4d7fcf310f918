#!/usr/bin/env python3
"""Change one place of the package at a time, and see whether the tests of its room fail.

    scripts/mutants.py --seed N --mutants N --out FILE.jsonl [ROOM ...]

A *mutant* is the package with one mistake: another operator, a number that is off by one, two arguments swapped, a
guard or a call that is missing, a reversed truth value. The seed draws the mutants. Each is tested in a copy of the
checkout with the tests of its room (tests/ROOM), those of its module first, up to the first failure. A mutant
*survives* if all of them pass: then a test is missing, or the mutant means the same. FILE has a line for each mutant,
and the same command goes on where it was interrupted. The exit code is 0 when all were tested.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "mae_lm_fairseq"
ROOMS = ("core", "tasks", "fairseq_patches", "trained", "text", "measures", "study", "wrapped", "optim")
COPIED = (PACKAGE, "tests", "scripts", "preprocess", "docs")
LEFT_OUT = ("fused_attention.py", "fused_loss.py")
"""Triton's kernels, which a CPU interprets: a mutant of them needs minutes."""
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
SYMMETRIC = {"max", "min"}
"""Functions of two arguments that mean the same in any order."""
MINUTES = 20
"""A mutant whose tests take longer is one that hangs, which counts as noticed."""


@dataclass(frozen=True)
class Mutant:
    """A place in a file, and the text that replaces it."""

    file: str
    line: int
    kind: str
    start: int
    """First byte of the replaced text."""
    end: int
    before: str
    after: str

    @property
    def room(self) -> str:
        """Name of the folder whose tests shall notice the mutant."""
        return Path(self.file).parts[1]

    def source(self, text: bytes) -> bytes:
        """Return the mutated text of the file."""
        return text[: self.start] + self.after.encode() + text[self.end :]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return all mutants of a file, in the order of their places."""
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    mutants = []
    for node, kind, after in changes_of(ast.parse(text)):
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        before = text[start:end].decode()
        mutant = Mutant(str(path.relative_to(root)), node.lineno, kind, start, end, before, after)
        if compiles(mutant.source(text)):
            mutants.append(mutant)
    return mutants


def compiles(text: bytes) -> bool:
    """Tell whether a text is Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def changes_of(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield a node, a kind of mistake, and the text in place of the node."""
    for node in executed(tree):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
                other = ast.Compare(node.left, [COMPARISONS[type(operator)]()], node.comparators)
                yield node, "comparison", parenthesised(other)
            case ast.BinOp() if type(node.op) in OPERATORS and not is_text(node):
                other = ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
                yield node, "operator", parenthesised(other)
            case ast.BoolOp():
                other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
                yield node, "and, or", parenthesised(other)
            case ast.UnaryOp(op=ast.Not()):
                yield node, "not", parenthesised(node.operand)
            case ast.Constant(value=bool()):
                yield node, "truth value", str(not node.value)
            case ast.Constant(value=int()):
                yield node, "off by one", str(node.value + 1)
            case ast.Call(args=[first, second, *rest]) if has_an_order(node):
                yield node, "swapped arguments", ast.unparse(ast.Call(node.func, [second, first, *rest], node.keywords))
            case ast.If(body=[ast.Raise() | ast.Return() | ast.Continue() as leaving], orelse=[]):
                yield leaving, "missing guard", "pass"
            case ast.Expr(value=ast.Call()):
                yield node, "missing call", "pass"


def has_an_order(call: ast.Call) -> bool:
    """Tell whether a call means something else with its first two arguments swapped."""
    if isinstance(call.func, ast.Name) and call.func.id in SYMMETRIC:
        return False
    return not any(isinstance(argument, ast.Starred) for argument in call.args)


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run, without annotations, texts, messages of errors and what type checkers read."""
    yield tree
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "exc", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                yield from executed(child)


def parenthesised(node: ast.expr) -> str:
    """Return the text of an expression, which keeps its meaning inside of another one."""
    return f"({ast.unparse(node)})"


def is_text(node: ast.BinOp) -> bool:
    """Tell whether an operation joins texts."""
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def drawn(root: Path, rooms: list[str], seed: int, number: int) -> list[Mutant]:
    """Return mutants of the rooms, as many of each kind as chance gives."""
    pool = []
    for room in rooms:
        for path in sorted((root / PACKAGE / room).rglob("*.py")):
            if path.name not in LEFT_OUT:
                pool += mutants_of(path, root)
    generator = random.Random(seed)
    return generator.sample(pool, min(number, len(pool)))


def tests_of(mutant: Mutant, root: Path) -> list[str]:
    """Return the tests of a mutant's room, those of its module first."""
    room = Path("tests") / mutant.room
    module = f"test_{Path(mutant.file).stem}.py"
    first = sorted(str(path.relative_to(root)) for path in (root / room).rglob(module))
    return [*first, str(room)]


def is_noticed(mutant: Mutant, root: Path) -> bool:
    """Tell whether a test fails in a copy of the checkout with the mutant."""
    path = root / mutant.file
    original = path.read_bytes()
    path.write_bytes(mutant.source(original))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *tests_of(mutant, root)],
            cwd=root,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(original)
    return done.returncode != 0


def copy_checkout(folder: Path) -> None:
    """Copy what the tests read to a folder."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder / path.name)


def finished(file: Path) -> set[tuple[str, int, str]]:
    """Return the mutants that a file has already, by place and text."""
    if not file.exists():
        return set()
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(record["file"], record["start"], record["after"]) for record in records}


def main() -> None:
    """Draw the mutants and test those that are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "rooms", nargs="*", default=ROOMS, metavar="ROOM", help="folders of the package (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, required=True, help="seed of the draw")
    parser.add_argument("--mutants", type=int, required=True, metavar="N", help="number of mutants")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines, one for each mutant")
    options = parser.parse_args()
    mutants = drawn(ROOT, list(options.rooms), options.seed, options.mutants)
    done = finished(options.out)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_checkout(copy)
        for number, mutant in enumerate(mutants, start=1):
            if (mutant.file, mutant.start, mutant.after) in done:
                continue
            began = time.monotonic()
            noticed = is_noticed(mutant, copy)
            record = asdict(mutant) | {
                "seed": options.seed,
                "noticed": noticed,
                "seconds": round(time.monotonic() - began),
            }
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            verdict = "noticed" if noticed else "survives"
            print(f"{number}/{len(mutants)} {verdict}: {mutant.file}:{mutant.line} {mutant.kind}", flush=True)


if __name__ == "__main__":
    main()

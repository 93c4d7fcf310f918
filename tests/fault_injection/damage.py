"""Damaged versions of valid input: hypothesis strategies, and the loop that runs a case on each of them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fault_injection.report import Row
from tests.fault_injection.training import Workplace

Damage = Callable[[bytes], SearchStrategy[bytes]]
"""Function that returns a strategy for damaged versions of a file's content."""

BYTES = st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
TEXTS = (
    *(b"", b"a b c", b"a\0b \0\0\0 c\n" * 50, b"abc \xed\xa0\x80 d\n" * 20, b"a\r\r\n\rb\r\n" * 20),
    *(b"ab cd " * 70_000 + b"\n", b"\n" * 500 + b"a b\n" + b"\n \n\t\n" * 100),
    b"<s> <pad> </s> <unk> <mask> \xe2\x96\x81\n" * 20,
    "a \ufffe \uffff \U0010ffff b\n".encode() * 20,
    "a\x85b\u2028c\u3000d\x0be\x1cf \u200b\ufeffg\n".encode() * 20,
)
"""Text that is hard to read: empty, no final newline, NULs, a surrogate, carriage returns, a line of 400 kB, ..."""
_KEYS = (
    *("data", "paragraphs", "context", "qas", "id", "question", "answers", "text", "answer_start", "is_impossible"),
    *("sentence1", "sentence2", "label", "splits", "network", "about", "\ud800"),
)
VALUES = (
    *(None, True, 0, -1, 1, 0.5, 2**31, 10**40, float("nan"), float("-inf"), 1e308),
    *("", " ", "1", "two\nlines", "\0", "\u2028", "\ud800", "/etc/hostname", "../../outside", "x" * 5000),
)
JSON = st.recursive(
    st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inside, max_size=4),
    max_leaves=12,
)
"""Any JSON value, with the keys that our parsers look for."""
_TOO_MUCH_JSON = st.sampled_from([b"[" * 100_000, b"9" * 5000])


def cuts(content: bytes, times: int) -> Iterator[bytes]:
    """Yield the content truncated at every length, or at about ``times`` lengths if it is longer than twice that."""
    for length in range(0, len(content), max(1, len(content) // times)):
        yield content[:length]


def damaged(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that flips one bit of the content, overwrites a range, truncates it or replaces it."""
    place = st.integers(0, len(content) - 1)
    flipped = st.builds(
        lambda at, bit: _overwrite(content, at, bytes([content[at] ^ 1 << bit])), place, st.integers(0, 7)
    )
    overwritten = st.builds(
        lambda at, other: _overwrite(content, at, other), place, st.binary(min_size=1, max_size=300)
    )
    return flipped | overwritten | place.map(lambda length: content[:length]) | BYTES


def _overwrite(content: bytes, place: int, other: bytes) -> bytes:
    return content[:place] + other + content[place + len(other) :]


@st.composite
def altered(draw, value: Any, others: SearchStrategy = JSON) -> Any:
    """Draw a copy of nested dictionaries and lists with one entry removed or replaced by one of ``others``."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 9:
        return draw(others)
    changed = value.copy()
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    if draw(st.integers(0, 4)) == 4:
        del changed[key]
    else:
        changed[key] = draw(altered(value[key], others))
    return changed


def damaged_json(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy of JSON with a value removed or replaced or a key duplicated, of other JSON, and of damaged
    bytes.
    """
    keys = st.sampled_from(list(re.finditer(rb'"[^"]+":', content)))

    def duplicated(key: re.Match[bytes], value: Any) -> bytes:
        return content[: key.start()] + key[0] + _dump(value) + b"," + content[key.start() :]

    valid = json.loads(content)
    return (
        altered(valid).map(_dump)
        | st.builds(duplicated, keys, JSON)
        | JSON.map(_dump)
        | damaged(content)
        | _TOO_MUCH_JSON
    )


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def damaged_lines(content: bytes) -> SearchStrategy[bytes]:
    """Return a strategy of dictionaries with an entry replaced, all entries duplicated, or damaged bytes."""
    lines = content.splitlines(keepends=True)
    entries = (b"", b"\n", b"a\n", b"a b\n", b"a -1\n", b"a 1e9\n", b"<s> 1\n", b"<mask> 1\n", b"a\0 1\n", b"\xff 1\n")
    entry = st.sampled_from([*entries, b"a \xc2\xb2\n", b"a 1 #fairseq:x\n", lines[0]])
    replaced = st.builds(
        lambda place, line: b"".join([*lines[:place], line, *lines[place + 1 :]]),
        *(st.integers(0, len(lines) - 1), entry),
    )
    return replaced | st.just(content + content) | damaged(content)


def attempt(
    place: Workplace,
    row: Row,
    case: Callable[[Any], str | None],
    strategy: SearchStrategy,
    times: int,
    first: Iterable[Any] = (),
) -> None:
    """Run a case on generated values; the row keeps the smallest failing value, as shrunk by hypothesis.

    Args:
        place: provides the seed.
        row: counts the tries.
        case: returns what is wrong, or None.
        strategy: generates the argument of ``case``.
        times: number of generated values.
        first: values to try before the generated ones.
    """
    for value in first:
        row.record(_described(case(value), value))
    failure = None

    @hypothesis.seed(place.seed)
    @settings(
        max_examples=times,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(strategy)
    def generated(value: Any) -> None:
        nonlocal failure
        problem = case(value)
        if problem is not None:
            failure = _described(problem, value)
            raise AssertionError(failure)
        if failure is None:
            row.record(None)

    try:
        generated()
    except Exception as error:
        row.record(failure or f"{type(error).__name__}: {error}")


def _described(problem: str | None, value: Any) -> str | None:
    return problem and f"{problem}, with {value!r:.300}"


def attempt_file(
    place: Workplace, row: Row, path: Path, damage: Damage, case: Callable[[], str | None], times: int, lengths: int = 0
) -> None:
    """Run a case on a file that is damaged, or truncated at ``lengths`` lengths, then restore the file."""
    valid = path.read_bytes()

    def write(content: bytes) -> None:
        path.unlink(missing_ok=True)  # the previous file may still be memory-mapped
        path.write_bytes(content)

    def damaged_case(content: bytes) -> str | None:
        write(content)
        return case()

    attempt(place, row, damaged_case, damage(valid), times, cuts(valid, lengths) if lengths else ())
    write(valid)

"""Damage to sound input: strategies of hypothesis, and the loop that tries what they generate."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fault_injection.report import Row
from tests.fault_injection.training import Workplace

Damage = Callable[[bytes], SearchStrategy[bytes]]
"""A strategy of damaged versions of the content of a file."""

BYTES = st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
TEXTS = (
    *(b"", b"a b c", b"a\0b \0\0\0 c\n" * 50, b"abc \xed\xa0\x80 d\n" * 20, b"a\r\r\n\rb\r\n" * 20),
    *(b"ab cd " * 70_000 + b"\n", b"\n" * 500 + b"a b\n" + b"\n \n\t\n" * 100),
    b"<s> <pad> </s> <unk> <mask> \xe2\x96\x81\n" * 20,
    "a \ufffe \uffff \U0010ffff b\n".encode() * 20,
    "a\x85b\u2028c\u3000d\x0be\x1cf \u200b\ufeffg\n".encode() * 20,
)
"""Text that is hard to read: empty, without a line end, NULs, a surrogate, carriage returns, 400 kB in a line, ..."""
_KEYS = (
    *("data", "paragraphs", "context", "qas", "id", "question", "answers", "text", "answer_start", "is_impossible"),
    *("sentence1", "sentence2", "label", "splits", "format", "network", "about", "\ud800"),
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
"""Anything that JSON can hold, with the keys that our parsers look for."""
_TOO_MUCH_JSON = st.sampled_from([b"[" * 100_000, b"9" * 5000])


def cuts(content: bytes, times: int) -> Iterator[bytes]:
    """The content cut at every length, or at about ``times`` lengths where it is longer than twice that."""
    for length in range(0, len(content), max(1, len(content) // times)):
        yield content[:length]


def damaged(content: bytes) -> SearchStrategy[bytes]:
    """The content with one bit changed, overwritten in one place, cut, or replaced."""
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
    """A copy of nested dictionaries and lists in which one entry is missing or is one of ``others``."""
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
    """JSON with a value missing or another one, or with a key twice; any JSON; or damaged as bytes."""
    keys = st.sampled_from(list(re.finditer(rb'"[^"]+":', content)))

    def twice(key: re.Match[bytes], value: Any) -> bytes:
        return content[: key.start()] + key[0] + _dump(value) + b"," + content[key.start() :]

    sound = json.loads(content)
    return (
        altered(sound).map(_dump) | st.builds(twice, keys, JSON) | JSON.map(_dump) | damaged(content) | _TOO_MUCH_JSON
    )


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def damaged_lines(content: bytes) -> SearchStrategy[bytes]:
    """A dictionary with an entry replaced, or every entry twice, or damaged as bytes."""
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
    """Try a case with what a strategy generates; of the failures the row keeps the smallest, which hypothesis finds.

    Args:
        place: with the seed.
        row: counts the tries.
        case: returns what is wrong, or None.
        strategy: of the argument of ``case``.
        times: number of generated values.
        first: values to be tried before these.
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
    """Try a case with a file that is damaged, or cut at ``lengths`` lengths, and restore the file."""
    sound = path.read_bytes()

    def write(content: bytes) -> None:
        path.unlink(missing_ok=True)  # the former may still be mapped into memory
        path.write_bytes(content)

    def damaged_case(content: bytes) -> str | None:
        write(content)
        return case()

    attempt(place, row, damaged_case, damage(sound), times, cuts(sound, lengths) if lengths else ())
    write(sound)

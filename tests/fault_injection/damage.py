"""How what is sound is damaged, and what might be given in its place."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

TEXTS = {
    "random bytes": lambda generator: generator.randbytes(3000),
    "random characters": lambda generator: "".join(map(chr, generator.choices(range(0xD800), k=800))).encode(),
    "NULs": lambda generator: b"a\0b \0\0\0 c\n" * 50,
    "lone surrogates": lambda generator: b"abc \xed\xa0\x80 d\n" * 20,
    "noncharacters": lambda generator: "a \ufffe \uffff \U0010ffff b\n".encode() * 20,
    "white space of all sorts": lambda generator: "a\x85b\u2028c\u3000d\x0be\x1cf \u200b\ufeffg\n".encode() * 20,
    "special symbols": lambda generator: b"<s> <pad> </s> <unk> <mask> \xe2\x96\x81\n" * 20,
    "a line of 400 kB": lambda generator: b"ab cd " * 70_000 + b"\n",
    "empty documents": lambda generator: b"\n" * 500 + b"a b\n" + b"\n \n\t\n" * 100,
    "no line end": lambda generator: b"a b c",
    "carriage returns": lambda generator: b"a\r\r\n\rb\r\n" * 20,
    "nothing": lambda generator: b"",
}
"""What might be given for text, and must not be taken for it where it is none."""

VALUES = (
    *(None, True, 0, -1, 1, 0.5, 2**31, 10**40, float("nan"), float("-inf"), 1e308),
    *("", " ", "a", "1", "two\nlines", "\0", "\u2028", "\ud800", "/etc/hostname", "../../outside", "x" * 5000),
    *([], [[]], ["a"], [0], {}, {"a": {}}),
)
"""What might stand in the place of any value."""
_JSON = (
    b"",
    b"\0" * 9,
    b"\xff\xfe[",
    b"[" * 100_000,
    b"9" * 5000,
    b"NaN",
    b"null",
    b'"\\ud800"',
    b"[{}]",
    b'{"data": [',
)


def cuts(content: bytes, times: int) -> Iterator[bytes]:
    """The content cut at every length, or where that is many times more than ``times`` at so many."""
    for length in range(0, len(content), max(1, len(content) // times)):
        yield content[:length]


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Cut, changed in one bit, overwritten in one place, or replaced."""
    place, length = generator.randrange(len(content)), generator.randint(1, 5000)
    return generator.choice(
        [
            content[:place],
            content[:place] + bytes([content[place] ^ 1 << generator.randrange(8)]) + content[place + 1 :],
            content[:place] + generator.randbytes(length) + content[place + length :],
            generator.randbytes(len(content)),
        ]
    )


def altered(value: Any, generator: random.Random, values: Sequence[Any] = VALUES) -> Any:
    """A copy of nested dictionaries and lists in which one entry is missing or is one of ``values``."""
    if not isinstance(value, dict | list) or not value or generator.random() < 0.1:
        return generator.choice(values)
    changed = value.copy()
    key = generator.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if generator.random() < 0.2:
        del changed[key]
    else:
        changed[key] = altered(value[key], generator, values)
    return changed


def damaged_json(content: bytes, generator: random.Random) -> bytes:
    """Damaged as bytes; with one value missing or another one; with a key twice; or something else in JSON or not."""
    kind = generator.randrange(6)
    if kind == 0:
        return damaged(content, generator)
    if kind == 1:
        return generator.choice(_JSON)
    if kind == 2:
        keys = list(re.finditer(rb'"\w+":', content))
        key = generator.choice(keys)
        value = json.dumps(generator.choice(VALUES)).encode()
        return content[: key.start()] + key[0] + value + b"," + content[key.start() :]
    return json.dumps(altered(json.loads(content), generator)).encode()

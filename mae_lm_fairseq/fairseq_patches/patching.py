"""Replacement of another package's functions, permanently or in a ``with`` block."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable) -> None:
    """Replace ``owner.name`` by a function that calls ``wrapper(original, *args, **kwargs)``.

    Does nothing if ``wrapper`` has been applied already.
    """
    original = getattr(owner, name)
    wrappers = getattr(original, "wrappers", ())
    if wrapper in wrappers:
        return

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        return wrapper(original, *args, **kwargs)

    wrapped.wrappers = (*wrappers, wrapper)
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(wrapped) if is_static else wrapped)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` to ``value`` inside the ``with`` block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)

"""Replace functions of another package, for good or inside of a ``with`` block."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any


def wrap(owner: Any, name: str, wrapper: Callable) -> None:
    """Replaces ``owner.name``, once, by a function that calls ``wrapper(original, *args, **kwargs)``."""
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
    """``owner.name`` is ``value`` inside the ``with`` block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)

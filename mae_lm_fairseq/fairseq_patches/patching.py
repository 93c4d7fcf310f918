"""Replacement of another package's functions, permanently or in a ``with`` block."""

import functools
import inspect
from collections.abc import Callable
from typing import Any
from unittest import mock


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


def patch(owner: Any, name: str) -> Callable[[Callable], Callable[[], None]]:
    """Return a decorator that makes a patch of a wrapper: a function without arguments that calls :func:`wrap`."""

    def patch_of(wrapper: Callable) -> Callable[[], None]:
        return functools.wraps(wrapper)(functools.partial(wrap, owner, name, wrapper))

    return patch_of


replaced = mock.patch.object
"""``replaced(owner, name, value)`` sets ``owner.name`` to ``value`` inside a ``with`` block."""

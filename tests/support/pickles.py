"""Pickles that would run code."""

from collections.abc import Callable


class Calls:
    """Object that calls a function when it is unpickled."""

    def __init__(self, function: Callable, *arguments: object):
        self.call = function, arguments

    def __reduce__(self):
        return self.call

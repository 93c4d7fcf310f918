"""Modules without memory for their weights: names and shapes alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Build modules on the meta device, without initial values."""
    with torch.device("meta"), _WithoutInitialValues():
        yield


class _WithoutInitialValues(TorchFunctionMode):
    """Skips the functions of ``torch.nn.init``.

    On the meta device, drawing from a normal distribution imports ``torch._dynamo``, which takes as long as importing
    torch itself.
    """

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        options = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return options["tensor"] if "tensor" in options else args[0]
        return function(*args, **options)

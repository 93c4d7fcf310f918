"""torch.compile with a fallback to eager execution."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import _config as shape_config

logger = logging.getLogger(__name__)


class Compiled:
    """A function compiled for batches of any shape. If compilation fails, it warns once and calls the function itself.

    Args:
        function: function of tensors, integers and tuples of them.
        backend: backend of ``torch.compile``.
    """

    def __init__(self, function: Callable, backend: str | Callable = "inductor"):
        self.function = function
        self.compiled = torch.compile(function, dynamic=True, backend=backend)

    def __call__(self, *args) -> Any:
        if self.compiled is None:
            return self.function(*args)
        try:
            # Sizes that are equal in one batch by chance must not be compiled as equal.
            with shape_config.patch(use_duck_shape=False):
                return self.compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # base class of the errors of dynamo and inductor
            self.compiled = None
            result = self.function(*args)  # raises errors that are unrelated to compilation
            logger.warning(
                "training without --compile, because compilation fails: %s", " ".join(str(problem).split())[:300]
            )
            return result

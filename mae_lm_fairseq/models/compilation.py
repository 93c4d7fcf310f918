"""torch.compile as something that may fail."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental import _config as shape_config

logger = logging.getLogger(__name__)


class Compiled:
    """A function, compiled for batches of every shape; as it was, after one warning, where compiling fails.

    Args:
        function: takes tensors, integers and tuples of them.
        backend: of ``torch.compile``.
    """

    def __init__(self, function: Callable, backend: str | Callable = "inductor"):
        self.function = function
        self.compiled = torch.compile(function, dynamic=True, backend=backend)

    def __call__(self, *args) -> Any:
        if self.compiled is None:
            return self.function(*args)
        try:
            # Sizes that happen to agree in one batch are not taken to agree in all.
            with shape_config.patch(use_duck_shape=False):
                return self.compiled(*args)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:  # dynamo's and inductor's are all of this kind
            self.compiled = None
            result = self.function(*args)  # raises again what has nothing to do with compiling
            logger.warning("--compile is left out, as it fails here: %s", " ".join(str(problem).split())[:300])
            return result

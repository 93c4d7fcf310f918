"""Simulated disk faults."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit the size of every file to ``size`` bytes, so that a write fails midway, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

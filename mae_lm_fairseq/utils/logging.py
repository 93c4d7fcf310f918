"""Logging of this package's programs."""

import logging


def configure_logging() -> None:
    """Log warnings only, one line each.

    One of fairseq's imports sets the root logger to DEBUG, so that all loggers print everything.
    """
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)

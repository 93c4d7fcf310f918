"""What a program of ours says besides its results."""

import logging


def quieten() -> None:
    """Shows warnings, a line each, and no more: one of fairseq's imports makes everybody's loggers print everything."""
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", force=True)

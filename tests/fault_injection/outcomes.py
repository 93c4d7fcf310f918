"""What is wrong with the way in which a case ends, and with what it leaves behind."""

import contextlib
import io
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError

CLEAR = "success, or one line that says what is wrong"
WHOLE = f"{CLEAR}; what is left behind is whole, or nothing"

LONGEST_CASE_SECONDS = 120.0
"""The slowest, which train a tokenizer, take some seconds."""


class Hang(BaseException):
    """A case that does not end. No Exception, which the code under test might catch."""


def outcome(action: Callable[[], object]) -> str | None:
    """What is wrong with the way in which ``action`` ends; None where it is success or one clear line."""
    try:
        with _time_limit(LONGEST_CASE_SECONDS):
            quietly(action)
    except UserError as error:
        return None if len(str(error.code).splitlines()) == 1 else f"more than a line: {error.code}"
    except SystemExit as error:
        return None if error.code == 2 else f"exit code {error.code}"  # argparse says what is wrong
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any other is what we look for; a panic in Rust is no Exception
        return f"{type(error).__name__}: {error}"
    return None


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def ring(number, frame):
        raise Hang(f"still going on after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def quietly(action: Callable[[], object]) -> None:
    """Calls ``action`` without progress bars, results and warnings.

    What has to succeed, as nothing is damaged, goes this way.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            action()
    finally:
        logging.disable(before)


def product_outcome(action: Callable[[Path], object], check: Callable[[Path], object], directory: Path) -> str | None:
    """:func:`outcome` of what makes a file or directory, and what is wrong with what is there afterwards.

    Args:
        action: is given a path that does not exist, and may make it.
        check: raises an exception where what is at that path is not whole.
        directory: does not exist, before and afterwards; what is made lies in it.
    """
    directory.mkdir()
    try:
        product = directory / "product"
        problem = outcome(lambda: action(product))
        left = sorted(path.name for path in directory.iterdir())
        if problem or not left:
            return problem
        return f"left behind: {left}" if left != [product.name] else _unsoundness(lambda: check(product))
    finally:
        shutil.rmtree(directory)


def _unsoundness(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (UserError, Exception) as error:
        return f"not whole: {type(error).__name__}: {error}"
    return None

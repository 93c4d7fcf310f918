"""Exit of a program on errors that the user can fix."""

import pytest

from mae_lm_fairseq.utils.errors import Interrupted, UserError, errors_end_the_program, needs_transformers


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("ünïcode 東京 ▁w is shown", "ünïcode 東京 ▁w is shown"),
        ("a\nb\r\x85\u2028c", "a\\nb\\r\\x85\\u2028c"),
        ("\x1b[2J \0 \ud800 \ufeff", "\\x1b[2J \\x00 \\ud800 \\ufeff"),
    ],
)
def test_a_message_is_one_line_without_control_characters(message, line):
    assert str(UserError(message)) == line


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UserError("a.txt: no such file"), "error: a.txt: no such file"),
        (KeyboardInterrupt(), "error: interrupted"),
        (Interrupted("interrupted by SIGTERM"), "error: interrupted by SIGTERM"),
    ],
)
def test_a_program_ends_with_an_error_message(error, message):
    with pytest.raises(SystemExit) as end, errors_end_the_program():
        raise error
    assert end.value.code == message


def test_a_missing_package_is_named():
    with pytest.raises(UserError, match="'transformers'; pip install transformers protobuf"), needs_transformers():
        raise ImportError("No module named 'transformers'")


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), errors_end_the_program():
        1 / 0  # noqa: B018


def test_user_errors_are_exceptions_and_interruptions_are_not():
    assert issubclass(UserError, Exception)
    assert not issubclass(Interrupted, Exception)

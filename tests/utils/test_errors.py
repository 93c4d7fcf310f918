"""Errors of one line, whatever is in them."""

import pytest

from mae_lm_fairseq.utils.errors import UserError


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("ünïcode 東京 ▁w is shown", "ünïcode 東京 ▁w is shown"),
        ("a\nb\r\x85\u2028c", "a\\nb\\r\\x85\\u2028c"),
        ("\x1b[2J \0 \ud800 \ufeff", "\\x1b[2J \\x00 \\ud800 \\ufeff"),
    ],
)
def test_a_message_is_one_line_without_control_characters(message, line):
    error = UserError(message)
    assert str(error) == line
    assert error.code == f"error: {line}"

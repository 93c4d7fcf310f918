"""Exit of a program on errors that the user can fix."""

import pytest

from mae_lm_fairseq.utils.errors import Interrupted, UserError, errors_end_the_program


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
    ("error", "code", "printed"),
    [
        (UserError("a.txt: no such file"), "error: a.txt: no such file", ""),
        (FileExistsError(17, "File exists", "a"), "error: [Errno 17] File exists: 'a'", ""),
        (
            ModuleNotFoundError("No module named 'dask'"),
            "error: No module named 'dask'; docs/installation.md lists the extras of this package",
            "",
        ),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (Interrupted("interrupted by SIGTERM", 15), 143, "error: interrupted by SIGTERM\n"),
    ],
)
def test_a_program_ends_with_a_message_or_the_exit_code_of_its_signal(error, code, printed, capsys):
    with pytest.raises(SystemExit) as end, errors_end_the_program():
        raise error
    assert end.value.code == code
    assert capsys.readouterr().err == printed

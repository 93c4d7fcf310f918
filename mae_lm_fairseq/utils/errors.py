"""What a user did wrong, told in one line."""


class UserError(SystemExit):
    """An error that the user can mend: the command ends with one line on stderr and exit code 1.

    It derives from ``SystemExit`` so that ``fairseq-train`` and ``fairseq-hydra-train``, whose error handling is
    not ours, print the message without a traceback.

    Args:
        message: names the file, option or value at fault, and what to do about it. What a terminal does not print, such
            as a line break in a name that a file holds, is escaped.
    """

    def __init__(self, message: str):
        message = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in message)
        super().__init__(message)
        self.code = f"error: {message}"


class RefusedFile(UserError):
    """A file asks to run code when it is loaded."""


def first_line(error: BaseException) -> str:
    """Of the error's message, or the name of its class where there is none."""
    return next(iter(str(error).splitlines()), type(error).__name__)

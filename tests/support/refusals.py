"""Expected refusals."""

import pytest

from mae_lm_fairseq.utils.errors import UserError


def refused(named: str):
    """Return a context manager for a block that ends in a UserError.

    Args:
        named: regular expression of the option, file, key or value that the message names.
    """
    return pytest.raises(UserError, match=named)

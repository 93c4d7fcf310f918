"""Detection of a second copy of this package, which fairseq would mix with the first or reject as not unique."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.utils.errors import UserError


def check_one_copy(user_dir: str | None) -> None:
    """Check that ``--user-dir`` and Python do not refer to different copies of this package.

    Raises:
        UserError: if they do; the message names both.
    """
    if user_dir is None or not os.path.isdir(user_dir):
        return
    given, ours = Path(user_dir).resolve(), PACKAGE.resolve()
    if given.name != ours.name and given != ours:
        return
    others = [copy for copy in (ours, *importable_copies()) if copy != given]
    if others:
        raise UserError(
            f"two copies of {PACKAGE.name}: --user-dir is {given}, but Python finds {others[0]}; uninstall or rename "
            "one of them, and pass the other to --user-dir"
        )


def importable_copies() -> Iterator[Path]:
    """Yield every place where Python finds a package or module of our name.

    This includes the places that are shadowed by an earlier entry of ``sys.path``.
    """
    for finder in sys.meta_path:
        for entry in sys.path:
            spec = finder.find_spec(PACKAGE.name, [entry])
            if spec is not None and spec.origin is not None:
                origin = Path(spec.origin).resolve()
                yield origin.parent if spec.submodule_search_locations else origin

"""This package, found twice: fairseq would mix the copies, or stop because their names are not unique."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.utils.errors import UserError


def check_one_copy(user_dir: str | None) -> None:
    """Stops when ``--user-dir`` names one copy of this package and Python has or would find another."""
    if user_dir is None or not os.path.isdir(user_dir):
        return
    given, ours = Path(user_dir).resolve(), PACKAGE.resolve()
    if given.name != ours.name and given != ours:
        return
    others = [copy for copy in (ours, *importable_copies()) if copy != given]
    if others:
        raise UserError(
            f"two of the name {PACKAGE.name}: --user-dir gives {given}, and Python finds {others[0]}; uninstall or "
            "rename one of them, and give the other to --user-dir"
        )


def importable_copies() -> Iterator[Path]:
    """Every place where Python would find a package or a module of our name, if it were not for the others."""
    for finder in sys.meta_path:
        for entry in sys.path:
            spec = finder.find_spec(PACKAGE.name, [entry])
            if spec is not None and spec.origin is not None:
                origin = Path(spec.origin).resolve()
                yield origin.parent if spec.submodule_search_locations else origin

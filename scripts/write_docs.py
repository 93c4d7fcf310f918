#!/usr/bin/env python3
"""Write the pages of docs/ that are made from data: recipes.md and robustness.md.

scripts/write_docs.py
"""

import argparse
import sys
from pathlib import Path

from mae_lm_fairseq.utils.errors import errors_end_the_program

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write all of them."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.path.insert(0, str(ROOT))  # tests/ is not installed
    from mae_lm_fairseq.recipes import document as recipes
    from tests.fault_injection import report as robustness

    for name, text in {"recipes.md": recipes.document, "robustness.md": robustness.document}.items():
        (ROOT / "docs" / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    with errors_end_the_program():
        main()

#!/usr/bin/env python3
"""Write the pages of docs/ that are made from data: recipes.md and robustness.md.

scripts/write_docs.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tests/ is not installed

from mae_lm_fairseq.recipes import document as recipes  # noqa: E402
from tests.fault_injection import report as robustness  # noqa: E402

PAGES = {"recipes.md": recipes.document, "robustness.md": robustness.document}


def main() -> None:
    """Write all of them."""
    for name, text in PAGES.items():
        (ROOT / "docs" / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()

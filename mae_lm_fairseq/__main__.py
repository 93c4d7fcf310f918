"""``python -m mae_lm_fairseq VERB`` is ``mae-lm VERB``; without a verb, print the directory of the package."""

import sys
from pathlib import Path

from mae_lm_fairseq.cli import main

if len(sys.argv) > 1:
    sys.exit(main())
print(Path(__file__).resolve().parent)  # for fairseq-train --user-dir

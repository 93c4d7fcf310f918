"""``python -m mae_lm_fairseq``: print the directory of the package, for ``--user-dir``."""

from pathlib import Path

print(Path(__file__).resolve().parent)

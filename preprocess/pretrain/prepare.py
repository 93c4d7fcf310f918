#!/usr/bin/env python3
"""The command ``mae-lm prepare``."""

import sys

from mae_lm_fairseq.cli import run
from mae_lm_fairseq.utils.errors import errors_end_the_program

if __name__ == "__main__":
    with errors_end_the_program():
        run("prepare", sys.argv[1:], "prepare.py")

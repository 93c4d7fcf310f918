#!/usr/bin/env python3
"""The command ``python -m mae_lm_fairseq.training.launch_cpu``."""

from mae_lm_fairseq.training.launch_cpu import main
from mae_lm_fairseq.utils.errors import errors_end_the_program

if __name__ == "__main__":
    with errors_end_the_program():
        main()

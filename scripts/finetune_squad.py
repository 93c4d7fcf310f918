#!/usr/bin/env python3
"""The command ``mae-lm finetune squad``."""

from mae_lm_fairseq.commands.finetune_squad import main
from mae_lm_fairseq.utils.errors import errors_end_the_program

if __name__ == "__main__":
    with errors_end_the_program():
        main()

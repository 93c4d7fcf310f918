#!/usr/bin/env python3
"""From raw text to what fairseq-train reads: see mae_lm_fairseq/text/prepare.py."""

from mae_lm_fairseq.text.prepare import main
from mae_lm_fairseq.utils.errors import errors_end_the_program

if __name__ == "__main__":
    with errors_end_the_program():
        main()

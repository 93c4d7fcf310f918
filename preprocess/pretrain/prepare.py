#!/usr/bin/env python3
"""From raw text to what fairseq-train reads: see mae_lm_fairseq/text/prepare.py."""

from mae_lm_fairseq.text.prepare import main

if __name__ == "__main__":
    main()

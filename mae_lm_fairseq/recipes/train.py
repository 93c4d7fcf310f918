"""``fairseq-train`` as ``scripts/pretrain.sh`` runs it: Ctrl-C while it is still being imported is no traceback."""

from mae_lm_fairseq import register
from mae_lm_fairseq.utils.errors import errors_end_the_program

with errors_end_the_program():
    # Before anything else of fairseq: it sets up logging, in the processes that it spawns too.
    from fairseq_cli.train import cli_main

if __name__ == "__main__":
    with errors_end_the_program():
        register()
        cli_main()

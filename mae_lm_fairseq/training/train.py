"""``fairseq-train`` for ``mae-lm pretrain``; Ctrl-C during its imports does not print a traceback."""

from mae_lm_fairseq import register
from mae_lm_fairseq.utils.errors import errors_end_the_program

with errors_end_the_program():
    # Before any other import from fairseq: it sets up logging, also in the processes that it spawns.
    from fairseq_cli.train import cli_main

if __name__ == "__main__":
    with errors_end_the_program():
        register()
        cli_main()

"""fairseq-train for the directory of a user, which takes the place of this package in ``--user-dir``."""

from fairseq_cli.train import cli_main

from mae_lm_fairseq import register

register()

if __name__ == "__main__":
    cli_main()

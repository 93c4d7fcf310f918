"""``fairseq-train`` as ``scripts/pretrain.sh`` runs it: Ctrl-C while it is still being imported is no traceback."""

from mae_lm_fairseq.utils.errors import errors_end_the_program

if __name__ == "__main__":
    with errors_end_the_program():
        from fairseq_cli.train import cli_main

        cli_main()

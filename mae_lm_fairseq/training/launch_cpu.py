"""Train in several processes on this machine's CPU.

This is torchrun with the settings of one machine: the cores are divided among the processes (OMP_NUM_THREADS, where it
is set, is the number of threads of each), and ports are open on the loopback only. Each update takes a batch from each
process (and --update-freq times as many); checkpoints are those of one process, and the same command resumes from them.
When one process fails, all of them end.
"""

import argparse

from mae_lm_fairseq.utils.errors import errors_end_the_program


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [-h] N -- arguments of fairseq-train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("processes", type=int, metavar="N", help="number of processes")
    parser.add_argument("arguments", nargs="+", metavar="ARGUMENT", help="arguments of fairseq-train, after --")
    return parser


def main():
    """Launch."""
    arguments = parser().parse_args()
    from mae_lm_fairseq.training.launcher import launch

    launch(**vars(arguments))


if __name__ == "__main__":
    with errors_end_the_program():
        main()

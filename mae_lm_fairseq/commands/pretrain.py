"""Pretrain an architecture with its recipe, on a CPU, on all GPUs of this machine, or on several nodes.

Arguments after SAVE_DIR are passed to fairseq-train and override the recipe. Prints the size of the training and the
fairseq-train command. Started again with the same directory, it resumes. An update takes the recipe's number of
sequences, whatever the number of processes: --update-freq is computed from it and from --batch-size, unless you give
--update-freq, which --max-tokens needs. Precision on GPUs is fp16, or that of your flags, such as --bf16.

Examples:
    all GPUs of this machine; CUDA_VISIBLE_DEVICES chooses among them
        mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
    on a CPU, for the small sizes
        mae-lm pretrain mae_lm_tiny data-bin checkpoints/tiny --cpu
    several nodes with torchrun: on each of them, the first of which is called node0
        torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 --no-python \\
            mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
    several nodes with Slurm: one task per node, which starts a process for each GPU
        srun --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
"""

import argparse
import logging
import os
import shlex
import sys
import warnings
from typing import NoReturn

from mae_lm_fairseq.training.pretrain import arithmetic, build_arguments, parse_configuration
from mae_lm_fairseq.training.settings import recipe
from mae_lm_fairseq.utils.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one message, because each of many nodes would print a usage text."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = Parser(
        usage="%(prog)s PRESET DATA_BIN SAVE_DIR [fairseq-train flags]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", metavar="PRESET", help="architecture, such as mae_lm_base")
    parser.add_argument("data", metavar="DATA_BIN", help="data-bin made by mae-lm prepare")
    parser.add_argument("save_dir", metavar="SAVE_DIR", help="directory for checkpoints")
    flags = parser.add_argument("flags", nargs=argparse.REMAINDER, metavar="FLAGS", help="flags of fairseq-train")
    flags.required = False
    return parser


def main(argv: list[str] | None = None) -> None:
    """Print what will be trained, and replace this process by fairseq-train."""
    logging.getLogger().setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=UserWarning)  # from hydra; fairseq-train repeats them
    options = parser().parse_args(argv)
    recipe(options.preset)
    for path in [options.data] if "://" in options.data else options.data.split(os.pathsep):  # as fairseq splits them
        if not os.path.isdir(path):
            raise UserError(f"{path}: no such directory; mae-lm prepare makes a data-bin")
    from mae_lm_fairseq.training.machine import processes

    words = build_arguments(options.preset, options.data, options.save_dir, options.flags)
    cfg = parse_configuration(words)
    number, rank = processes(cfg)
    if rank == 0:
        batches, accumulated = cfg.dataset, cfg.optimization.update_freq[0]
        taken = (batches.batch_size, accumulated, number, cfg.task.tokens_per_sample, cfg.optimization.max_update)
        summary = arithmetic(*taken, batches.max_tokens)
        print(f"{options.preset}: {summary}\n{shlex.join(['fairseq-train', *words])}", flush=True)
    # Logging in this process is not set up as fairseq-train expects, because other modules of fairseq were imported
    # first.
    os.execv(sys.executable, [sys.executable, "-m", "mae_lm_fairseq.training.train", *words])

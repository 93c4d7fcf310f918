"""``scripts/pretrain.sh``: train an architecture with its recipe on any machine."""

import logging
import os
import shlex
import sys
import warnings

from mae_lm_fairseq import PACKAGE, register
from mae_lm_fairseq.recipes.settings import as_arguments, recipe, settings
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program

USAGE = "usage: scripts/pretrain.sh PRESET DATA_BIN SAVE_DIR [fairseq-train flags]"


# fairseq and torch are imported inside functions: it takes seconds, in which Ctrl-C must not print a traceback.


def understand(words: list[str]):
    """Return the configuration (a DictConfig) that fairseq-train builds from its arguments."""
    register()
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))


def complete(architecture: str, data: str, save_dir: str, extra: list[str]) -> list[str]:
    """Return all arguments of fairseq-train.

    They are the recipe's, this machine's, and the user's, which come last and take precedence.

    Raises:
        UserError: if the architecture does not exist, or the sequences of an update cannot be divided by the processes.
    """
    from mae_lm_fairseq.recipes.machine import distributed_options, precision, processes, split_global_batch

    chosen = settings(architecture)
    begin = [data, "--user-dir", str(PACKAGE), "--save-dir", save_dir]
    # 0 marks options that the user did not set.
    asked = understand([*begin, *as_arguments(chosen), "--batch-size", "0", "--update-freq", "0", *extra])
    chosen["common"] |= precision(asked)
    chosen["distributed_training"] = distributed_options(asked)
    if asked.optimization.update_freq == [0]:
        number, _ = processes(understand([*begin, *as_arguments(chosen), *extra]))
        sequences = recipe(architecture)["sequences"].value
        batch_size = asked.dataset.batch_size or chosen["dataset"]["batch_size"]
        batch_size, accumulated = split_global_batch(
            sequences, number, batch_size, smaller=not asked.dataset.batch_size
        )
        chosen["dataset"]["batch_size"] = batch_size
        chosen["optimization"]["update_freq"] = [accumulated]
    return [*begin, *as_arguments(chosen), *extra]


def arithmetic(batch_size: int, accumulated: int, number_of_processes: int, tokens: int, updates: int) -> str:
    """Describe the amount of training data in one sentence."""
    sequences = batch_size * accumulated * number_of_processes
    processes = "1 process" if number_of_processes == 1 else f"{number_of_processes} processes"
    return (
        f"{sequences:,} sequences ({batch_size} per batch x {accumulated} accumulated x {processes}) "
        f"x {tokens} tokens = {sequences * tokens:,} tokens per update at most; "
        f"{updates:,} updates = {sequences * tokens * updates:,} tokens"
    )


def main(arguments: list[str]) -> None:
    """Print what will be trained, and replace this process by fairseq-train."""
    logging.getLogger().setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=UserWarning)  # from hydra; fairseq-train repeats them
    if len(arguments) < 3 or any(word.startswith("-") for word in arguments[:3]):
        raise UserError(USAGE)
    architecture, data, save_dir, *extra = arguments
    recipe(architecture)
    for path in [data] if "://" in data else data.split(os.pathsep):  # as fairseq splits them
        if not os.path.isdir(path):
            raise UserError(f"{path}: no such directory; preprocess/pretrain/prepare.py makes a data-bin")
    from mae_lm_fairseq.recipes.machine import processes

    words = complete(architecture, data, save_dir, extra)
    cfg = understand(words)
    number, rank = processes(cfg)
    if rank == 0:
        accumulated = cfg.optimization.update_freq[0]
        taken = (cfg.dataset.batch_size, accumulated, number, cfg.task.tokens_per_sample, cfg.optimization.max_update)
        print(f"{architecture}: {arithmetic(*taken)}\n{shlex.join(['fairseq-train', *words])}", flush=True)
    # Logging in this process is not set up as fairseq-train expects, because other modules of fairseq were imported
    # first.
    os.execv(sys.executable, [sys.executable, "-m", "mae_lm_fairseq.recipes.train", *words])


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])

"""Average the weights of checkpoints of one training run into one checkpoint.

Every command that takes a model takes the result, with the data-bin of the checkpoints. It has no state of the
optimizer: to train it further, give it to --finetune-from-model. The mean is computed in float64 and stored in float32.

Examples:
    mae-lm average checkpoint_3_900.pt checkpoint_4_1000.pt --out averaged.pt
    mae-lm average checkpoints/mae_lm --last 5 --out averaged.pt
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fairseq import checkpoint_utils

from mae_lm_fairseq import register
from mae_lm_fairseq.checkpoints.averaging import average
from mae_lm_fairseq.fairseq_patches.resuming import fault_of, saved_checkpoints, saved_updates
from mae_lm_fairseq.utils.command_line import Argument, Count, OutputFile
from mae_lm_fairseq.utils.command_line import Options as Base
from mae_lm_fairseq.utils.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Checkpoints to average.

    Attributes:
        models: checkpoints; with ``--last``, their directory.
        last: average the N checkpoints with most updates in the directory.
        out: checkpoint to write.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    last: Count | None = None
    out: OutputFile


def main(options: Options) -> None:
    """Write the average and print the names of the checkpoints."""
    register()  # lets torch read fairseq's checkpoints as data, and fairseq save atomically
    paths = last_checkpoints(options.models, options.last) if options.last else options.models
    if options.out.resolve() in [path.resolve() for path in paths]:
        raise UserError(f"--out {options.out} is one of the checkpoints; choose another file")
    checkpoint_utils.torch_persistent_save(average(paths), str(options.out))
    print(f"{options.out}: mean of {', '.join(path.name for path in paths)}")


def last_checkpoints(directories: tuple[Path, ...], number: int) -> list[Path]:
    """Return the checkpoints with most updates, in their order; copies of a checkpoint count once.

    Raises:
        UserError: if there are fewer, one is damaged, or not one directory is given.
    """
    if len(directories) > 1 or not directories[0].is_dir():
        raise UserError("--last is for one directory of checkpoints; without it, name the checkpoints")
    [directory] = directories
    # checkpoint_best.pt and checkpoint_last.pt are copies, and come last in this order.
    by_updates = {saved_updates(path): path for path in sorted(saved_checkpoints(directory), reverse=True)}
    if path := by_updates.get(-1):
        raise UserError(f"{path}: {fault_of(path) or 'no updates'}; remove it, or name the checkpoints without --last")
    if len(by_updates) < number:
        raise UserError(f"--last {number}: {directory} has {len(by_updates)} checkpoints with different updates")
    return [by_updates[updates] for updates in sorted(by_updates)[-number:]]

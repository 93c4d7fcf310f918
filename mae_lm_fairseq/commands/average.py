"""Average the weights of checkpoints of one training run into one checkpoint.

Every command that takes a model takes the result, with the data-bin of the checkpoints. It has no state of the
optimizer: to train it further, give it to --finetune-from-model. The mean is computed in float64 and stored in float32.

Example:
    mae-lm average checkpoint_3_900.pt checkpoint_4_1000.pt --out averaged.pt
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.trained.averaging import average
from mae_lm_fairseq.trained.checkpoint_file import save_checkpoint
from mae_lm_fairseq.utils.command_line import Argument, Options as Base, OutputFile
from mae_lm_fairseq.utils.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Checkpoints to average.

    Attributes:
        models: checkpoints.
        out: checkpoint to write.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    out: OutputFile


def main(options: Options) -> None:
    """Write the average and print the names of the checkpoints."""
    if options.out.resolve() in map(Path.resolve, options.models):
        raise UserError(f"--out {options.out} is one of the checkpoints; choose another file")
    save_checkpoint(average(options.models), options.out)
    names = ", ".join(path.name for path in options.models)
    print(f"{options.out}: mean of {names}")

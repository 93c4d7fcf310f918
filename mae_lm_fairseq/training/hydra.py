"""``python -m mae_lm_fairseq.training.hydra``: print a recipe as YAML for ``fairseq-hydra-train``."""

import os
import sys
from pathlib import Path

from omegaconf import OmegaConf

from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.training.amount import Amount
from mae_lm_fairseq.training.command import split_global_batch
from mae_lm_fairseq.training.settings import recipe, settings
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program

ADVICE = "# For N processes divide optimization.update_freq by N; on GPUs add common.fp16=true (or common.bf16=true)."
USAGE = "usage: python -m mae_lm_fairseq.training.hydra PRESET DATA_BIN SAVE_DIR > recipe.yaml"


def as_yaml(architecture: str, data: str, save_dir: str) -> str:
    """Return an architecture's recipe for one process, including every option of the model.

    Paths are made absolute, because Hydra changes the working directory.

    Raises:
        UserError: if the architecture does not exist.
    """
    chosen = settings(architecture)
    rows = recipe(architecture)
    batch_size, accumulated = split_global_batch(
        rows["sequences"].value, 1, chosen["dataset"]["batch_size"], smaller=False
    )
    chosen["common"]["user_dir"] = str(chosen["common"]["user_dir"])
    chosen["task"]["data"] = os.pathsep.join(str(Path(path).resolve()) for path in data.split(os.pathsep))
    chosen["checkpoint"]["save_dir"] = str(Path(save_dir).resolve())
    chosen["optimization"]["update_freq"] = [accumulated]
    chosen["model"] = {"_name": architecture, **architecture_values(architecture), **chosen["model"]}
    amount = Amount(
        batch_size=batch_size,
        accumulated=accumulated,
        processes=1,
        tokens=rows["tokens"].value,
        updates=rows["updates"].value,
    )
    return "\n".join([f"# {architecture}: {amount.describe()}", ADVICE, OmegaConf.to_yaml(OmegaConf.create(chosen))])


def main(arguments: list[str]) -> None:
    """Print the YAML of a recipe."""
    if len(arguments) != 3:
        raise UserError(USAGE)
    print(as_yaml(*arguments), end="")


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])

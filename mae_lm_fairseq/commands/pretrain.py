"""Pretrain an architecture with its recipe, on a CPU, on all GPUs of this machine, or on several nodes.

Arguments after SAVE_DIR are passed to fairseq-train and override the recipe. Prints the size of the training and the
fairseq-train command. Started again with the same directory, it resumes. An update takes the recipe's number of
sequences, whatever the number of processes: --update-freq is computed from it and from --batch-size, unless you give
--update-freq, which --max-tokens needs. Precision on GPUs is fp16, or that of your flags, such as --bf16. Weights are
drawn from --seed. With --finetune-from-model, they are the given model's, and equal for all seeds.

Examples:
    all GPUs of this machine; CUDA_VISIBLE_DEVICES chooses among them
        mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
    on a CPU, for the small sizes
        mae-lm pretrain mae_lm_tiny data-bin checkpoints/tiny --cpu
    an encoder of transformers, such as a ModernBERT, from random weights
        mae-lm pretrain mae_lm_tiny data-bin checkpoints/modernbert --encoder modernbert/config.json
    several nodes with torchrun: on each of them, the first of which is called node0
        torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 --no-python \\
            mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
    several nodes with Slurm: one task per node, which starts a process for each GPU
        srun --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 mae-lm pretrain mae_lm_base data-bin checkpoints/mae_lm
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mae_lm_fairseq.training.settings import RECIPES, recipe
from mae_lm_fairseq.utils.command_line import Argument, Options as Base


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Architecture, paths and flags of a pretraining.

    Attributes:
        preset: architecture, such as mae_lm_base.
        data_bin: data-bin made by mae-lm prepare; several shards with ``:`` between them.
        save_dir: directory for checkpoints.
        recipe: settings of the training (default: development for tiny and small, base, large++).
        encoder: configuration of an encoder of transformers, config.json or its directory. Its sizes replace the
            preset's, and its vocabulary is the data-bin's.
        dry_run: only print the size of the training, an estimate of its duration, and the command. With --encoder, 20
            updates are measured for the estimate.
        flags: flags of fairseq-train, which override the recipe.
    """

    preset: Annotated[str, Argument("PRESET", positional=True)]
    data_bin: Annotated[str, Argument("DATA_BIN", positional=True)]
    save_dir: Annotated[str, Argument("SAVE_DIR", positional=True)]
    recipe: Annotated[Literal[*RECIPES], Argument("NAME")] | None = None
    encoder: Annotated[Path, Argument("PATH")] | None = None
    dry_run: bool = False
    flags: Annotated[tuple[str, ...], Argument("FLAGS", positional=True, rest=True)] = ()

    def __post_init__(self):
        super().__post_init__()
        recipe(self.preset, self.recipe)
        names = {word.partition("=")[0] for word in self.flags}
        for name, place in {"--arch": "PRESET", "-a": "PRESET", "--save-dir": "SAVE_DIR"}.items():
            if name in names:
                raise ValueError(f"{name} is the argument {place} here; remove it")

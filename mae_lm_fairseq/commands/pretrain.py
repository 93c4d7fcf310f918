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

import warnings

from mae_lm_fairseq.training.pretrain import PretrainOptions as Options
from mae_lm_fairseq.training.pretrain import pretrain


def main(options: Options) -> None:
    """Run the command."""
    warnings.filterwarnings("ignore", category=UserWarning)  # from hydra; fairseq-train repeats them
    pretrain(options)

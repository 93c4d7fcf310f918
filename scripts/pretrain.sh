#!/usr/bin/env bash
# Pretrain an architecture with its recipe: scripts/pretrain.sh PRESET DATA_BIN SAVE_DIR [fairseq-train flags]
#
# PRESET is an architecture such as mae_lm_base; an unknown one prints the list. docs/recipes.md lists the values of the
# recipes. Flags of fairseq-train come last and take precedence. The same command resumes an interrupted run.
#
#   one process, or all GPUs of this machine (CUDA_VISIBLE_DEVICES chooses among them)
#       scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#   on a CPU, for the small sizes
#       scripts/pretrain.sh mae_lm_tiny data-bin checkpoints/tiny --cpu
#   several nodes with torchrun: run on each node; the first one is called node0
#       torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 --no-python \
#           scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#   several nodes with Slurm: one task per node, which starts a process for each GPU
#       srun --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#
# The number of sequences per update is the recipe's for any number of processes: --update-freq is computed from it,
# --batch-size (per process) and the number of processes. An --update-freq of your own overrides this. The precision on
# GPUs is fp16, or bf16 with --bf16. Prints the amount of training text and the fairseq-train command first.
set -euo pipefail

case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p;}' "${BASH_SOURCE[0]}" && exit ;; esac
python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mae_lm_fairseq") is None)' || {
    echo "error: mae_lm_fairseq is not installed for $(command -v python || echo python); run scripts/install.sh" >&2
    exit 1
}
exec python -m mae_lm_fairseq pretrain "$@"

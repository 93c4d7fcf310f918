#!/usr/bin/env bash
# Pretrains an architecture with its recipe: scripts/pretrain.sh PRESET DATA_BIN SAVE_DIR [fairseq-train flags]
#
# PRESET is an architecture, such as mae_lm_base; a wrong one is answered with the list. docs/recipes.md has the
# recipes, value by value. Flags of fairseq-train come last and win. Started again, a run goes on where it was.
#
#   one process, or all GPUs of this machine (CUDA_VISIBLE_DEVICES chooses among them)
#       scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#   on a CPU, for the small sizes
#       scripts/pretrain.sh mae_lm_tiny data-bin checkpoints/tiny --cpu
#   several nodes with torchrun: on each of them, the first of which is called node0
#       torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node0:29500 --no-python \
#           scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#   several nodes with Slurm: one task a node, which starts a process for each GPU
#       srun --nodes 4 --ntasks-per-node 1 --gpus-per-node 8 scripts/pretrain.sh mae_lm_base data-bin checkpoints/mae_lm
#
# The number of sequences in an update is the recipe's, however many processes there are: --update-freq is computed
# from it, from --batch-size (of one process) and from the number of processes; your own --update-freq changes it.
# Precision is fp16 on GPUs; --bf16 instead. Prints first what it will take in, and the command of fairseq-train.
set -euo pipefail

case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p;}' "${BASH_SOURCE[0]}" && exit ;; esac
python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("mae_lm_fairseq") is None)' || {
    echo "error: mae_lm_fairseq is not installed for $(command -v python || echo python); scripts/install.sh does that" >&2
    exit 1
}
exec python -m mae_lm_fairseq pretrain "$@"

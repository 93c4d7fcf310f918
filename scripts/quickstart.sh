#!/usr/bin/env bash
# Install the project, then train two language models and compare them, on two CPU cores.
#
#   scripts/quickstart.sh [--smoke] [--out DIR]
#
# Creates a virtual environment (.venv in the checkout), installs the pinned requirements, prepares the docstrings of Python packages, pretrains
# MAE-LM and the RoBERTa preset on it, and writes DIR/report.md with figures, DIR/results.json and DIR/models. Takes
# about 10 minutes after the installation. The same command resumes an interrupted quickstart and reuses its results.
#
#   --smoke         all steps in less than 2 minutes after the installation; the models learn next to nothing
#   --out DIR       default: quickstart/docstrings, with --smoke quickstart/docstrings-smoke
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Report mistakes now and not after the installation.
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
    --smoke) shift ;;
    --out)
        [ $# -gt 1 ] || { echo "error: $1 needs a value" >&2 && exit 1; }
        shift 2
        ;;
    -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p;}' "${BASH_SOURCE[0]}" && exit ;;
    *) echo "error: unknown option $1; scripts/quickstart.sh --help lists the options" >&2 && exit 1 ;;
    esac
done

source "$root/scripts/install.sh"
install_environment "$root/.venv" analysis,hf
exec "$root/.venv/bin/python" -m mae_lm_fairseq quickstart ${arguments[@]+"${arguments[@]}"}

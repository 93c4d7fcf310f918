#!/usr/bin/env bash
# Install the project, run the doctor, train, kill and resume, with every supported Python that this machine has: with the
# pinned versions, with the newest torch and numpy, and with the oldest supported ones. fairseq always has the pinned
# version.
#
#   scripts/test_environments.sh [DIRECTORY]        default: build/environments
#
# Each environment takes a few minutes and, if pip's index has torch with CUDA, 8 GB; it is deleted if it works. Prints a
# line for each, and exits with code 1 if one failed. The logs are in DIRECTORY/*.log.
set -euo pipefail
case ${1-} in -*) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" && exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
directory=${1:-build/environments}
mkdir -p "$directory"
source scripts/install.sh
unset CUDA_HOME

# oldest torch and numpy that setup.py allows for each Python
declare -A oldest=([3.11]="torch==2.6.0 numpy==1.24.4" [3.12]="torch==2.6.0 numpy==1.26.4" [3.13]="torch==2.6.0 numpy==2.1.3")

# versions PYTHON CHOICE: print the constraints of an environment.
versions() {
    if [ "$2" = oldest ]; then tr ' ' '\n' <<<"${oldest[$1]}"; fi
    grep -E '^Cython==' constraints.txt # compiles fairseq
}

# install PYTHON CHOICE PLACE
install() {
    if [ "$2" = pinned ]; then
        PYTHON=python$1 scripts/install.sh "$3"
        return
    fi
    versions "$1" "$2" >"$3.txt"
    export PIP_CONSTRAINT=$3.txt PIP_BUILD_CONSTRAINT=$3.txt
    venv=$3
    "python$1" -m venv "$venv" &&
        install_fairseq &&
        "$venv/bin/python" -m pip install --editable . &&
        remove_broken_torchaudio
}

# try PYTHON CHOICE: succeed if every step does. "set -e" has no effect in a condition, so the steps are chained.
try() (
    place=$directory/$1-$2
    rm -rf "$place"
    {
        install "$1" "$2" "$place" &&
            "$place/bin/python" -m mae_lm_fairseq doctor &&
            "$place/bin/python" scripts/fault_injection.py --kills --json "$place/kills.json"
    } >"$place.log" 2>&1 && rm -rf "$place"
)

failed=0
for python in 3.11 3.12 3.13; do
    if ! "python$python" -c '' 2>/dev/null; then
        echo "python $python: not on this machine"
        continue
    fi
    for choice in pinned newest oldest; do
        if try "$python" "$choice"; then
            echo "python $python, $choice: works"
        else
            echo "python $python, $choice: FAILED, see $directory/$python-$choice.log"
            failed=1
        fi
    done
done
exit $failed

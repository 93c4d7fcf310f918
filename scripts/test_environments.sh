#!/usr/bin/env bash
# Installs the project, lets the doctor look at it, trains, kills and resumes, on every Python that it promises to run on
# and that this machine has: with the pinned versions, the newest torch and numpy, and the oldest allowed ones. fairseq is
# the pinned one everywhere, compiled once for each Python where pip keeps what it compiled.
#
#   scripts/test_environments.sh [DIRECTORY]        default: build/environments
#
# Each environment takes some minutes and, where pip's index has torch with CUDA, 8 GB; it is deleted once it worked. Prints
# a line for each, and ends with exit code 1 where one failed. What happened is in DIRECTORY/*.log.
set -euo pipefail
case ${1-} in -*) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" && exit ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
directory=${1:-build/environments}
mkdir -p "$directory"

# oldest torch and numpy for each Python that the limits of setup.py leave
declare -A oldest=([3.11]="torch==2.6.0 numpy==1.24.4" [3.12]="torch==2.6.0 numpy==1.26.4" [3.13]="torch==2.6.0 numpy==2.1.3")

# versions PYTHON CHOICE: the constraints of an environment.
versions() {
    if [ "$2" = oldest ]; then tr ' ' '\n' <<<"${oldest[$1]}"; fi
    grep -E '^(fairseq-fixed|Cython)==' constraints.txt # Cython compiles it
}

# install PYTHON CHOICE PLACE
install() {
    if [ "$2" = pinned ]; then
        PYTHON=python$1 scripts/install.sh "$3"
        return
    fi
    versions "$1" "$2" >"$3.txt"
    export PIP_CONSTRAINT=$3.txt PIP_BUILD_CONSTRAINT=$3.txt
    "python$1" -m venv "$3" &&
        "$3/bin/python" -m pip install --editable . &&
        { "$3/bin/python" -c 'import torchaudio' || "$3/bin/python" -m pip uninstall --yes torchaudio; }
}

# try PYTHON CHOICE: succeeds where every step does. In a condition "set -e" has no effect, so the steps are chained.
try() (
    place=$directory/$1-$2
    rm -rf "$place"
    {
        install "$1" "$2" "$place" &&
            "$place/bin/python" -m mae_lm_fairseq doctor &&
            "$place/bin/python" scripts/smoke.py
    } >"$place.log" 2>&1 && rm -rf "$place"
)

failed=0
for python in 3.11 3.12 3.13; do
    if ! "python$python" -c '' 2>/dev/null; then
        echo "python $python: not on this machine"
        continue
    fi
    # The oldest come last: pip keeps the fairseq that it compiled, and only one compiled with NumPy 2 runs with both.
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

#!/usr/bin/env bash
# Installs the project from nothing, imports it, trains and resumes, on every Python that it promises to run on and that
# this machine has, with the pinned versions, the oldest allowed torch and numpy, and the newest.
#
#   scripts/test_environments.sh [DIRECTORY]        default: build/environments; environments that are complete stay
#
# Each environment takes some minutes and 2 GB. Prints a line for each, and ends with exit code 1 where one failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
directory=${1:-build/environments}
mkdir -p "$directory"

# oldest torch and numpy for each Python that the limits of setup.py leave
declare -A oldest=([3.10]="torch==2.6.0 numpy==1.24.4" [3.11]="torch==2.6.0 numpy==1.24.4" [3.12]="torch==2.6.0 numpy==1.26.4")
newest="torch numpy<2.5"

# versions PYTHON CHOICE: the constraints of an environment.
versions() {
    case $2 in
    pinned) cat constraints.txt ;;
    oldest) tr ' ' '\n' <<<"${oldest[$1]}" && grep -E '^(hydra-core|omegaconf|fairseq-fixed|Cython)==' constraints.txt ;;
    newest) tr ' ' '\n' <<<"$newest" | grep '[<=>]' && grep -E '^(hydra-core|omegaconf|fairseq-fixed|Cython)==' constraints.txt ;;
    esac
}

# try PYTHON CHOICE: a life of its own, in a subshell.
try() (
    place=$directory/$1-$2
    log=$place.log
    versions "$1" "$2" >"$place.txt"
    {
        [ -x "$place/bin/python" ] || "python$1" -m venv "$place"
        PIP_CONSTRAINT=$place.txt PIP_BUILD_CONSTRAINT=$place.txt "$place/bin/python" -m pip install --upgrade --editable .
        "$place/bin/python" -c 'import torchaudio' || "$place/bin/python" -m pip uninstall --yes torchaudio
        "$place/bin/python" -m mae_lm_fairseq.doctor
        "$place/bin/python" scripts/smoke.py
    } >"$log" 2>&1
)

failed=0
for python in 3.10 3.11 3.12; do
    if ! "python$python" -c '' 2>/dev/null; then
        echo "python $python: not on this machine"
        continue
    fi
    for choice in pinned oldest newest; do
        if try "$python" "$choice"; then
            echo "python $python, $choice: works"
        else
            echo "python $python, $choice: FAILED, see $directory/$python-$choice.log"
            failed=1
        fi
    done
done
exit $failed

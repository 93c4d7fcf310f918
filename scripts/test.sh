#!/usr/bin/env bash
# Lint and test the project, from any working directory.
#
#   scripts/test.sh [--quick] [PYTEST ARGUMENTS]
#
# Without arguments: the gate, which is all tests except the slow ones, in at most 20 minutes on two cores.
# --quick: only the unit tests, at most 3 minutes. Further arguments go to pytest ("-m slow": the slow tests). Paths are
# relative to the project's root. The processor time is printed at the end. COVERAGE=1 in the environment measures the
# coverage of lines, without commands that tests start; less than 90 % is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh
install_environment .venv test,analysis,hf,onnx,kernels

selection=(-m "not slow" --numprocesses 2 --dist worksteal)
if [ "${1-}" = --quick ]; then
    shift
    selection=(-m "not slow and not integration")
elif [ $# -gt 0 ]; then
    selection=()
fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports --no-logo --no-cache
# A hanging test fails alone, at its time limit (tests/support/timeouts.py); "timeout" ends a run that hangs outside of any
# test, with its process group.
limit=(timeout --kill-after 60)
if [ -t 0 ]; then limit+=(--foreground); fi
limit+=(1h)
run=(.venv/bin/pytest)
if [ -n "${COVERAGE:-}" ]; then
    .venv/bin/coverage erase
    run=(.venv/bin/coverage run -m pytest)
fi
status=0
"${limit[@]}" "${run[@]}" ${selection[@]+"${selection[@]}"} "$@" || status=$?
used=$(mktemp)
times >"$used" # not in a pipe, as a subshell has no children. The last line is the user and system time of ended children
awk 'END { split($0, t, /[ms ]+/); printf "%.1f minutes of processor time\n", t[1] + t[3] + (t[2] + t[4]) / 60 }' "$used"
rm "$used"
if [ "$status" -ne 0 ]; then exit "$status"; fi
if [ -n "${COVERAGE:-}" ]; then
    .venv/bin/coverage combine --quiet
    .venv/bin/coverage report --skip-covered --fail-under 90
fi

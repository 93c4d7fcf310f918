#!/usr/bin/env bash
# Lints and tests the project, from any working directory.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
#
# Without arguments: all but the slow tests, on two cores. Paths are relative to the project's root. With COVERAGE=1 in the
# environment the lines that tests run are counted, not those of commands that they start, and less than 90 % of them is a
# failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh
install_environment .venv test,analysis,hf,onnx

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/lint-imports --no-logo --no-cache
if [ $# -eq 0 ]; then set -- -m "not slow" --numprocesses 2 --dist worksteal; fi
# A test that hangs is ended by its time limit, with all processes of the run (tests/support/timeouts.py): "timeout" makes
# a process group of them, and ends a run that hangs outside of any test.
limit=(timeout --kill-after 60 2h)
if [ -t 0 ]; then limit+=(--foreground); fi
if [ -z "${COVERAGE:-}" ]; then exec "${limit[@]}" .venv/bin/pytest "$@"; fi
.venv/bin/coverage erase
"${limit[@]}" .venv/bin/coverage run -m pytest "$@"
.venv/bin/coverage combine --quiet
.venv/bin/coverage report --skip-covered --fail-under 90

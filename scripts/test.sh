#!/usr/bin/env bash
# Lints and tests the project, from any working directory.
#
#   scripts/test.sh [PYTEST ARGUMENTS]
#
# Without arguments: all but the slow tests, on two cores. Paths are relative to the project's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh
install_environment .venv test,analysis,hf

.venv/bin/ruff check .
.venv/bin/ruff format --check .
if [ $# -eq 0 ]; then set -- -m "not slow" --numprocesses 2 --dist loadfile; fi
.venv/bin/pytest "$@"

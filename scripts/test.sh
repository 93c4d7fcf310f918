#!/usr/bin/env bash
# Lints and tests the project, from any working directory.
#
#   scripts/test.sh [PYTEST ARGUMENTS]        default: -m "not slow"; paths are relative to the project's root
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh
install_environment .venv test,analysis,hf,onnx

.venv/bin/ruff check .
.venv/bin/ruff format --check .
if [ $# -eq 0 ]; then set -- -m "not slow"; fi
.venv/bin/pytest "$@"

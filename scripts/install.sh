#!/usr/bin/env bash
# Install the project and its dependencies into a virtual environment.
#
#   scripts/install.sh [VENV [EXTRAS]]        default: .venv test,analysis,hf
#
# Other scripts source this file and call install_environment. A new environment uses $PYTHON (default: python3).
# pip's own settings apply. To install another build of torch, point pip at an index that has it.

# install_environment VENV EXTRAS: install into VENV, or return at once if it is complete. Runs in a subshell, so that
# nothing leaks into the caller.
install_environment() (
    set -euo pipefail
    case $1 in /*) venv=$1 ;; *) venv=$PWD/$1 ;; esac
    extras=$2
    cd "$(dirname "${BASH_SOURCE[0]}")/.."
    requirements=.installed-$(cat setup.py constraints.txt scripts/fairseq_build/requirements.txt | cksum | tr ' ' -)
    stamp=$venv/$requirements-$(echo "$PWD $extras" | cksum | tr ' ' -)
    if [ -e "$stamp" ] && [ -x "$venv/bin/python" ]; then
        echo "Reusing $venv, which has these requirements [$extras]."
        exit
    fi
    create_venv
    # The packages of other requirements are replaced.
    find "$venv" -maxdepth 1 -name '.installed-*' ! -name "$requirements-*" -delete
    # The isolated build of fairseq must also use the pinned torch. Old pip passes PIP_CONSTRAINT on to it, new pip
    # needs PIP_BUILD_CONSTRAINT. The path is relative because pip splits these variables at spaces.
    export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
    # With it, fairseq's setup.py compiles for CUDA, which needs an nvcc that matches torch.
    unset CUDA_HOME
    SECONDS=0
    echo "Installing into $venv. The first time takes two to three minutes."
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    step "fairseq" install_fairseq
    # Isolated builds of other packages, also where the package wheel is installed, with which fairseq was compiled.
    step "mae_lm_fairseq [$extras] with torch and all other packages" \
        "$venv/bin/python" -m pip install --quiet --use-pep517 --editable ".[$extras]"
    remove_broken_torchaudio
    step "trying the imports" check_imports
    touch "$stamp"
    echo "Installed in $((SECONDS / 60)) min $((SECONDS % 60)) s: $venv"
)

# step TITLE COMMAND...: run a command, and print how long it took. If it fails, "set -e" ends the installation.
step() {
    local begin=$SECONDS title=$1
    shift
    echo "  $title ..."
    "$@"
    echo "  $title: $((SECONDS - begin)) s"
}

fail() {
    echo "error: $*" >&2
    exit 1
}

create_venv() {
    python=${PYTHON:-python3}
    if [ -x "$venv/bin/python" ]; then python=$venv/bin/python; fi
    command -v "$python" >/dev/null || fail "$python not found; install Python 3.11, 3.12 or 3.13, or set PYTHON"
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
        fail "$python is $("$python" -V), but Python 3.11, 3.12 or 3.13 is needed; set PYTHON"
    if [ -x "$venv/bin/python" ]; then return 0; fi
    # Never into a directory with other files, which must not be removed if this fails.
    [ -z "$(ls -A "$venv" 2>/dev/null)" ] || fail "$venv exists and is no virtual environment; remove it, or choose another directory"
    echo "Creating $venv with $("$python" -V)."
    "$python" -m venv "$venv" || {
        rm -rf "$venv"
        fail "$python cannot create virtual environments; install its venv module (Debian, Ubuntu: python3-venv)"
    }
}

# For most versions of Python, fairseq is available as source only. Its extensions that include torch's headers take minutes
# to compile and are not needed: they are left out by a stand-in for torch, see scripts/fairseq_build/torch/__init__.py. pip
# must not cache the result, which is not what other projects expect.
install_fairseq() {
    pip=("$venv/bin/python" -m pip install --no-deps --require-hashes --requirement scripts/fairseq_build/requirements.txt)
    if "${pip[@]}" --quiet --only-binary :all: 2>/dev/null; then return 0; fi
    check_compiler
    echo "  compiling it for $("$venv/bin/python" -V) ..."
    "$venv/bin/python" -m pip install --quiet setuptools wheel Cython numpy
    # Python's own flags, without information for debuggers, which takes two fifths of the time.
    flags="-DNDEBUG -fwrapv -O3 -g0"
    # pip 26 refuses a constraint of builds where the build is not isolated.
    CFLAGS=${CFLAGS-$flags} CXXFLAGS=${CXXFLAGS-$flags} PYTHONPATH=$PWD/scripts/fairseq_build \
        env -u PIP_BUILD_CONSTRAINT "${pip[@]}" --quiet --no-build-isolation --no-cache-dir --no-binary fairseq-fixed ||
        fail "fairseq-fixed could not be installed; the messages above say why"
}

check_compiler() {
    include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    command -v "${CXX:-g++}" >/dev/null ||
        fail "${CXX:-g++} not found: install a C++ compiler; fairseq must be compiled for this Python"
    [ -e "$include/Python.h" ] ||
        fail "$include/Python.h not found: install Python's headers (Debian, Ubuntu: python3-dev)"
}

# fairseq requires torchaudio, which only its speech code imports. If pip found no build that matches this torch, its
# import fails, and so does that of any transformers model, because transformers imports torchaudio if it is installed.
remove_broken_torchaudio() {
    if "$venv/bin/python" -c 'import torchaudio' 2>/dev/null; then return 0; fi
    echo "Removing torchaudio: it does not match this torch, and only fairseq's speech code needs it."
    "$venv/bin/python" -m pip uninstall --yes --quiet torchaudio
}

# Run outside of the checkout, so that the installed package is imported.
check_imports() {
    (cd "$venv" && bin/python -c 'import fairseq, mae_lm_fairseq') || fail "the installation in $venv does not work"
    case ,$extras, in
    *,hf,*) (cd "$venv" && bin/python -c 'from transformers import RobertaModel') ||
        fail "transformers cannot import its models in $venv" ;;
    esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    case ${1-} in -*) awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" && exit ;; esac
    install_environment "${1:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv}" "${2:-test,analysis,hf}"
fi

"""Checks of the environment: versions and what works on this machine, for ``mae-lm doctor``."""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

# The package and its dependencies are imported inside the checks, so that the report also works if fairseq, torch or
# both are missing or broken.

PACKAGE = Path(__file__).resolve().parent
REQUIRED = {
    "torch": ("2.6", None),
    "numpy": ("1.24", "2.6"),
    "fairseq-fixed": ("0.12.3.1", None),
    "sentencepiece": ("0.2.2", None),
    "safetensors": (None, None),
    "tqdm": (None, None),
}
"""Lowest supported version and first unsupported version, as in setup.py."""
OPTIONAL = ("tokenizers", "transformers", "pyarrow", "scipy", "matplotlib", "tensorboardX")
LEAST_SHARED_MEMORY = 256 << 20


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        subject: what was checked.
        state: "works", "absent" (optional and missing) or "broken".
        details: a version, a name or a reason.
        remedy: how to fix it; may be empty.
    """

    subject: str
    state: str
    details: str
    remedy: str = ""


def python() -> Finding:
    """Check the version of the interpreter."""
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("python", "works", version)
    return Finding("python", "broken", version, "create an environment with Python 3.11, 3.12 or 3.13")


def package(name: str) -> Finding:
    """Check that a package is installed, in a supported version, and importable."""
    lowest, too_new = REQUIRED.get(name, (None, None))
    install = f"pip install '{name}{f'>={lowest}' if lowest else ''}{f',<{too_new}' if too_new else ''}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        missing = ("broken", "not installed", install) if name in REQUIRED else ("absent", "not installed")
        return Finding(name, *missing)
    if (lowest and _numbers(version) < _numbers(lowest)) or (too_new and _numbers(version) >= _numbers(too_new)):
        return Finding(name, "broken", version, install)
    problem = _problem_of_import(name.removesuffix("-fixed"))
    if problem is None:
        return Finding(name, "works", version)
    remedy = install if name in REQUIRED else f"install {name} again, or uninstall it"
    return Finding(name, "broken", f"{version} cannot be imported: {problem}", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def _problem_of_import(name: str) -> str | None:
    return _problem_of(lambda: importlib.import_module(name))


def _problem_of(action: Callable[[], object]) -> str | None:
    try:
        action()
    except (Exception, SystemExit) as error:  # a broken package can raise anything
        return _described(error)
    return None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _by_import(subject: str, module: str, details: str, otherwise: tuple[str, str]) -> Finding:
    """Return a finding about something that works if a module can be imported; else its state and remedy."""
    problem = _problem_of_import(module)
    state, remedy = otherwise
    return Finding(subject, "works", details) if problem is None else Finding(subject, state, problem, remedy)


def old_fairseq() -> Finding | None:
    """Check for PyPI's ``fairseq``, which installs over the import name of the maintained ``fairseq-fixed``."""
    try:
        version = metadata.version("fairseq")
    except metadata.PackageNotFoundError:
        return None
    problem = f"{version} replaces fairseq-fixed, and cannot be imported on Python 3.11"
    remedy = "pip uninstall fairseq, then pip install --force-reinstall --no-deps fairseq-fixed"
    return Finding("fairseq", "broken", problem, remedy)


def compiled_fairseq() -> Finding | None:
    """Check fairseq's C extensions.

    They work with the NumPy version that they were compiled with and later ones.
    """
    if importlib.util.find_spec("fairseq") is None:
        return None
    remedy = "pip install --force-reinstall --no-deps --no-cache-dir fairseq-fixed, which compiles them for this NumPy"
    numpy = f"with NumPy {metadata.version('numpy')}"
    return _by_import("fairseq's compiled parts", "fairseq.data.data_utils_fast", numpy, ("broken", remedy))


def one_copy() -> Finding:
    """Check that Python finds exactly one copy of this package, and that it works with fairseq."""
    from mae_lm_fairseq.fairseq_patches.copies import importable_copies

    copies = {PACKAGE, *importable_copies()}
    if len(copies) > 1:
        remedy = "uninstall or rename one of them; --user-dir and Python must find the same copy"
        return Finding(PACKAGE.name, "broken", " and ".join(sorted(map(str, copies))), remedy)
    problem = _problem_of(lambda: importlib.import_module(PACKAGE.name).register())
    if problem is not None:
        return Finding(PACKAGE.name, "broken", f"cannot work with fairseq: {problem}", "fix what is broken above first")
    return Finding(PACKAGE.name, "works", str(PACKAGE))


def torchaudio() -> Finding | None:
    """Check torchaudio: fairseq requires it, and pip may install a build for another torch.

    This must come before transformers is imported.
    """
    if importlib.util.find_spec("torchaudio") is None:
        return None
    problem = _problem_of_import("torchaudio")
    if problem is None:
        return Finding("torchaudio", "works", metadata.version("torchaudio"))
    from mae_lm_fairseq.huggingface import hide_broken_torchaudio

    hide_broken_torchaudio()  # transformers is checked as this package uses it
    remedy = "pip uninstall torchaudio; this package ignores it, but other programs cannot load transformers' models"
    return Finding("torchaudio", "absent", f"cannot be imported: {problem}", remedy)


def apex() -> Finding:
    """Check whether an installed apex is NVIDIA's or an unrelated package of that name."""
    if importlib.util.find_spec("apex") is None:
        return Finding("apex", "absent", "not installed; training does not need it")
    remedy = "pip uninstall apex; this is not NVIDIA's apex, which is built from source"
    return _by_import("apex", "apex.multi_tensor_apply", "NVIDIA's", ("broken", remedy))


def transformers_models() -> Finding:
    """Check that the transformers classes of exported models can be imported."""
    if importlib.util.find_spec("transformers") is None:
        return Finding("transformers' models", "absent", "not installed", "pip install transformers to export")
    try:
        from transformers import MPNetModel, RobertaModel
    except Exception as error:  # importing optional dependencies of transformers can raise anything
        remedy = "pip install 'transformers>=4.57'"
        return Finding("transformers' models", "broken", " ".join(str(error).split())[:200], remedy)
    return Finding("transformers' models", "works", f"{RobertaModel.__name__}, {MPNetModel.__name__}")


def shared_memory() -> Finding | None:
    """Check the size of /dev/shm, through which data workers return batches."""
    if not os.path.isdir("/dev/shm"):
        return None
    free = shutil.disk_usage("/dev/shm").free
    if free >= LEAST_SHARED_MEMORY:
        return Finding("shared memory", "works", f"{free >> 20} MB free")
    remedy = "start the container with a larger --shm-size, or train with --num-workers 0"
    return Finding("shared memory", "broken", f"only {free >> 20} MB free in /dev/shm", remedy)


def gpu() -> Finding:
    """Check that CUDA can use the GPUs, and read what training depends on: their kind, driver, CUDA and NCCL."""
    import torch

    from mae_lm_fairseq.utils.gpus import gpu_and_driver, unusable_gpu

    if found := unusable_gpu():
        return Finding("GPU", "broken", found.problem, found.remedy)
    if not torch.cuda.is_available():
        return Finding("GPU", "absent", "none; train with --cpu")
    all_properties = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    gpus = [f"{p.name} ({p.total_memory / 1e9:.0f} GB, compute capability {p.major}.{p.minor})" for p in all_properties]
    _, driver = gpu_and_driver() or ("", "unknown")
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "missing"
    kernels = f"torch was built for {' '.join(torch.cuda.get_arch_list())}"
    versions = f"driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}"
    return Finding("GPU", "works", f"{', '.join(gpus)}; {versions}; {kernels}")


def fused_attention() -> Finding | None:
    """Check whether the attention kernel of this package trains on the GPU; training checks its numbers."""
    import torch

    from mae_lm_fairseq.core.attention_backends import problem_of_fused

    if not torch.cuda.is_available():
        return None
    if problem := problem_of_fused(torch.device("cuda")):
        return Finding("fused attention", "absent", problem, "training takes sdpa, which is slower")
    return Finding("fused attention", "works", "--attention-backend fused")


def bf16() -> Finding:
    """Check whether bfloat16 works on the device used for training, and whether it is fast on a CPU."""
    import torch

    from mae_lm_fairseq.utils.versions import SLOW, bfloat16_speed

    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Finding("bf16", "works", "--bf16")
        return Finding("bf16", "absent", "not supported by this GPU", "train with --fp16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = torch.ones(8, 8) @ torch.ones(8, 8)
    if product.dtype != torch.bfloat16:
        return Finding("bf16", "broken", "--cpu --autocast bf16")
    speed = bfloat16_speed()
    if speed < SLOW:
        details = f"{1 / speed:.0f} times slower than float32 on this CPU"
        return Finding("bf16", "works", details, "train without --autocast bf16")
    return Finding("bf16", "works", "--cpu --autocast bf16")


def compilation() -> Finding:
    """Check ``--compile`` by compiling a small function for the training device, which takes a few seconds."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.compile(lambda x: (x + 1).relu())(torch.ones(2, device=device))
    except Exception as error:  # compiler, dynamo and triton have unrelated exception types
        reason = " ".join(str(error).split())[:200]
        remedy = "--compile would have no effect; it needs a C++ compiler and Python's headers (python3-dev)"
        return Finding("torch.compile", "absent", reason, remedy)
    return Finding("torch.compile", "works", f"--compile, on {device}")


def checks() -> list[tuple[str, Callable[[], Finding | None]]]:
    """Return all checks with the names of their subjects, in the order of the report."""
    needed, wanted = ([(name, partial(package, name)) for name in names] for names in (REQUIRED, OPTIONAL))
    others = (
        *(old_fairseq, compiled_fairseq, one_copy, apex, transformers_models),
        *(shared_memory, gpu, fused_attention, bf16, compilation),
    )
    named = ((check.__name__.replace("_", " "), check) for check in others)
    return [("python", python), *needed, ("torchaudio", torchaudio), *wanted, *named]


def run_checks() -> list[Finding]:
    """Run all checks and return their findings. A check that raises is itself reported as broken.

    What imported packages print or warn is dropped, because it would garble the report.
    """
    findings = []
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        for subject, check in checks():
            try:
                finding = check()
            except Exception as error:  # for example because torch is missing
                finding = Finding(subject, "broken", _described(error), "fix what is broken above first")
            if finding is not None:
                findings.append(finding)
    return findings


def report(findings: list[Finding]) -> str:
    """Format the findings, one per line, each followed by its remedy if it has one."""
    lines = [f"{platform.platform()}, {os.cpu_count()} cores"]
    for finding in findings:
        lines.append(f"{finding.state:<7} {finding.subject}: {finding.details}")
        if finding.remedy:
            lines.append(f"        -> {finding.remedy}")
    return "\n".join(lines)

"""Checks of the environment, for ``mae-lm doctor``: versions, imports, the GPU, and what is absent.

Everything is imported inside the checks, so that the report also works if fairseq, torch or both are missing or broken.
"""

import contextlib
import importlib
import io
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
MODULES = {"fairseq-fixed": "fairseq.data.data_utils_fast", "scikit-learn": "sklearn", "protobuf": "google.protobuf"}
"""Modules whose names are not those of their packages; fairseq's is compiled, for one version of NumPy."""
USES = {
    "analysis": "figures, probes and tests of studies",
    "parquet": "Parquet files",
    "corpora": "Parquet and Zstandard files",
    "dask": "preparation on a cluster",
    "tokenizers": "tokenizers other than sentencepiece",
    "hf": "export to and import from transformers",
    "onnx": "export to ONNX",
    "kernels": "--attention-backend fused",
}
"""Purposes of the extras of this package."""


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


def python(wanted: str) -> Finding:
    """Check the version of the interpreter."""
    version = platform.python_version()
    if _fits(version, wanted):
        return Finding("python", "works", version)
    return Finding("python", "broken", version, f"create an environment with Python {wanted}")


def package(name: str, wanted: str, use: str | None) -> Finding:
    """Check that a package is installed, in a supported version, and importable.

    Args:
        name: the package.
        wanted: its supported versions, such as ``>=1.24,<2.6``.
        use: what it is for; None if everything needs it.
    """
    install = f"pip install '{name}{wanted}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "absent" if use else "broken", f"not installed{f'; for {use}' if use else ''}", install)
    if not _fits(version, wanted):
        return Finding(name, "broken", f"{version}, not {wanted}", install)
    if problem := _problem_of(lambda: importlib.import_module(MODULES.get(name, name))):
        return Finding(name, "broken", f"{version} cannot be imported: {problem}", f"{install} --force-reinstall")
    return Finding(name, "works", version)


def _fits(version: str, wanted: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text.split("+")[0])]

    limits = re.findall(r"(>=|<)([\d.]+)", wanted)
    return all((numbers(version) >= numbers(limit)) == (sign == ">=") for sign, limit in limits)


def _problem_of(action: Callable[[], object]) -> str | None:
    try:
        action()
    except (Exception, SystemExit) as error:  # a broken package can raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return None


def this_package() -> Finding:
    """Check that Python finds one copy of this package, and that it works with fairseq."""

    def action() -> None:
        importlib.import_module(PACKAGE.name).register()

    if problem := _problem_of(action):
        return Finding(PACKAGE.name, "broken", problem, "fix what is broken above first")
    return Finding(PACKAGE.name, "works", str(PACKAGE))


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
    return Finding("GPU", "works", f"{', '.join(gpus)}; driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}")


def bf16() -> Finding:
    """Check whether bfloat16 is fast on the device used for training."""
    import torch

    from mae_lm_fairseq.utils.versions import SLOW, bfloat16_speed

    if torch.cuda.is_available():
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return Finding("bf16", "works" if is_fast else "absent", "--bf16" if is_fast else "train with --fp16")
    if (speed := bfloat16_speed()) < SLOW:
        return Finding("bf16", "absent", f"{1 / speed:.0f} times slower than float32 on this CPU")
    return Finding("bf16", "works", "--cpu --autocast bf16")


def checks() -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Yield all checks with their subjects: Python and the requirements of the metadata, if installed, and the rest."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        yield "python", partial(python, metadata.metadata(PACKAGE.name)["Requires-Python"])
        extras = {}
        for requirement in metadata.requires(PACKAGE.name) or ():
            name, wanted, extra = re.match(r"([\w.-]+)([^;\s]*)(?:.*extra == .([\w-]+))?", requirement).groups()
            if extra is None:
                yield name, partial(package, name, wanted, None)
            elif extra in USES:
                extras.setdefault(name, partial(package, name, wanted, USES[extra]))
        yield from extras.items()
    yield from ((PACKAGE.name, this_package), ("GPU", gpu), ("bf16", bf16))


def run_checks() -> list[Finding]:
    """Run all checks and return their findings. A check that raises is itself reported as broken.

    What imported packages print or warn is dropped, because it would garble the report.
    """
    findings, dropped = [], io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(dropped), contextlib.redirect_stderr(dropped):
        warnings.simplefilter("ignore")
        for subject, check in checks():
            try:
                findings.append(check())
            except Exception as error:  # for example because torch is missing
                problem = f"{type(error).__name__}: {error}"
                findings.append(Finding(subject, "broken", problem, "fix what is broken above first"))
    return findings


def report(findings: list[Finding]) -> str:
    """Format the findings, one per line, each followed by its remedy if it has one."""
    lines = [f"{platform.platform()}, {os.cpu_count()} cores"]
    for finding in findings:
        lines.append(f"{finding.state:<7} {finding.subject}: {finding.details}")
        lines += [f"        -> {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)

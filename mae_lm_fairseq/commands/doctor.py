"""Check versions and what works on this machine, and say how to fix what does not; or compare files with their hashes.

With PATH, a data-bin, a bundle, or the output directory of a training, study or fine-tuning, its files are compared
with the hashes and checksums that were written with them. The exit code is 1 if anything is broken.

Examples:
    mae-lm doctor --json
    mae-lm doctor data-bin
"""

import contextlib
import importlib
import io
import json
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, NamedTuple

from mae_lm_fairseq.utils.command_line import Argument, Options as Base
from mae_lm_fairseq.utils.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
MODULES = {"fairseq-fixed": "fairseq.data.data_utils_fast", "scikit-learn": "sklearn", "protobuf": "google.protobuf"}
"""Modules whose names are not those of their packages; fairseq's is compiled, for one version of NumPy."""


class Finding(NamedTuple):
    """Result of a check: its subject, whether that works, is absent (optional) or broken, and how to fix it."""

    subject: str
    state: str
    details: str
    remedy: str = ""


def package(name: str, wanted: str, extra: str | None) -> Finding:
    """Check that a package is installed in a supported version and can be imported.

    Args:
        name: the package.
        wanted: its supported versions, such as ``>=1.24,<2.6``.
        extra: the extra of this package that needs it; None if everything does.
    """
    install = f"pip install '{name}{wanted}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if extra:
            return Finding(name, "absent", f"not installed; in the extra {extra}", install)
        return Finding(name, "broken", "not installed", install)
    if not _fits(version, wanted):
        return Finding(name, "broken", f"{version}, not {wanted}", install)
    try:
        importlib.import_module(MODULES.get(name, name))
    except (Exception, SystemExit) as error:  # a broken package can raise anything
        message = " ".join(str(error).split())[:200]
        problem = f"{version} cannot be imported: {type(error).__name__}: {message}"
        return Finding(name, "broken", problem, f"{install} --force-reinstall")
    return Finding(name, "works", version)


def _fits(version: str, wanted: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text.split("+")[0])]

    for sign, limit in re.findall(r"(>=|<)([\d.]+)", wanted):
        is_at_least = numbers(version) >= numbers(limit)
        if is_at_least != (sign == ">="):
            return False
    return True


def this_package() -> Finding:
    """Check that this package works with fairseq."""
    importlib.import_module(PACKAGE.name).register()
    return Finding(PACKAGE.name, "works", str(PACKAGE))


def gpu() -> Finding:
    """Check that CUDA can use the GPUs, and read what training depends on: their kind, driver, CUDA and NCCL."""
    import torch

    from mae_lm_fairseq.utils.gpus import gpu_and_driver, unusable_gpu

    if problem := unusable_gpu():
        return Finding("GPU", "broken", problem)
    if not torch.cuda.is_available():
        return Finding("GPU", "absent", "none; train with --cpu")
    gpus = []
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        memory = f"{device.total_memory / 1e9:.0f} GB"
        gpus.append(f"{device.name} ({memory}, compute capability {device.major}.{device.minor})")
    _, driver = gpu_and_driver() or ("", "unknown")
    nccl = "missing"
    if torch.distributed.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    names = ", ".join(gpus)
    return Finding("GPU", "works", f"{names}; driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}")


def checks() -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Yield all checks with their subjects: the requirements of the metadata, if installed, and the rest."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        extras = {}
        for requirement in metadata.requires(PACKAGE.name) or ():
            name, wanted, extra = re.match(r"([\w.-]+)([^;\s]*)(?:.*extra == .([\w-]+))?", requirement).groups()
            if extra is None:
                yield name, partial(package, name, wanted, None)
            elif extra != "test":
                extras.setdefault(name, partial(package, name, wanted, extra))
        yield from extras.items()
    yield from ((PACKAGE.name, this_package), ("GPU", gpu))


def run_checks() -> list[Finding]:
    """Run all checks and return their findings. A check that raises is itself reported as broken.

    Modules are imported inside the checks, so that the report also works if fairseq or torch are missing or broken.
    What imported packages print or warn is dropped, because it would garble the report.
    """
    findings, dropped = [], io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(dropped), contextlib.redirect_stderr(dropped):
        warnings.simplefilter("ignore")
        for subject, check in checks():
            try:
                findings.append(check())
            except (Exception, SystemExit) as error:  # for example because torch is missing
                problem = f"{type(error).__name__}: {error}"
                findings.append(Finding(subject, "broken", problem, "fix what is broken above first"))
    return findings


def report(findings: list[Finding]) -> str:
    """Format the findings, one per line, each followed by its remedy if it has one."""
    lines = [f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores"]
    for finding in findings:
        lines.append(f"{finding.state:<7} {finding.subject}: {finding.details}")
        if finding.remedy:
            lines.append(f"        -> {finding.remedy}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of the command.

    Attributes:
        path: directory whose files are compared.
        json: print the findings as JSON.
    """

    path: Annotated[Path, Argument("PATH", positional=True)] | None = None
    json: bool = False


def check_files(path: Path) -> list[Finding]:
    """Return a finding for each damaged file below a directory, and one for all others that could be compared.

    Raises:
        UserError: if there is nothing to compare.
    """
    from mae_lm_fairseq.trained.file_checks import compared_files

    problems = [problem for _, problem in compared_files(path)]
    if not problems:
        raise UserError(f"{path} has nothing with hashes; name a data-bin, a bundle or an output directory")
    findings = [Finding(str(path), "broken", problem) for problem in problems if problem]
    intact = len(problems) - len(findings)
    findings.append(Finding(str(path), "works", f"{intact} files or lists of files are as they were written"))
    return findings


def main(options: Options) -> int:
    """Run the command and return its exit code."""
    findings = check_files(options.path) if options.path else run_checks()
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        print(report(findings))
    return int(any(finding.state == "broken" for finding in findings))

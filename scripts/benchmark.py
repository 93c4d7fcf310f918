#!/usr/bin/env python3
"""Time training steps of MAE-LM, the RoBERTa preset and 3ML's setting beside fairseq, Hugging Face and the authors.

Every subject trains in a process of its own on the same batches, with the same optimizer (torch's fused AdamW), the
same dropout (0.1) and all cores; the processes take turns, a step each. The batches are read, sorted by length and
masked by our task, from a data-bin or invented text. A run that is killed leaves the results so far, with "complete":
false. Speed counts all tokens of the text. Peak
memory is that of tensors: torch.cuda.max_memory_allocated on a GPU, the profiler's allocations on a CPU. FLOPs are
computed by formula. A profile of our own subjects shows where the time of a step goes. cpu-small and cpu-base end
within 12 minutes on two cores.

Other measurements, described by scripts/benchmark.py NAME --help: data, features, prepare, scoring.

Example:
    scripts/benchmark.py --setting cpu-small --json cpu-small.json --figure cpu-small.png
"""

import importlib
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from benchmark.batches import vocabulary_size
from benchmark.settings import SETTINGS, chosen, feasible, subjects
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.output import configure_logging

OTHERS = ("data", "features", "prepare", "scoring")
"""Modules of scripts/benchmark/ with ``BenchmarkOptions`` and ``main``."""


@dataclass(frozen=True)
class StepOptions(Options):
    """Options of the benchmark of training steps.

    Attributes:
        setting: sizes, device and subjects.
        json: JSON file for all results, written again after every step of all subjects.
        authors_repo: importable copy of github.com/yumeng5/MAE-LM.
        data_bin: data-bin of mae-lm prepare to take the batches from (default: invented text).
        only: comma-separated names of the only subjects to measure, without sweeps.
        minutes: no subject and no step starts later (default: the setting's).
        steps: timed steps per subject (default: the setting's).
        figure: PNG file for a plot of speed and memory.
    """

    setting: Literal[*SETTINGS]
    json: OutputFile
    authors_repo: Directory | None = None
    data_bin: Directory | None = None
    only: Annotated[str, Argument("NAME[,NAME]")] | None = None
    minutes: Annotated[float, Argument("N", above=0)] | None = None
    steps: Count | None = None
    figure: OutputFile | None = None


def main(words: list[str]) -> None:
    """Measure, print the results, and write the files."""
    configure_logging()
    if words[:1] and words[0] in OTHERS:
        module = importlib.import_module(f"benchmark.{words[0]}")
        module.main(parse(module.BenchmarkOptions, words[1:], module.__doc__, f"benchmark.py {words[0]}"))
    else:
        measure_steps(parse(StepOptions, words, __doc__, "benchmark.py"))


def measure_steps(options: StepOptions) -> None:
    """Measure training steps, print the table, and write the files."""
    from benchmark import report
    from benchmark.figure import draw
    from benchmark.measurement import measure

    setting = feasible(SETTINGS[options.setting])
    if options.data_bin:
        setting = replace(setting, data_bin=str(options.data_bin), vocab_size=vocabulary_size(options.data_bin))
    setting = replace(setting, minutes=options.minutes or setting.minutes)
    if options.only:
        setting = chosen(setting, options.only, options.authors_repo)
    groups = subjects(setting, options.authors_repo)
    if options.authors_repo and not any(subject.kind == "authors" for group in groups for subject in group):
        raise UserError(f"--authors-repo: --setting {options.setting} does not measure the authors' code; remove it")

    def save(results) -> None:
        write_json(options.json, report.as_json(results))

    results = measure(setting, groups, options.steps or setting.steps, save=save)
    print(report.table(results))
    if options.figure:
        draw(results, options.figure)


if __name__ == "__main__":
    with errors_end_the_program():
        main(sys.argv[1:])

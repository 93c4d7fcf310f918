"""Measurement of training steps in groups of processes that alternate step by step."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchmark.batches import Batch, Case, draw_batch, write_batch
from benchmark.processes import Process, SubjectFailed
from benchmark.settings import Setting, Subject

PROFILED_STEPS = 2


@dataclass
class Row:
    """Measurements of a subject on one batch."""

    subject: Subject
    case: Case
    text_tokens: int
    predicted_tokens: int
    flops: int
    peak_memory: int = 0
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Loss of each timed step in nats per predicted token; all steps use the same batch."""
    operators: dict[str, float] = field(default_factory=dict)
    """Seconds per step of each operator, of our own subjects in eager mode."""

    @property
    def tokens_per_second(self) -> float:
        return self.text_tokens / median(self.seconds)


@dataclass
class Results:
    """All measurements of a run."""

    setting: Setting
    rows: list[Row] = field(default_factory=list)
    matrix_gflops: dict[str, list[float]] = field(default_factory=lambda: {"fp32": [], "bf16": []})
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons of failed subjects, by title."""


def measure(
    setting: Setting, groups: list[list[Subject]], steps: int, report: Callable[[str], None] = print
) -> Results:
    """Train every subject for ``steps`` timed steps on each of its batches.

    Args:
        setting: the benchmark's setting.
        groups: groups of subjects whose processes run at the same time, with alternating steps.
        steps: number of timed steps.
        report: function that receives progress messages.
    """
    results = Results(setting)
    deadline = time.monotonic() + 60 * setting.minutes
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        batches = _prepare(setting, groups, Path(name))
        matrix = [Subject(f"matrix_{precision}", "matrix_product", precision) for precision in results.matrix_gflops]
        products = _start(matrix, setting, Path(name), results, stack)
        for number, group in enumerate(groups, 1):
            names = ", ".join(subject.title for subject in group)
            if time.monotonic() > deadline:
                report(f"[{number}/{len(groups)}] skipped: {names}")
                results.failed.update((s.title, "skipped: the time limit of this setting was reached") for s in group)
                continue
            report(f"[{number}/{len(groups)}] {names}")
            with contextlib.ExitStack() as group_stack:
                processes = _start(group, setting, Path(name), results, group_stack)
                _measure_group(processes, products, batches, steps, results)
    return results


def _prepare(setting: Setting, groups: list[list[Subject]], directory: Path) -> dict[Case, Batch]:
    """Draw all batches, and write them and a dictionary of invented words to ``directory``."""
    words = setting.vocab_size - 5  # four special tokens before them, <mask> after them
    (directory / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(words)), encoding="utf-8")
    cases = {case for group in groups for subject in group for case in subject.cases}
    batches = {case: draw_batch(case, setting.vocab_size) for case in cases}
    for case, batch in batches.items():
        write_batch(directory, case, batch)
    return batches


def _start(
    subjects: list[Subject], setting: Setting, directory: Path, results: Results, stack: contextlib.ExitStack
) -> list[Process]:
    """Start all processes at once, and return those that start successfully."""
    threads = torch.get_num_threads()  # all cores, or OMP_NUM_THREADS
    started = []
    for subject in subjects:
        started.append(Process(subject, setting, directory, threads))
        stack.callback(started[-1].close)
    alive = []
    for process in started:
        with _reporting(process, results):
            process.answer()
            alive.append(process)
    return alive


@contextlib.contextmanager
def _reporting(process: Process, results: Results) -> Iterator[None]:
    """Record the reason if a subject fails."""
    try:
        yield
    except SubjectFailed as problem:
        results.failed[process.subject.title] = str(problem)
        process.close()


def _measure_group(
    processes: list[Process], products: list[Process], batches: dict[Case, Batch], steps: int, results: Results
) -> None:
    work = []
    for process in processes:
        with _reporting(process, results):
            for case in process.subject.cases:
                work.append((process, _warm_up(process, case, batches[case], results.setting)))
    for _ in range(steps):
        for product in products:
            if product.subject.title not in results.failed:
                with _reporting(product, results):
                    results.matrix_gflops[product.subject.precision] += product.ask("rate", "", 1)
        for process, row in work:
            if process.subject.title not in results.failed:
                with _reporting(process, results):
                    _time_step(process, row)
    for process, row in work:
        if process.subject.title not in results.failed and process.subject.profiled:
            with _reporting(process, results):
                row.operators = process.ask("operators", row.case.file, PROFILED_STEPS)
    results.rows += [row for process, row in work if row.seconds]


def _warm_up(process: Process, case: Case, batch: Batch, setting: Setting) -> Row:
    """Run the steps that are not timed: one that compiles, if needed, and one whose memory is measured."""
    if process.subject.compiled:
        process.ask("train", case.file, 1)
    flops = process.subject.flops(setting, batch)
    row = Row(process.subject, case, batch.text_tokens, batch.predicted, flops)
    row.peak_memory = process.ask("memory", case.file, 1)
    return row


def _time_step(process: Process, row: Row) -> None:
    (step,) = process.ask("train", row.case.file, 1)
    if step["predicted"] != row.predicted_tokens:
        raise SubjectFailed(f"it predicted {step['predicted']} tokens instead of {row.predicted_tokens}")
    row.seconds.append(step["seconds"])
    row.losses.append(step["loss"])

"""Measurement of training steps in groups of processes that alternate step by step."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchmark.batches import Batch, Case, record_batch, write_batch, write_text
from benchmark.processes import Process, SubjectFailed
from benchmark.settings import Setting, Subject
from mae_lm_fairseq.cost.flops import Positions

PROFILED_STEPS = 2
BATCHES_OF_TEXT = 64
"""Size of the invented text: of so many of the largest batches."""


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
    """All measurements of a run, or those made so far."""

    setting: Setting
    rows: list[Row] = field(default_factory=list)
    matrix_gflops: dict[str, list[float]] = field(default_factory=dict)
    """Rates of the matrix product by precision; those of fp32 and bf16 are measured wherever the machine has them."""
    failed: dict[str, str] = field(default_factory=dict)
    """Reasons of failed subjects, by title."""
    batches: dict[str, list[Positions]] = field(default_factory=dict)
    """Numbers of positions of each row of the batches."""
    complete: bool = False
    """Whether the run has ended."""

    def __post_init__(self):
        for precision in {"fp32": 0, "bf16": 0} | dict.fromkeys(self.setting.precisions):
            if precision in self.setting.left_out:
                self.failed[precision] = "left out: this CPU has no instructions for it"
            else:
                self.matrix_gflops.setdefault(precision, [])


def measure(
    setting: Setting,
    groups: list[list[Subject]],
    steps: int,
    report: Callable[[str], None] = print,
    save: Callable[[Results], None] = lambda results: None,
) -> Results:
    """Train every subject for ``steps`` timed steps on each of its batches.

    Args:
        groups: groups of subjects whose processes run at the same time, with alternating steps.
        steps: number of timed steps.
        report: function that receives progress messages.
        save: function that receives the results so far, again and again.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        run = _Run(Results(setting), Path(name), steps, save)
        save(run.results)
        run.prepare(groups)
        precisions = run.results.matrix_gflops
        matrix = [Subject(f"matrix_{precision}", "matrix_product", precision) for precision in precisions]
        products = run.start(matrix, stack)
        for number, group in enumerate(groups, 1):
            report(f"[{number}/{len(groups)}] {', '.join(subject.title for subject in group)}")
            with contextlib.ExitStack() as group_stack:
                run.measure_group([] if run.skips(*group) else run.start(group, group_stack), products)
            save(run.results)
        run.results.complete = True
        save(run.results)
    return run.results


class _Run:
    """A running measurement."""

    def __init__(self, results: Results, directory: Path, steps: int, save: Callable[[Results], None]):
        self.results, self.setting = results, results.setting
        self.directory, self.steps, self.save = directory, steps, save
        self.deadline = time.monotonic() + 60 * results.setting.minutes
        self.batches: dict[Case, Batch] = {}

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def skips(self, *subjects: Subject) -> bool:
        """Return whether the time is over, and record that subjects are skipped then."""
        if self.is_late:
            reason = f"skipped: the time limit of {self.setting.minutes:g} minutes was reached"
            self.results.failed.update((subject.title, reason) for subject in subjects)
        return self.is_late

    def prepare(self, groups: list[list[Subject]]) -> None:
        """Write all batches and the dictionary to the directory."""
        cases = sorted({case for group in groups for subject in group for case in subject.cases}, key=str)
        if self.setting.data_bin:
            source = Path(self.setting.data_bin)
            shutil.copy(source / "dict.txt", self.directory)
        else:
            source = self.directory
            tokens = max((case.rows * case.length for case in cases), default=0)
            write_text(source, self.setting.vocab_size, BATCHES_OF_TEXT * tokens)
        for case in cases:
            self.batches[case] = record_batch(source, case)
            self.results.batches[str(case)] = self.batches[case].samples()
            write_batch(self.directory, case, self.batches[case])

    def start(self, subjects: list[Subject], stack: contextlib.ExitStack) -> list[Process]:
        """Start all processes at once, and return those that start successfully."""
        threads = torch.get_num_threads()  # all cores, or OMP_NUM_THREADS
        started = []
        for subject in subjects:
            started.append(Process(subject, self.setting, self.directory, threads, self.deadline))
            stack.callback(started[-1].close)
        alive = []
        for process in started:
            with self.reporting(process):
                process.answer()
                alive.append(process)
        return alive

    @contextlib.contextmanager
    def reporting(self, process: Process) -> Iterator[None]:
        """Record the reason if a subject fails."""
        try:
            yield
        except SubjectFailed as problem:
            self.results.failed[process.subject.title] = str(problem)
            process.close()

    def measure_group(self, processes: list[Process], products: list[Process]) -> None:
        """Measure subjects whose processes have started."""
        work = []
        for process in processes:
            with self.reporting(process):
                for case in () if self.skips(process.subject) else process.subject.cases:
                    work.append((process, self.warm_up(process, case)))
        for number in range(self.steps):
            if number and self.is_late:
                break
            self.measure_products(products)
            for process, row in self.alive(work):
                with self.reporting(process):
                    self.time_step(process, row)
            self.save(self.results)
        for process, row in self.alive(work):
            if process.subject.profiled and not self.is_late:
                with self.reporting(process):
                    row.operators = process.ask("operators", row.case.file, PROFILED_STEPS)

    def alive(self, work: list[tuple[Process, Row]]) -> Iterator[tuple[Process, Row]]:
        """Yield the work of the subjects that have not failed yet."""
        return ((process, row) for process, row in work if process.subject.title not in self.results.failed)

    def measure_products(self, products: list[Process]) -> None:
        """Measure the machine's rate once in every precision."""
        for product in products:
            if product.subject.title not in self.results.failed:
                with self.reporting(product):
                    self.results.matrix_gflops[product.subject.precision] += product.ask("rate", "", 1)

    def warm_up(self, process: Process, case: Case) -> Row:
        """Run the steps that are not timed: one that compiles, if needed, and one whose memory is measured."""
        if process.subject.compiled:
            process.ask("train", case.file, 1)
        batch = self.batches[case]
        flops = process.subject.flops(self.setting, batch)
        row = Row(process.subject, case, batch.text_tokens, batch.predicted, flops)
        row.peak_memory = process.ask("memory", case.file, 1)
        return row

    def time_step(self, process: Process, row: Row) -> None:
        """Time a step. A row is a result from its first step."""
        (step,) = process.ask("train", row.case.file, 1)
        if step["predicted"] != row.predicted_tokens:
            raise SubjectFailed(f"it predicted {step['predicted']} tokens instead of {row.predicted_tokens}")
        if not row.seconds:
            self.results.rows.append(row)
        row.seconds.append(step["seconds"])
        row.losses.append(step["loss"])

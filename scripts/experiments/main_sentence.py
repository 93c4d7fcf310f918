#!/usr/bin/env python3
"""Experiment B: whether MAE-LM is better than an MLM when fine-tuned, over pairs of pretrainings on one GPU.

scripts/results/main-sentence has the plan, which was written first. The number of updates follows from a timing at the
beginning of the first slot. Several pairs of models are trained at the same time, each model in a process of its own.
No pair is started that would not end in time; secondary measures come last, and are stopped when the time is over.
OUT/main-sentence.json is written after every measure, and the same command resumes. --choose-rates is the choice of
the learning rates, on CPUs, before.

Example:
    scripts/experiments/main_sentence.py --data main-sentence-data --out slot-1
    scripts/experiments/main_sentence.py --data main-sentence-data --out slot-2 --slot 2 --updates 3000
    scripts/experiments/main_sentence.py --data main-sentence-data --out rates --device cpu --choose-rates
    scripts/experiments/main_sentence.py --out rehearsal --device cpu --smoke
"""

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

START = time.monotonic()
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]  # neither this package nor scripts/ need be installed

from experiments.one_model import (  # noqa: E402
    CHOICE_OF_RATE,
    FINE_TUNING_RATES,
    FINE_TUNING_SEEDS,
    PRIMARY,
    PRIMARY_TASKS,
    SECONDARY,
    SIZES,
    TASKS,
    TIMING,
    Job,
)
from experiments.sentence_data import FILE, LENGTH, load, save, smoke_data  # noqa: E402
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Options, parse  # noqa: E402
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import file_sha256, make_output_directory, read_json, write_json  # noqa: E402
from mae_lm_fairseq.utils.signals import signals_as_errors  # noqa: E402
from mae_lm_fairseq.utils.versions import provenance  # noqa: E402

RESULTS, RATES = "main-sentence.json", ROOT / "scripts/results/main-sentence/rates.json"
PAIRS = 6
MOST_TOKENS, FEWEST_UPDATES = 60_000_000, 2000
TRIED_RATES, RATE_UPDATES, PROBE_MARGIN = (5e-4, 1e-3), 1200, 0.5
MARGIN, RESERVE, END = 20.0, 60.0, 8.0
"""Seconds: that a pair should end before the time is over, for secondary measures, and to write and end."""


class Member(NamedTuple):
    """A model: arm, seed and learning rate of its pretraining."""

    arm: str
    seed: int
    rate: float

    def owns(self, row: dict[str, Any]) -> bool:
        """Return whether a row is of this model."""
        return (row["arm"], row["seed"], row["rate"]) == self


class Group(NamedTuple):
    """Models that are measured at the same time; ``must_end`` if it is started only where it ends in time."""

    members: tuple[Member, ...]
    measures: tuple[str, ...]
    must_end: bool


@dataclass(frozen=True)
class MainSentenceOptions(Options):
    """Options of the experiment.

    Attributes:
        out: directory for main-sentence.json.
        data: what prepare_main_sentence.py wrote; not for --smoke, which makes its own.
        slot: 1 for seeds 1 to 6, 2 for seeds 7 to 12.
        device: cpu for --choose-rates and --smoke.
        smoke: rehearse every step with one pair of tiny models.
        choose_rates: choose the learning rates of both arms.
        updates: updates of every pretraining; slot 2 needs those of slot 1 (default: as many as there is time for).
        seconds: time from start to end.
        at_once: pairs that are trained at the same time; twice as many for secondary measures.
        cuda_graphs: pretrain on batches of fixed sizes, launched as CUDA graphs; on a CPU, a rehearsal.
    """

    out: Directory
    data: Directory | None = None
    slot: Literal[1, 2] = 1
    device: Literal["cuda", "cpu"] = "cuda"
    smoke: bool = False
    choose_rates: bool = False
    updates: Count | None = None
    seconds: Annotated[float, Argument("S", above=0)] = 570.0
    at_once: Count = 3
    cuda_graphs: bool = False

    def __post_init__(self):
        super().__post_init__()
        if (self.data is None) != self.smoke:
            raise ValueError("data is needed, and only --smoke has its own")
        if self.slot == 2 and self.updates is None:
            raise ValueError("updates is needed for slot 2: the number in slot 1's main-sentence.json")


def updates_that_fit(seconds: float, startup: float, update: float, fine_tuning: float, most: int) -> int:
    """Return the number of updates of a pretraining, in steps of 50.

    Args:
        seconds: time for a pair.
        startup: seconds until its processes train.
        update: seconds per update of pretraining.
        fine_tuning: seconds of all primary fine-tunings.
        most: largest number.
    """
    fitting = (seconds - startup - fine_tuning) / update
    return max(min(FEWEST_UPDATES, most), min(most, int(fitting) // 50 * 50))


def remaining_seconds(rows: list[dict[str, Any]], arm: str, names: list[str]) -> float | None:
    """Return how long an arm needs for some measures, by the slowest so far; None if one has not been measured."""
    measured: dict[str, float] = {}
    for row in rows:
        if row["arm"] == arm:
            measured[row["name"]] = max(row["seconds"], measured.get(row["name"], 0.0))
    return sum(measured[name] for name in names) if measured.keys() >= set(names) else None


def chosen_rates(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the rate of each arm: the one with the lower loss, unless its last layer's probe is lower by a margin."""
    chosen = {}
    for arm in ("MLM", "MAE-LM"):
        values = {rate: {} for rate in TRIED_RATES}
        for row in rows:
            if row["arm"] == arm:
                values[row["rate"]] |= {"loss": row["loss"]} if row["name"] == "pretraining" else {"last": row["last"]}
        best, other = sorted(TRIED_RATES, key=lambda rate: values[rate]["loss"])
        is_damaged = values[best]["last"] < values[other]["last"] - PROBE_MARGIN
        chosen[arm] = other if is_damaged else best
    return chosen


class Experiment:
    """A slot, a choice of rates or a rehearsal: the record, the processes that run, and the clock."""

    def __init__(self, options: MainSentenceOptions):
        self.options, self.path = options, options.out.resolve() / RESULTS
        self.size = "smoke" if options.smoke else "rates" if options.choose_rates else "main"
        self.data = (options.data or options.out / "data").resolve()
        if options.smoke and not (self.data / FILE).exists():
            save(self.data, smoke_data())
        self.rates: dict[str, float] = {}
        if not options.choose_rates:
            self.rates = {"MLM": 1e-3, "MAE-LM": 1e-3} if options.smoke else read_json(RATES, lambda x: x["rates"])
        settings = {"size": self.size, "slot": options.slot, "updates": options.updates, "rates": self.rates}
        settings["data"] = file_sha256(self.data / FILE)
        if options.cuda_graphs:  # the results without are older than the option
            settings["cuda_graphs"] = True
        if self.path.exists():
            self.record = read_json(self.path)
            if self.record["settings"] != settings:
                raise UserError(
                    f"{self.path} has other settings or data: {self.record['settings']}; choose another --out"
                )
        else:
            updates = options.updates or (RATE_UPDATES if options.choose_rates else None)
            self.record = {"settings": settings, **provenance(), "id": uuid.uuid4().hex, "updates": updates}
            self.record |= {"planned_seconds": None, "timing": [], "rows": [], "errors": [], "starts": 0}
        self.record["starts"] += 1
        self.scratch = Path(tempfile.gettempdir()) / f"main-sentence-{self.record['id']}"
        self.scratch.mkdir(exist_ok=True)
        self.running: dict[subprocess.Popen, tuple[Group, Member, float]] = {}
        self.events: queue.Queue[tuple[subprocess.Popen, dict[str, Any] | None]] = queue.Queue()

    def run(self) -> None:
        """Time, if that is needed, and then do everything that fits."""
        try:
            groups = self.groups()
            if self.record["updates"] is None:
                self.work([Group(group.members, TIMING, False) for group in groups[: self.options.at_once]])
                self.plan()
            self.work(groups)
        finally:
            self.stop()
        if self.options.choose_rates and all(not self.missing(*group) for group in groups):
            self.record["rates"] = chosen_rates(self.record["rows"])
        self.write()

    def groups(self) -> list[Group]:
        """Return everything to do, the most important first."""
        if self.options.choose_rates:
            members = [Member(arm, 1, rate) for rate in TRIED_RATES for arm in ("MLM", "MAE-LM")]
            return [Group((member,), CHOICE_OF_RATE, True) for member in members]
        first = 1 + PAIRS * (self.options.slot - 1)
        seeds = range(first, first + (1 if self.options.smoke else PAIRS))
        pairs = [tuple(Member(arm, seed, rate) for arm, rate in self.rates.items()) for seed in seeds]
        third = [(Member("reset", seed, self.rates["MAE-LM"]),) for seed in seeds]
        stages = (pairs, PRIMARY, True), (pairs, SECONDARY, False), (third, PRIMARY, True)
        return [Group(members, *stage) for models, *stage in stages for members in models]

    def plan(self) -> None:
        """Choose the number of updates, so that all pairs fit."""
        timing = self.record["timing"]
        if not timing:
            raise UserError(f"no process could be timed: {self.record['errors']}")
        startup, update, fine_tuning = (
            max(row[name] for row in timing) for name in ("startup", "update", "fine_tuning")
        )
        sets, runs = load(self.data).tasks, len(FINE_TUNING_RATES) * len(FINE_TUNING_SEEDS)
        count = sum(TASKS[task].epochs * (len(sets[task]["train"]) // TASKS[task].batch) for task in PRIMARY_TASKS)
        fine_tuning *= 1.1 * runs * count  # the evaluation, and batches that are larger than CoLA's
        waves = 1 if self.options.smoke else math.ceil(PAIRS / self.options.at_once)
        most = 40 if self.options.smoke else MOST_TOKENS // (SIZES[self.size].sequences * LENGTH)
        seconds = (self.left() - RESERVE - MARGIN) / waves
        updates = updates_that_fit(seconds, startup, update, fine_tuning, most)
        self.record |= {"updates": updates, "planned_seconds": startup + updates * update + fine_tuning}
        self.write()

    def work(self, waiting: list[Group]) -> None:
        """Start groups in their order, and record what they measure, until all is done or the time is over."""
        waiting = list(waiting)
        while self.left() > END:
            self.start(waiting)
            if not self.running:
                return
            with contextlib.suppress(queue.Empty):
                self.receive(*self.events.get(timeout=1))
        self.stop()

    def start(self, waiting: list[Group]) -> None:
        """Start and remove those of the waiting groups that may run now; also remove those that would not end."""
        for group in list(waiting):
            at_once = self.options.at_once * (1 if group.must_end else 2)
            busy = {member for _, member, _ in self.running.values()}
            if len({running for running, *_ in self.running.values()}) >= at_once or busy & {*group.members}:
                return
            waiting.remove(group)
            missing = [
                (member, names) for member in group.members if (names := self.missing_of(member, group.measures))
            ]
            if group.must_end and self.left() < self.needed(missing) + MARGIN:
                print(f"not started, for lack of time: {group.members}", flush=True)
                continue
            for member, names in missing:
                if names[0] in (*TIMING, "pretraining") or self.weights(member).exists():
                    self.launch(group, member, names)

    def missing_of(self, member: Member, measures: tuple[str, ...]) -> list[str]:
        """Return the measures that a model lacks: all of them, if its weights were lost between two starts."""
        rows = [row for row in self.record["rows"] if member.owns(row)]
        names = [name for name in measures if name not in {row["name"] for row in rows}]
        if names and "pretraining" in measures and not self.weights(member).exists():
            self.record["rows"] = [row for row in self.record["rows"] if not member.owns(row)]
            return list(measures)
        return names

    def missing(self, members: tuple[Member, ...], measures: tuple[str, ...], _: bool) -> list[str]:
        return [name for member in members for name in self.missing_of(member, measures)]

    def needed(self, missing: list[tuple[Member, list[str]]]) -> float:
        """Return the seconds that models need for their measures, by what others took, or by the plan."""
        rows, planned = self.record["rows"], self.record["planned_seconds"] or 0.0
        arms = {member.arm: "MAE-LM" if member.arm == "reset" else member.arm for member, _ in missing}
        found = [remaining_seconds(rows, arms[member.arm], names) for member, names in missing]
        return max((planned if one is None else one for one in found), default=0.0)

    def launch(self, group: Group, member: Member, names: list[str]) -> None:
        where = {"device": self.options.device, "data": str(self.data), "weights": str(self.weights(member))}
        graphs = self.options.cuda_graphs
        job = Job(*member, self.record["updates"] or 0, self.size, measures=names, graphs=graphs, **where)
        paths = [str(ROOT), str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        with open(self.log(member), "w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "experiments.one_model", json.dumps(asdict(job))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        self.running[process] = group, member, time.monotonic()
        threading.Thread(target=self.listen, args=(process,), daemon=True).start()

    def listen(self, process: subprocess.Popen) -> None:
        """Pass the rows of a process to the main thread, and then its end."""
        with contextlib.suppress(ValueError):  # an incomplete line of a process that was killed
            for line in process.stdout:
                self.events.put((process, json.loads(line)))
        process.wait()
        self.events.put((process, None))

    def receive(self, process: subprocess.Popen, row: dict[str, Any] | None) -> None:
        """Record a row, or the end of a process."""
        _, member, began = self.running[process]
        if row is None:
            del self.running[process]
            if process.returncode:
                log = self.log(member).read_text()[-2000:]
                self.record["errors"].append({"model": member, "code": process.returncode, "log": log})
        else:
            is_timing = row["name"] in TIMING
            row |= {"startup": time.monotonic() - began - row["seconds"]} if is_timing else {}
            self.record["timing" if is_timing else "rows"].append(row)
            print(f"{self.left():.0f} s left: {member.arm} {member.seed}: {row['name']}", flush=True)
        self.write()

    def stop(self) -> None:
        """End all processes, and record what they had measured."""
        for process in self.running:
            process.kill()
        while self.running:
            process, row = self.events.get()
            if row is None:
                del self.running[process]
            else:
                self.receive(process, row)

    def write(self) -> None:
        write_json(self.path, self.record)

    def left(self) -> float:
        return math.inf if self.options.choose_rates else self.options.seconds - (time.monotonic() - START)

    def weights(self, member: Member) -> Path:
        return self.scratch / "{}-{}-{:g}.pt".format(*member)

    def log(self, member: Member) -> Path:
        return self.weights(member).with_suffix(".log")


def main(options: MainSentenceOptions) -> None:
    """Run a slot, the choice of rates, or the rehearsal."""
    make_output_directory(options.out)
    experiment = Experiment(options)
    with signals_as_errors():
        experiment.run()
    record = experiment.record
    print(f"{experiment.path}: {len(record['rows'])} rows, {record['updates']} updates, {len(record['errors'])} errors")
    if "rates" in record:
        print(f"rates: {record['rates']}")


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(MainSentenceOptions, sys.argv[1:], __doc__, "main_sentence.py"))

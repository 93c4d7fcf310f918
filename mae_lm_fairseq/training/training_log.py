"""Reader for the output of ``fairseq-train --log-format json``.

Pass the printed output. fairseq 0.12's ``--log-file`` has neither losses nor numbers of updates, because its handler is
attached to the trainer's logger and not to the progress bar's.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

NATS_PER_BIT = math.log(2)
"""fairseq logs losses in bits, rounded to three digits, which is a precision of 0.0004 nats."""
_TAIL = 1 << 14
_PHASES = {
    b'num_updates": "': "training",
    b"Start iterating over samples": "training",
    b"begin validation on": "validating",
    b"Preparing to save checkpoint": "saving",
    b"Saved checkpoint": "training",
    b"done training in": "evaluating",
}
"""Phases of a training by what fairseq logs at their beginning."""


def read_records(path: Path, stage: str) -> dict[int, dict]:
    """Return the records of one stage of a log, by number of updates.

    An interrupted run repeats the updates after its last checkpoint in the same file; the later record is used. There
    are none if the file is missing.

    Args:
        stage: ``train_inner`` (every ``--log-interval`` updates), ``train`` (every epoch) or a validation split.
    """
    prefix = "" if stage == "train_inner" else f"{stage}_"
    records = {}
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        _, _, message = line.partition(f" | {stage} | ")
        try:
            content = json.loads(message)
        except json.JSONDecodeError:  # a line of another stage, another message, or a line cut off by a kill
            continue
        if isinstance(content, dict):
            record = {name.removeprefix(prefix): value for name, value in content.items()}
            if "num_updates" in record:
                records[int(record["num_updates"])] = record
    return dict(sorted(records.items()))


def loss_curve(path: Path, stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of updates and the loss of one stage after each of them, in nats."""
    updates, losses = [], []
    for update, record in read_records(path, stage).items():
        if "loss" in record:
            updates.append(update)
            losses.append(float(record["loss"]))
    return np.array(updates, dtype=int), np.array(losses) * NATS_PER_BIT


def seconds_per_update(records: Iterable[Mapping[str, str]]) -> float:
    """Return the median duration of an update in seconds, without validation and saving.

    The median is robust against other load on the machine. It is NaN if there is no measurement.

    Args:
        records: the records of ``train_inner``.
    """
    durations = [duration for duration in map(_seconds, records) if duration > 0]
    return statistics.median(durations) if durations else math.nan


def seconds_of_updates(records: Mapping[int, Mapping[str, str]], updates: int) -> float:
    """Return the duration of the first updates of a training in seconds, with saving, whatever slowed them down.

    Updates without a measurement, after the last record, count as the mean of the others. It is NaN if there is none.

    Args:
        records: the records of ``train_inner``, by number of updates.
    """
    seconds = 0.0
    measured = 0
    before = 0
    for number, record in records.items():
        duration = _seconds(record)
        if number <= updates and duration > 0:
            seconds += duration * (number - before)
            measured += number - before
        before = number
    return updates * seconds / measured if measured else math.nan


def _seconds(record: Mapping[str, str]) -> float:
    """Return the mean duration of the updates of a record; 0 for fairseq's first one, before it has measured any."""
    # Not from the logged updates per second, which have two decimals only.
    tokens_per_second = float(record["wps"])
    return float(record["wpb"]) / tokens_per_second if tokens_per_second > 0 else 0.0


def phase(path: Path) -> str:
    """Return what a training is doing, by the end of its log."""
    end = _end(path, _TAIL)
    last, words = max((end.rfind(words), words) for words in _PHASES)
    return _PHASES[words] if last >= 0 else "starting"


def _end(path: Path, length: int) -> bytes:
    """Return the last bytes of a file; none if it is missing."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - length))
            return log.read()
    except FileNotFoundError:
        return b""


def last_update(path: Path) -> int:
    """Return the number of updates that the log has reached; 0 if it is missing or empty.

    Reads only the end of the file, because progress displays call this repeatedly. A resumed run prints its
    configuration first, so the end is longer then.
    """
    for length in (_TAIL, 16 * _TAIL):
        if updates := re.findall(rb'num_updates": "(\d+)"', _end(path, length)):
            return int(updates[-1])
    return 0

"""What ``fairseq-train --log-format json`` printed, as arrays.

Read what it prints: fairseq 0.12's ``--log-file`` gets neither losses nor numbers of updates, because its handler hangs
on the trainer's logger and not on that of the progress bar.
"""

import json
import math
import re
import statistics
from pathlib import Path

import numpy as np

NATS_PER_BIT = math.log(2)
"""fairseq logs losses in bits, rounded to three digits: to 0.0004 nats."""


def read_records(path: Path, stage: str) -> dict[int, dict]:
    """The records of one stage of a log, by number of updates.

    A run that was interrupted repeats the updates after its last checkpoint in the same file: the later record counts.

    Args:
        path: the log file.
        stage: ``train_inner`` (every ``--log-interval`` updates), ``train`` (every epoch) or a validation split.
    """
    prefix = "" if stage == "train_inner" else f"{stage}_"
    records = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        _, found, message = line.partition(f" | {stage} | ")
        if not found:
            continue
        try:
            record = json.loads(message)
        except json.JSONDecodeError:  # the stage's other messages, or a line cut off by a kill
            continue
        if isinstance(record, dict) and f"{prefix}num_updates" in record:
            records[int(record[f"{prefix}num_updates"])] = {
                name.removeprefix(prefix): value for name, value in record.items()
            }
    return dict(sorted(records.items()))


def loss_curve(path: Path, stage: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of updates, and the loss of one stage in nats after each."""
    records = {
        update: float(record["loss"]) for update, record in read_records(path, stage).items() if "loss" in record
    }
    return np.array(list(records), dtype=int), np.array(list(records.values())) * NATS_PER_BIT


def seconds_per_update(path: Path) -> float:
    """The median over the log of the seconds that an update took, validation and saving left out.

    The median, because what the machine does besides for a while is not the run's.
    """
    # Not from the updates a second, of which fairseq leaves two digits after the point.
    return statistics.median(
        float(record["wpb"]) / float(record["wps"]) for record in read_records(path, "train_inner").values()
    )


def last_update(path: Path) -> int:
    """The number of updates the log has reached; 0 for a log that is absent or still empty.

    Only the end of the file is read, because a progress display asks again and again.
    """
    try:
        with open(path, "rb") as log:
            log.seek(max(0, path.stat().st_size - 16384))
            tail = log.read().decode(errors="replace")
    except FileNotFoundError:
        return 0
    updates = re.findall(r'num_updates": "(\d+)"', tail)
    return int(updates[-1]) if updates else 0

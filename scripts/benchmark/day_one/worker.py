"""Process of a stage: ``python -m benchmark.day_one.worker STAGE FILE DEVICE``."""

import contextlib
import importlib
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmark.day_one.record import ENDED, Record
from benchmark.day_one.scale import SCALES
from benchmark.day_one.stages import STAGES
from mae_lm_fairseq.utils.output import configure_logging


def main(name: str, path: Path, device: str) -> int:
    """Measure everything of a stage, and return the number of failures."""
    configure_logging()
    warnings.simplefilter("ignore")  # hydra's, several for each configuration
    module = importlib.import_module(f"benchmark.day_one.{STAGES[name].module}")
    with working_directory(path.with_suffix("")) as work:
        listed = module.measurements(SCALES[device], work)
        record = Record(path, name, device, len(listed))
        began = time.monotonic()
        for number, (title, measure) in enumerate(listed, 1):
            start = time.monotonic()
            try:
                values = measure()
            except (Exception, SystemExit) as problem:  # the other measurements are still wanted
                traceback.print_exc()
                values = {"error": f"{type(problem).__name__}: {' '.join(str(problem).split())[:500]}"}
            now = time.monotonic()
            record.add(title, {**values, "took_seconds": round(now - start, 3)})
            left = (now - began) / number * (len(listed) - number)
            print(f"  {number}/{len(listed)} {title}: {summary(values)}; about {left:.0f} s left", flush=True)
        record.end(ENDED)
    return record.content["failed"]


@contextlib.contextmanager
def working_directory(work: Path) -> Iterator[Path]:
    """Make a directory for a stage's files; a stage that is killed leaves it, with the logs of its trainings."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    yield work
    shutil.rmtree(work)


def summary(values: dict) -> str:
    """Return the numbers and texts among some values, for the progress message."""
    shown = {key: value for key, value in values.items() if isinstance(value, int | float | str)}
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])

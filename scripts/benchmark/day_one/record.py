"""JSON file of a stage, complete after every measurement."""

from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.files import read_json, write_json
from mae_lm_fairseq.utils.versions import provenance

RUNNING, ENDED = "running", "done"


class Record:
    """Measurements of a stage.

    Args:
        path: the JSON file, which is written at once.
        stage: name of the stage.
    """

    def __init__(self, path: Path, stage: str, device: str, planned: int = 0):
        self.path = path
        self.content = {"stage": stage, "device": device, "state": RUNNING, "planned": planned, "failed": 0}
        self.content |= {**provenance(), "measurements": []}
        write_json(path, self.content)

    @classmethod
    def of(cls, path: Path, content: dict[str, Any]) -> "Record":
        """Return the record of a file that another process has written."""
        record = cls.__new__(cls)
        record.path, record.content = path, content
        return record

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Write a measurement; an ``error`` among the values counts as a failure."""
        self.content["measurements"].append({"name": name, **values})
        self.content["failed"] += "error" in values
        write_json(self.path, self.content)

    def end(self, state: str) -> None:
        """Write how the stage ended."""
        self.content["state"] = state
        write_json(self.path, self.content)


def read_record(path: Path) -> dict[str, Any] | None:
    """Return the content of a stage's file; None if the stage has not run."""
    return read_json(path) if path.exists() else None

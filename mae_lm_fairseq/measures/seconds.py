"""Speed of training, from its log."""

from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from mae_lm_fairseq.measures.measure import Data, Measure, ModelToMeasure, Value
from mae_lm_fairseq.training.training_log import read_records, seconds_per_update


@dataclass(frozen=True, kw_only=True)
class Seconds(Measure):
    """Speed of training: median seconds per update, and tokens per update."""

    kind: ClassVar = "seconds"
    values: ClassVar = (Value("per_update"), Value("tokens_per_update"))

    def check(self, data: Data) -> None:
        """Do nothing: the log is written by the training."""

    def measure(self, model: ModelToMeasure) -> dict[str, float | None]:
        """Return median seconds and mean number of tokens per update, from the log."""
        records = []
        for updates, record in read_records(model.log, "train_inner").items():
            if model.timed is None or updates in model.timed:
                records.append(record)
        if not records:  # the updates are fewer than --log-interval
            return dict.fromkeys(self.value_names())
        tokens = fmean(float(record["wpb"]) for record in records)
        return {"per_update": seconds_per_update(records), "tokens_per_update": tokens}

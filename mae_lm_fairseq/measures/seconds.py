"""Speed and cost of training, from its log and options."""

from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from mae_lm_fairseq.measures.measure import Data, Measure, ModelToMeasure, Value
from mae_lm_fairseq.training.training_log import read_records, seconds_of_updates, seconds_per_update


@dataclass(frozen=True, kw_only=True)
class Seconds(Measure):
    """Speed of training: median seconds per update, and tokens per update."""

    kind: ClassVar = "seconds"
    values: ClassVar = (Value("per_update"), Value("tokens_per_update"))

    def check(self, data: Data) -> None:
        """Do nothing: the log is written by the training."""

    def measure(self, model: ModelToMeasure) -> dict[str, float | None]:
        """Return median seconds and mean number of tokens per update, from the log."""
        by_updates = read_records(model.log, "train_inner")
        records = [record for updates, record in by_updates.items() if model.timed is None or updates in model.timed]
        if not records:  # the updates are fewer than --log-interval
            return dict.fromkeys(self.value_names())
        tokens = fmean(float(record["wpb"]) for record in records)
        return {"per_update": seconds_per_update(records), "tokens_per_update": tokens}


@dataclass(frozen=True, kw_only=True)
class Cost(Seconds):
    """Cost of training: updates, tokens of full sequences, FLOPs of their matrix products by formula, and seconds."""

    kind: ClassVar = "cost"
    values: ClassVar = (Value("updates"), Value("tokens"), Value("flops"), Value("seconds"))

    def measure(self, model: ModelToMeasure) -> dict[str, float | None]:
        """Return the cost of the updates so far. The seconds are those of the log, with saving for resuming.

        The FLOPs are None if no formula describes the model.
        """
        from mae_lm_fairseq.trained.checkpoint_file import load_as_data  # needs torch
        from mae_lm_fairseq.training.estimate import tokens_and_flops  # needs fairseq

        state = load_as_data(model.path, mapped=True)
        updates = state["optimizer_history"][-1]["num_updates"]
        cost = tokens_and_flops(state["cfg"], model.data.data_bin, updates)
        seconds = seconds_of_updates(read_records(model.log, "train_inner"), updates)
        return {"updates": updates, **cost, "seconds": seconds}

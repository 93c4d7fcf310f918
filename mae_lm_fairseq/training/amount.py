"""Amount of training data: tokens per update, and updates."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Amount of training data.

    Attributes:
        batch_size: sequences per batch of one process.
        accumulated: batches per update of one process.
        processes: number of processes.
        tokens: maximum number of tokens per sequence.
        updates: number of updates; 0 if it is not limited.
        max_tokens: maximum number of tokens per batch.
    """

    batch_size: int
    accumulated: int
    processes: int
    tokens: int
    updates: int
    max_tokens: int | None = None

    @classmethod
    def of(cls, cfg: Any, processes: int) -> "Amount":
        """Return the amount of a configuration of fairseq-train."""
        return cls(
            batch_size=cfg.dataset.batch_size,
            accumulated=cfg.optimization.update_freq[0],
            processes=processes,
            tokens=cfg.task.tokens_per_sample,
            updates=cfg.optimization.max_update,
            max_tokens=cfg.dataset.max_tokens,
        )

    @property
    def tokens_per_update(self) -> int:
        """Number of tokens per update, if all sequences are full."""
        per_batch = self.batch_size * self.tokens
        return min(per_batch, self.max_tokens or per_batch) * self.accumulated * self.processes

    def describe(self) -> str:
        """Return the amount in one sentence."""
        sequences = self.batch_size * self.accumulated * self.processes
        counted = "1 process" if self.processes == 1 else f"{self.processes} processes"
        updates = f"{self.updates:,} updates" if self.updates else "any number of updates"
        batches = f"x {self.accumulated} accumulated x {counted}"
        if self.max_tokens:
            return f"at most {self.max_tokens:,} tokens and {self.batch_size} sequences per batch {batches}; {updates}"
        return (
            f"{sequences:,} sequences ({self.batch_size} per batch {batches}) x {self.tokens} tokens = "
            f"{self.tokens_per_update:,} tokens per update at most; {updates}"
            + (f" = {self.tokens_per_update * self.updates:,} tokens" if self.updates else "")
        )


def no_stock_class(cfg: Any) -> str | None:
    """Return a warning if the model that a training makes has no stock class of ``transformers``."""
    if not (cfg.model.pre_norm and cfg.model.relative_buckets):
        return None
    return (
        "mae-lm export and mae-lm adapt refuse models of --pre-norm with a relative position bias, which transformers "
        "has no class for; --relative-buckets 0 leaves the bias out"
    )


def short_schedule(cfg: Any) -> str | None:
    """Return a warning if a training ends before its learning rate has decayed."""
    updates, total = cfg.optimization.max_update, getattr(cfg.lr_scheduler, "total_num_update", 0)
    if not 0 < updates < total:
        return None
    return (
        f"--max-update {updates} ends the training before the learning rate has decayed, which it does at "
        f"--total-num-update {total:.0f}; add --total-num-update {updates}"
    )

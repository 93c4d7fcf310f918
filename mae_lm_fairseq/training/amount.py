"""Amount of training data, and warnings about a training, from the configuration of fairseq-train."""

from typing import Any


def tokens_per_update(cfg: Any, processes: int) -> int:
    """Return the number of tokens per update of a configuration of fairseq-train, if all sequences are full."""
    per_batch = cfg.dataset.batch_size * cfg.task.tokens_per_sample
    return min(per_batch, cfg.dataset.max_tokens or per_batch) * cfg.optimization.update_freq[0] * processes


def describe_amount(cfg: Any, processes: int) -> str:
    """Return the amount of training data of a configuration of fairseq-train in one sentence."""
    batch_size, accumulated = cfg.dataset.batch_size, cfg.optimization.update_freq[0]
    number, tokens = cfg.optimization.max_update, tokens_per_update(cfg, processes)
    updates = f"{number:,} updates" if number else "any number of updates"
    counted = "1 process" if processes == 1 else f"{processes} processes"
    batches = f"x {accumulated} accumulated x {counted}"
    if cfg.dataset.max_tokens:
        return f"at most {cfg.dataset.max_tokens:,} tokens and {batch_size} sequences per batch {batches}; {updates}"
    return (
        f"{batch_size * accumulated * processes:,} sequences ({batch_size} per batch {batches}) x "
        f"{cfg.task.tokens_per_sample} tokens = {tokens:,} tokens per update at most; {updates}"
        + (f" = {tokens * number:,} tokens" if number else "")
    )


def warn_not_exportable(cfg: Any) -> str | None:
    """Return a warning if the model that a training makes has no stock class of ``transformers``."""
    if not (cfg.model.pre_norm and cfg.model.relative_buckets):
        return None
    return (
        "mae-lm export and mae-lm adapt refuse models of --pre-norm with a relative position bias, which transformers "
        "has no class for; --relative-buckets 0 leaves the bias out"
    )


def warn_short_schedule(cfg: Any) -> str | None:
    """Return a warning if a training ends before its learning rate has decayed."""
    updates, total = cfg.optimization.max_update, getattr(cfg.lr_scheduler, "total_num_update", 0)
    if not 0 < updates < total:
        return None
    return (
        f"--max-update {updates} ends the training before the learning rate has decayed, which it does at "
        f"--total-num-update {total:.0f}; add --total-num-update {updates}"
    )

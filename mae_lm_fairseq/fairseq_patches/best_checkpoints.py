"""Patch of how fairseq keeps the best checkpoints."""

from collections.abc import Callable
from typing import Any

from fairseq import checkpoint_utils

from mae_lm_fairseq.fairseq_patches.patching import patch, replaced


@patch(checkpoint_utils, "save_checkpoint")
def keep_as_many_as_asked(save: Callable, cfg: Any, *args, **kwargs) -> Any:
    """Let ``--keep-best-checkpoints N`` keep N checkpoints.

    fairseq saves a checkpoint among the best if it is better than the worst of those that are kept, also while there
    are fewer than N. After a good first checkpoint, it therefore keeps that one alone.
    """
    if cfg.keep_best_checkpoints <= 0:
        return save(cfg, *args, **kwargs)
    listed = checkpoint_utils.checkpoint_paths
    worst = "-inf" if cfg.maximize_best_checkpoint_metric else "inf"
    suffix = cfg.checkpoint_suffix or ""
    imaginary = f"checkpoint.best_{cfg.best_checkpoint_metric}_{worst}{suffix}.pt"

    def with_room(path: str, pattern: str, keep_match: bool = False) -> list:
        """Return the checkpoints, with an imaginary one that any other is better than while there are too few."""
        paths = listed(path, pattern=pattern, keep_match=keep_match)
        if not pattern.startswith(r"checkpoint\.best_") or len(paths) >= cfg.keep_best_checkpoints:
            return paths
        # fairseq sorts from the highest value to the lowest one.
        return [*paths, imaginary] if cfg.maximize_best_checkpoint_metric else [imaginary, *paths]

    with replaced(checkpoint_utils, "checkpoint_paths", with_room):
        return save(cfg, *args, **kwargs)

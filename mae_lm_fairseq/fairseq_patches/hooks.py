"""Methods that the patched fairseq calls on models and tasks that have them. All others train as in fairseq."""

from typing import Any, Protocol, runtime_checkable

import torch
from fairseq.data.iterators import EpochBatchIterator


@runtime_checkable
class ModelHooks(Protocol):
    """A model that prepares its training, and checks what it starts from."""

    def begin_training(self, device: torch.device) -> None:
        """Prepare for training on a device. Called when the trainer is created."""

    def check_checkpoint(self, filename: str, state: dict[str, Any], resumes: bool = False) -> None:
        """Raise a UserError if the content of a checkpoint does not fit. Called before anything is restored from it.

        Args:
            resumes: whether the state of the optimizer is also restored.
        """


@runtime_checkable
class TaskHooks(Protocol):
    """A task that checks its data, knows the update of each batch, and says what a training has reached."""

    @classmethod
    def check_data(cls, cfg: Any) -> None:
        """Raise a UserError if the data are damaged. Called in the first process, before a training."""

    @classmethod
    def closing_summary(cls, cfg: Any) -> str:
        """Return what a training has reached. Called in the first process, after it."""

    def number_batches(self, iterator: EpochBatchIterator, updates: int, per_update: int) -> None:
        """Take note of the update of the next batch. Called before an epoch begins, or goes on after resuming.

        Args:
            updates: updates before that of the next batch.
            per_update: batches of one process per update.
        """

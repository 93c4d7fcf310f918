"""Hyperparameters of fine-tuning that differ between tasks and sizes."""

from dataclasses import dataclass

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.training.settings import COLUMNS, DEVELOPMENT


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning.

    Attributes:
        learning_rates: the learning rates to try.
        batch_size: sequences per update.
        weight_decay: of AdamW.
        epochs: passes over the training set.
    """

    learning_rates: tuple[float, ...]
    batch_size: int
    weight_decay: float
    epochs: int


def for_size(architecture: str, published: Recipe, ours: Recipe) -> Recipe:
    """Return the published recipe for base and large, and our own for tiny and small."""
    _, size = ARCHITECTURES[architecture]
    return ours if COLUMNS[size] == DEVELOPMENT else published

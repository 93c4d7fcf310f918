"""Recipes of fine-tuning, for what the options leave open."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning; a batch is the sequences of an update."""

    learning_rates: tuple[float, ...]
    batch_size: int
    weight_decay: float
    epochs: int


FOR_SMALL_MODELS = Recipe((5e-4,), batch_size=16, weight_decay=0.01, epochs=10)
"""Our recipe for tiny and small models, where a task has no other."""

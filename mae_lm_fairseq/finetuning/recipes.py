"""Recipes of fine-tuning, for what the options leave open."""

from dataclasses import dataclass

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.trained.conversion import architecture_of
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.settings import DEVELOPMENT, RECIPE_OF_SIZE


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fine-tuning; a batch is the sequences of an update."""

    learning_rates: tuple[float, ...]
    batch_size: int
    weight_decay: float
    epochs: int


FOR_SMALL_MODELS = Recipe((5e-4,), batch_size=16, weight_decay=0.01, epochs=10)
"""Our recipe for tiny and small models, where a task has no other."""


def recipe_for(start: Description, published: Recipe) -> Recipe:
    """Return the published recipe for a base or large model, and our own for a tiny or small one."""
    _, size = ARCHITECTURES[architecture_of(start)]
    return FOR_SMALL_MODELS if RECIPE_OF_SIZE[size] == DEVELOPMENT else published

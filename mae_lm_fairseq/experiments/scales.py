"""How much the quickstart and the reproduction train and measure."""

from dataclasses import dataclass

from mae_lm_fairseq.experiments import docstrings


@dataclass(frozen=True)
class Recipe:
    """How a full run and a smoke run differ.

    Args:
        packages: whose docstrings are read.
        most_bytes: how much of a user's corpus is read.
        vocabulary: size of the sentencepiece model.
        updates: of both models.
        warmup: updates until the learning rate is reached.
        validate_every: updates between two validations, and two checkpoints.
    """

    packages: tuple[str, ...]
    most_bytes: int
    vocabulary: int
    updates: int
    warmup: int
    validate_every: int


FULL = Recipe(docstrings.PACKAGES, 40_000_000, 3000, updates=2000, warmup=500, validate_every=200)
SMOKE = Recipe(("stdlib", "numpy"), 4_000_000, 1500, updates=60, warmup=20, validate_every=20)


@dataclass(frozen=True)
class Scale:
    """How much is trained and measured.

    Args:
        size: of the architectures.
        updates: of pretraining.
        warmup: until the learning rate of pretraining is reached.
        checkpoints: how many of each run of pretraining are fine-tuned, at equal distances.
        rank_seeds: of the MLM and of MAE-LM, before and after fine-tuning: the papers' point is their ranks.
        seeds: of everything else.
        rank_tokens: of validation text whose states are ranked.
        finetuning_updates: at most.
        learning_rate: of fine-tuning.
        text: what the text is made of where none is given.
    """

    size: str
    updates: int
    warmup: int
    checkpoints: int
    rank_seeds: int
    seeds: int
    rank_tokens: int
    finetuning_updates: int
    learning_rate: float
    text: Recipe


SCALES = {
    "smoke": Scale("tiny", 20, 8, 2, 2, 2, 1_500, 10, 3e-4, SMOKE),
    "tiny": Scale("tiny", 2_000, 500, 4, 5, 3, 30_000, 1_000, 3e-4, FULL),
    "small": Scale("small", 20_000, 2_000, 4, 5, 3, 50_000, 4_000, 5e-5, FULL),
}

"""Scales of the quickstart and the reproduction."""

from dataclasses import dataclass

from mae_lm_fairseq.experiments import docstrings


@dataclass(frozen=True)
class Recipe:
    """Size of a full run or a smoke run of the quickstart.

    Args:
        packages: packages whose docstrings are read.
        max_bytes: maximum number of bytes read from a user's corpus.
        vocabulary: size of a trained tokenizer.
        updates: number of updates of both models.
        warmup: warm-up updates.
        validate_every: number of updates between validations and checkpoints.
    """

    packages: tuple[str, ...]
    max_bytes: int
    vocabulary: int
    updates: int
    warmup: int
    validate_every: int


FULL = Recipe(docstrings.PACKAGES, 40_000_000, 3000, updates=2000, warmup=500, validate_every=200)
SMOKE = Recipe(("stdlib", "numpy"), 4_000_000, 1500, updates=60, warmup=20, validate_every=20)


@dataclass(frozen=True)
class Scale:
    """Size of a reproduction.

    Args:
        size: size of the architectures.
        updates: number of pretraining updates.
        warmup: warm-up updates of pretraining.
        checkpoints: number of equidistant checkpoints of each pretraining run that are fine-tuned.
        rank_seeds: number of seeds of the MLM and of MAE-LM, before and after fine-tuning, whose ranks are the papers'
            main point.
        seeds: number of seeds of everything else.
        rank_tokens: number of validation tokens for the measurement of ranks.
        finetuning_updates: maximum number of fine-tuning updates.
        learning_rate: learning rate of fine-tuning.
        text: source of the text if the user gives none; None if this scale needs the user's.
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
    text: Recipe | None


SCALES = {
    "smoke": Scale("tiny", 20, 8, 2, 2, 2, 1_500, 10, 3e-4, SMOKE),
    "tiny": Scale("tiny", 2_000, 500, 4, 5, 3, 30_000, 1_000, 3e-4, FULL),
    "small": Scale("small", 20_000, 2_000, 4, 5, 3, 50_000, 4_000, 5e-5, FULL),
    # As many tokens as BERT.
    "base": Scale("base", 125_000, 10_000, 4, 5, 3, 50_000, 4_000, 5e-5, None),
}

"""The plan of an adaptation: a study of one model, which starts from a trained one and is measured before and after."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from mae_lm_fairseq.measures.evaluation import Evaluate
from mae_lm_fairseq.measures.measure import Data
from mae_lm_fairseq.study.adapt_options import Options, retrieval
from mae_lm_fairseq.study.objectives import OBJECTIVES, objective_of
from mae_lm_fairseq.study.plan import Model, Plan, PlannedMeasure, Train
from mae_lm_fairseq.trained.conversion import predicts
from mae_lm_fairseq.trained.huggingface.importer import network_options
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.training.command import (
    Optimisation,
    Settings,
    as_options,
    common_settings,
    merge,
    warmup_updates,
)
from mae_lm_fairseq.training.keys import values_of_words
from mae_lm_fairseq.training.settings import settings
from mae_lm_fairseq.utils.typed import Document

LONGEST = 512
"""Maximum of the default of ``--tokens-per-sample``."""
MEASUREMENT = {"tokens": 50_000, "pseudo_tokens": 2_000, "mask_prob": 0.15, "seed": 1}
"""Options of ``mae-lm evaluate``, for a training of :data:`FULLY_MEASURED` tokens or more."""
FULLY_MEASURED = 2_000_000
"""Number of training tokens whose computation is about ten times that of the two measurements."""
LEAST_MEASURED = 1 / 40
"""Fraction of the measurement for the shortest trainings."""
START, INITIAL, DATA, HELD_OUT = "start", "initial", "data-bin", "held-out.txt"
"""Names of what an adaptation makes before it trains."""


def plan_of(model: Pretrained, options: Options, measures: Sequence[PlannedMeasure]) -> Plan:
    """Return the plan of a training that starts from ``initial``, and of its measures.

    Args:
        model: the model to train.
        measures: what is measured of ``start`` and of the trained model.
    """
    network = _as_in_plans(network_options(model))
    chosen = as_options(training_settings(model, options)) | network
    # The recipe is for pretraining from random weights. What is not chosen here is fairseq's default, which False says.
    recipe = as_options(settings(network["arch"]))
    not_ours = dict.fromkeys(recipe.keys() - chosen.keys(), False)

    is_start_measured = any(planned.at == "all" for planned in measures)
    return Plan(
        document=Document("", "adapt"),
        title="Adaptation",
        data=Data(options.out / DATA, options.out / HELD_OUT),
        train=Train(options.updates, warmup_updates(options.updates), (0,) if is_start_measured else ()),
        options=not_ours | chosen | _as_in_plans(options.extra),
        models=(Model("adapted", network["arch"], seeds=(options.seed,), start=options.out / START),),
        measures=tuple(measures),
        contrasts=(),
        rates=None,
    )


def _as_in_plans(words: Sequence[str]) -> dict[str, str | bool]:
    """Return the options of a command line as a plan states them: a flag is true."""
    return {name: " ".join(values) or True for name, values in values_of_words(words).items()}


def training_settings(model: Pretrained, options: Options) -> Settings:
    """Return fairseq's settings but those of the network and those that every study decides on.

    Adam, weight decay and the shape of the schedule are those of task-adaptive pretraining (Gururangan et al., 2020,
    arXiv 2004.10964, Table 14).
    """
    length = options.tokens_per_sample or min(model.config.max_positions, LONGEST)
    accumulated = -(-options.batch_size // max(batch_tokens(), length))
    masking = OBJECTIVES[objective_of(model)].masking
    if options.mask_prob:
        masking = masking | {"mask_prob": options.mask_prob}
    chosen: Settings = {
        "task": {
            "_name": "masked_autoencoder_lm",
            "tokens_per_sample": length,
            "sample_break_mode": "complete_doc",
            "mask_in_encoder": model.mask_in_encoder,
            "freeze_encoder_updates": options.freeze_encoder_updates,
            **masking,
        },
        "criterion": {"_name": "masked_autoencoder_lm"},
        "optimizer": {"layer_lr_decay": options.layer_lr_decay},
        "optimization": {"lr": [options.learning_rate], "update_freq": [accumulated]},
        "dataset": {"max_tokens": max(length, -(-options.batch_size // accumulated)), "num_workers": 1},
        "checkpoint": {
            "finetune_from_model": options.out / INITIAL,
            "save_interval": options.updates + 1,  # a small text has hundreds of epochs
        },
        "common": {"log_interval": max(1, options.updates // 1000)},  # an update can take a minute on a CPU
    }
    if torch.cuda.is_available():
        chosen["model"] = {"autocast": "bf16"}
    optimisation = Optimisation(updates=options.updates, weight_decay=0.01, clip_norm=1.0)
    return merge(common_settings(), optimisation.settings(), chosen)


def batch_tokens() -> int:
    """Return how many tokens may be in memory; a larger batch is accumulated. Encoders of base size fit with it."""
    return 16_384 if torch.cuda.is_available() else 2_048


def measures_of(start: Pretrained, model: Pretrained, options: Options) -> list[PlannedMeasure]:
    """Return what is measured of the trained model, and of the start as far as it predicts.

    Args:
        start: the model before the training.
        model: the model to train, which may have another decoder.
    """
    evaluate = Evaluate(tokens_per_sample=min(128, model.config.max_positions), **evaluation_options(options))
    measures = [PlannedMeasure("evaluation", "all" if predicts(start) else "last", evaluate)]
    if options.questions:
        length = min(LONGEST, model.config.max_positions)  # the same before and after, whatever training's length
        measures.append(PlannedMeasure("retrieval", "all", replace(retrieval(options), tokens_per_sample=length)))
    return measures


def evaluation_options(options: Options) -> dict[str, Any]:
    """Return the options of ``mae-lm evaluate``: fewer tokens for a short training."""
    tokens = options.updates * options.batch_size
    fraction = min(1, max(LEAST_MEASURED, tokens / FULLY_MEASURED))
    return MEASUREMENT | {name: round(fraction * MEASUREMENT[name]) for name in ("tokens", "pseudo_tokens")}

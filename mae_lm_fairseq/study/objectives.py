"""Objectives of pretraining, by the names that ``mae-lm adapt`` gives them."""

from dataclasses import dataclass

from mae_lm_fairseq.trained.conversion import preset_of
from mae_lm_fairseq.trained.reading import Pretrained


@dataclass(frozen=True)
class Objective:
    """An objective of pretraining.

    Attributes:
        name: its name in reports.
        presets: the presets that are trained with it; models of another objective get the first one's decoder.
        masking: options of the task: those of the papers, and BERT's 80/10/10.
    """

    name: str
    presets: tuple[str, ...]
    masking: dict[str, float]


_BERT = {"mask_prob": 0.15, "leave_unmasked_prob": 0.1, "random_token_prob": 0.1}
OBJECTIVES = {
    "mlm": Objective("masked language modelling (MLM)", ("mae_lm_roberta",), _BERT),
    "mae_lm": Objective("MAE-LM", ("mae_lm",), {"mask_prob": 0.15}),
    "3ml": Objective("3ML", ("mae_lm_3ml_self", "mae_lm_3ml_cross"), {"mask_prob": 0.5}),
    "mask_later": Objective("masks that join later", ("mae_lm_mask_later",), {"mask_prob": 0.15}),
    "exlm": Objective("ExLM", ("mae_lm_exlm", "mae_lm_exlm_decoder"), {"mask_prob": 0.15}),
}


def objective_of(model: Pretrained) -> str:
    """Return the objective that a model was trained with: one of :data:`OBJECTIVES`."""
    preset = preset_of(model)
    return next(name for name, objective in OBJECTIVES.items() if preset in objective.presets)

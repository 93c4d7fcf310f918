"""A trained model together with its task."""

from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask

from mae_lm_fairseq.models.mae_lm import MAELMModel


def load_with_task(checkpoint: Path, data: Path, **options: Any) -> tuple[MAELMModel, FairseqTask]:
    """Load a checkpoint in evaluation mode, and its task, whose data are those of a data-bin.

    ``options`` replace those of the training, such as ``mask_prob``.
    """
    overrides = {"data": str(data), **options}
    models, _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], arg_overrides=overrides)
    return models[0].eval(), task

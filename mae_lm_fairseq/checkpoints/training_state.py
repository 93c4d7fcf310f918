"""A bundle in the form of a checkpoint, for fairseq-train to start from."""

from pathlib import Path
from typing import Any

from mae_lm_fairseq.checkpoints.reading import Pretrained, read_bundle
from mae_lm_fairseq.checkpoints.validation import head_names
from mae_lm_fairseq.core.config import ARCHITECTURES, PRESETS, plain_values, preset_config
from mae_lm_fairseq.text.data_bin import dictionary_fingerprint


def read_training_state(bundle: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint with the model of a bundle, and without a state of the optimizer.

    Raises:
        UserError: as for :func:`~mae_lm_fairseq.checkpoints.reading.read_bundle`.
    """
    pretrained = read_bundle(bundle)
    options = plain_values(pretrained.config)
    updates = pretrained.about.get("updates")
    history = {
        "criterion_name": "none",
        "optimizer_name": "none",
        "lr_scheduler_state": {},
        "num_updates": updates if isinstance(updates, int) else 0,
    }
    task = "sentence_prediction" if head_names(pretrained.weights) else "masked_autoencoder_lm"
    return {
        "args": None,
        "cfg": {"model": {"_name": architecture_of(pretrained), **options}, "task": {"_name": task}},
        "model": pretrained.weights,
        "task_state": {"dictionary": dictionary_fingerprint(pretrained.symbols)},
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }


def architecture_of(pretrained: Pretrained) -> str:
    """Return the architecture that a model was trained as.

    If that is unknown, it is the first preset, of base size, that masks and decodes in the same way; or ``mae_lm``.
    """
    name, network = pretrained.about.get("architecture"), pretrained.config
    if name in ARCHITECTURES:
        return name
    for preset in PRESETS:
        config = preset_config(preset, "base")
        if (config.mask_join, config.decoder_attention) == (network.mask_join, network.decoder_attention):
            return f"{preset}_base"
    return "mae_lm"

"""Model options of fairseq (command line and Hydra), their conversion to core.config, and the architectures."""

import re
from dataclasses import Field, dataclass, field, fields, make_dataclass
from enum import Enum
from types import NoneType
from typing import Optional, get_args

from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture
from omegaconf import OmegaConf, open_dict

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskedAutoencoderConfig, plain_values, preset_config
from mae_lm_fairseq.utils.errors import UserError


class Autocast(str, Enum):
    """Precision of matrix products. With ``bf16``, weights, sums, softmax and loss stay in float32."""

    none = "none"
    bf16 = "bf16"


def option_type(option: Field) -> type:
    """Return the type of an option's values, without ``None``: ``int`` for ``int | None``."""
    return next((kind for kind in get_args(option.type) if kind is not NoneType), option.type)


NetworkOptions = make_dataclass(
    "NetworkOptions",
    # The default is None, so that unset options get the architecture's value, on the command line and under Hydra.
    [
        # fairseq's parser understands Optional[int], not int | None.
        (option.name, Optional[option_type(option)], field(default=None, metadata=option.metadata))  # noqa: UP045
        for option in fields(MaskedAutoencoderConfig)
    ],
    bases=(FairseqDataclass,),
)


@dataclass
class MAELMModelConfig(NetworkOptions):
    """Options of the network (:class:`~mae_lm_fairseq.core.config.MaskedAutoencoderConfig`) and of its execution."""

    autocast: Autocast = field(
        default=Autocast.none,
        metadata={"help": "bf16: matrix products in bfloat16 and the rest in float32, on GPUs and CPUs"},
    )
    checkpoint_activations: bool = field(
        default=False, metadata={"help": "recompute each layer in the backward pass instead of keeping its activations"}
    )
    attention_backend: AttentionBackend = field(
        default=AttentionBackend.auto,
        metadata={
            "help": "eager: plain PyTorch; sdpa: torch's fused attention; fused: no padding, for training on GPUs; "
            "auto: eager on CPUs; on GPUs fused in half precision, otherwise sdpa; with --compile always fused"
        },
    )
    compile: bool = field(
        default=False,
        metadata={"help": "compile the layers for training with torch.compile, before the first update"},
    )
    classifier_dropout: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "fine-tuning: dropout in the classification head (default: --dropout)"}
    )
    trained_layers: Optional[int] = field(  # noqa: UP045
        default=None,
        metadata={
            "help": "fine-tuning: train the heads and only the last N layers of the encoder; the layers below, the "
            "embeddings and the position bias keep their weights (default: train everything)"
        },
    )


def core_config(cfg) -> MaskedAutoencoderConfig:
    """Convert fairseq's model configuration to the network configuration.

    Args:
        cfg: model configuration; unset options get the values of its architecture, ``_name``.

    Raises:
        UserError: if options contradict each other.
    """
    fill_in(cfg, getattr(cfg, "_name", None) or "mae_lm")
    options = fields(MaskedAutoencoderConfig)
    values = {option.name: getattr(cfg, option.name) for option in options}
    try:
        for option in options:
            if values[option.name] is not None:
                values[option.name] = option_type(option)(values[option.name])
        return MaskedAutoencoderConfig(**values)
    except ValueError as problem:
        name = re.compile(rf"\b({'|'.join(values)})\b")
        message = name.sub(lambda match: f"--{match[0].replace('_', '-')}", str(problem))
        raise UserError(message) from None


def architecture_values(name: str) -> dict:
    """Return all option values of an architecture such as ``mae_lm_tiny``; ``mae_lm`` is ``mae_lm_base``."""
    return plain_values(preset_config(*ARCHITECTURES[name]))


def fill_in(cfg, architecture: str):
    """Set the unset options (missing or None) of a namespace or configuration to the architecture's values."""
    unset = {}
    for name, value in architecture_values(architecture).items():
        if getattr(cfg, name, None) is None:
            unset[name] = value
    if OmegaConf.is_config(cfg):
        with open_dict(cfg):
            cfg.update(unset)
    else:
        vars(cfg).update(unset)


def register_architectures():
    """Register every architecture for ``--arch``. The model ``mae_lm`` must be registered before."""
    for name in ARCHITECTURES.keys() - {"mae_lm"}:
        register_model_architecture("mae_lm", name)(lambda cfg, name=name: fill_in(cfg, name))
    # register_model registers a function that does nothing, and checkpoints would then lack the values.
    ARCH_CONFIG_REGISTRY["mae_lm"] = lambda cfg: fill_in(cfg, "mae_lm")

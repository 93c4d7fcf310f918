"""torch's fused AdamW as a fairseq optimizer: one kernel for all parameters, on GPUs and CPUs, without apex."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

from mae_lm_fairseq.fairseq_patches.option_checks import pair_of_betas
from mae_lm_fairseq.utils.errors import UserError


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """Options with the names of fairseq's ``adam``, so that switching only changes ``--optimizer``."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas for Adam optimizer"})
    adam_eps: float = field(default=1e-8, metadata={"help": "epsilon for Adam optimizer"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    layer_lr_decay: float = field(
        default=1.0,
        metadata={
            "help": "factor between the learning rate of an encoder layer and that of the layer above it; decoder and "
            "heads have the full rate"
        },
    )
    lr: list[float] = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqOptimizer):
    """AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW(fused=True)``.

    The position of eps differs from fairseq's ``adam``. The update is m / (sqrt(v / (1 - b2^t)) + eps) here, as in the
    paper, and m / (sqrt(v) + eps) * sqrt(1 - b2^t) in fairseq, where eps has more weight in the first updates.

    Raises:
        UserError: if the parameters are in half precision, or ``--adam-betas`` is not a pair of numbers.
    """

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[torch.nn.Parameter]):
        super().__init__(cfg)
        params = list(params)
        if any(param.dtype in (torch.float16, torch.bfloat16) for param in params):
            # The moments have the dtype of the parameters, and squared gradients would underflow in half precision.
            raise UserError(
                "--optimizer fused_adamw does not support --memory-efficient-fp16 and --memory-efficient-bf16; choose "
                "--optimizer adam"
            )
        groups = _by_depth(params, cfg.layer_lr_decay) if cfg.layer_lr_decay != 1 else params
        self._optimizer = torch.optim.AdamW(groups, fused=True, **self.optimizer_config)

    def set_lr(self, lr: float):
        """Set the learning rate, scaled per group by ``--layer-lr-decay``."""
        for group in self.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

    @property
    def optimizer_config(self) -> dict:
        """Settings under torch's names."""
        lr = self.cfg.lr
        return {
            "lr": lr[0] if isinstance(lr, Collection) else lr,
            "betas": pair_of_betas(self.cfg.adam_betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def load_state_dict(self, state_dict: dict, optimizer_overrides: dict | None = None):
        """Load the moments and the learning rate, which not every scheduler sets again.

        The other options stay those of this optimizer. torch would take the saved ones, also whether it is fused, on
        which the place of the numbers of steps depends.
        """
        saved, own = state_dict["param_groups"], self.param_groups
        if len(saved) == len(own):  # torch reports another number of them
            kept = [{name: group[name] for name in group.keys() - {"params", "lr"}} for group in own]
            groups = [group | options for group, options in zip(saved, kept, strict=True)]
            state_dict = state_dict | {"param_groups": groups}
        super().load_state_dict(state_dict, optimizer_overrides)

    @property
    def supports_flat_params(self) -> bool:
        return True


def _by_depth(params: list[torch.nn.Parameter], decay: float) -> list[dict]:
    """Return parameter groups by depth below the heads, which models set as ``param_group``."""
    if not 0 < decay <= 1:
        raise UserError(f"--layer-lr-decay {decay} must be above 0 and at most 1")
    groups = {}
    for param in params:
        groups.setdefault(getattr(param, "param_group", 0), []).append(param)
    if set(groups) == {0}:
        raise UserError(
            f"--layer-lr-decay {decay} finds no layers: it is for mae_lm models, and with --fp16 needs "
            "--fp16-no-flatten-grads"
        )
    return [{"params": group, "lr_scale": decay**depth} for depth, group in sorted(groups.items())]

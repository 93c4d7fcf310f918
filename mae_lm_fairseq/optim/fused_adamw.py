"""torch's fused AdamW as a fairseq optimizer: one kernel for all parameters, on GPUs and CPUs, without apex."""

import ast
import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II

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
    """AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW(fused=True)``, with the updates of fairseq's ``adam``.

    fairseq adds eps before the bias correction, m / (sqrt(v) + eps) * sqrt(1 - b2^t), and torch after it, as the paper:
    m / (sqrt(v / (1 - b2^t)) + eps). They are equal if torch's eps is fairseq's divided by sqrt(1 - b2^t).

    Raises:
        UserError: if the parameters are in half precision.
    """

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[torch.nn.Parameter]):
        super().__init__(cfg)
        params = list(params)
        dtypes = {param.dtype for param in params}
        if not dtypes.isdisjoint({torch.float16, torch.bfloat16}):
            # The moments have the dtype of the parameters, and squared gradients would underflow in half precision.
            raise UserError(
                "--optimizer fused_adamw does not support --memory-efficient-fp16 and --memory-efficient-bf16; choose "
                "--optimizer adam"
            )
        groups = params
        if cfg.layer_lr_decay != 1:
            groups = _by_depth(params, cfg.layer_lr_decay)
        self._optimizer = torch.optim.AdamW(groups, fused=True, **self.optimizer_config)
        self._updates = [0] * len(self.param_groups)

    def step(self, closure=None, scale: float = 1.0, groups=None):
        """Update the parameters that have a gradient.

        A parameter that starts to train later than others of its group has the eps of the group's number of updates.
        """
        eps = [group["eps"] for group in self.param_groups]
        for number, group in enumerate(self.param_groups):
            has_gradient = any(parameter.grad is not None for parameter in group["params"])
            if has_gradient:
                self._updates[number] += 1
                _, beta2 = group["betas"]
                group["eps"] /= math.sqrt(1 - beta2 ** self._updates[number])
        super().step(closure, scale, groups)
        for group, group_eps in zip(self.param_groups, eps, strict=True):
            group["eps"] = group_eps

    def multiply_grads(self, c: float | torch.Tensor):
        """Multiply the gradients. fairseq first makes a second tensor of each."""
        gradients = [parameter.grad for parameter in self.params if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, c)

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn=None) -> torch.Tensor:
        """Clip by a few kernels in all; without apex, fairseq launches two for each parameter."""
        return torch.nn.utils.clip_grad_norm_(list(self.params), max_norm or math.inf)

    def set_lr(self, lr: float):
        """Set the learning rate, scaled per group by ``--layer-lr-decay``."""
        for group in self.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)

    @property
    def optimizer_config(self) -> dict:
        """Settings under torch's names."""
        lr = self.cfg.lr
        if isinstance(lr, Collection):
            lr = lr[0]
        betas = self.cfg.adam_betas  # a list in YAML
        if isinstance(betas, str):
            betas = ast.literal_eval(betas)
        return {
            "lr": lr,
            "betas": tuple(betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }

    def load_state_dict(self, state_dict: dict, optimizer_overrides: dict | None = None):
        """Load the moments and the learning rate, which not every scheduler sets again.

        The other options stay those of this optimizer. torch would take the saved ones, also whether it is fused, on
        which the place of the numbers of steps depends.
        """
        saved = state_dict["param_groups"]
        if len(saved) == len(self.param_groups):  # torch reports another number of them
            ours = map(_options, self.param_groups)
            groups = [group | options for group, options in zip(saved, ours, strict=True)]
            state_dict = state_dict | {"param_groups": groups}
        super().load_state_dict(state_dict, optimizer_overrides)
        # On a GPU, the parameters' own numbers of updates are there, too: reading them in each step would wait for it.
        self._updates = [self._updates_of(group) for group in self.param_groups]

    def _updates_of(self, group: dict) -> int:
        """Return the number of updates of the parameters of a group that have trained longest."""
        updates = 0
        for parameter in group["params"]:
            state = self.optimizer.state.get(parameter)
            if state:
                updates = max(updates, int(state["step"]))
        return updates

    @property
    def supports_flat_params(self) -> bool:
        return True


def _options(group: dict) -> dict:
    """Return the options of a group of parameters, except for the learning rate."""
    return {name: value for name, value in group.items() if name not in ("params", "lr")}


def _by_depth(params: list[torch.nn.Parameter], decay: float) -> list[dict]:
    if not 0 < decay <= 1:
        raise UserError(f"--layer-lr-decay {decay} must be above 0 and at most 1")
    groups = defaultdict(list)
    for param in params:
        depth = getattr(param, "param_group", 0)
        groups[depth].append(param)
    if set(groups) == {0}:
        raise UserError(
            f"--layer-lr-decay {decay} finds no layers: it is for mae_lm models, and with --fp16 needs "
            "--fp16-no-flatten-grads"
        )
    scaled = []
    for depth in sorted(groups):
        scaled.append({"params": groups[depth], "lr_scale": decay**depth})
    return scaled

"""Patches of what fairseq's trainer does on the host in every update, while a GPU waits. Results stay the same."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from fairseq.trainer import Trainer
from omegaconf import DictConfig, ValueNode
from torch import Tensor

from mae_lm_fairseq.fairseq_patches.patching import patch


@patch(DictConfig, "__getattr__")
def read_options_at_once(read: Callable, config: DictConfig, name: str) -> Any:
    """Read an option that has a plain value without the checks of OmegaConf.

    fairseq reads some fifty options per update. OmegaConf looks for flags, missing values and references to other
    options each time, which takes half a millisecond in all. What has no plain value is left to OmegaConf. Nothing is
    copied, so a changed option is seen.
    """
    content = config.__dict__.get("_content")
    node = content.get(name) if isinstance(content, dict) else None
    if isinstance(node, DictConfig) and isinstance(node._value(), dict):
        return node
    if isinstance(node, ValueNode):
        value = node._value()
        is_plain = not isinstance(value, str) or ("${" not in value and value != "???")
        if is_plain:
            return value
    return read(config, name)


@patch(Trainer, "_set_seed")
def seed_generators_in_use(seed: Callable, trainer: Trainer) -> None:
    """Seed the random numbers of CPU and GPUs only, as every update does.

    ``torch.manual_seed`` also keeps a seed for each other kind of device that torch knows, in case that it is used
    later, with a description of the current stack. fairseq copies the state of the generators before, which nobody
    reads.
    """
    if trainer.tpu:
        seed(trainer)
        return
    number = trainer.cfg.common.seed + trainer.get_num_updates()
    torch.default_generator.manual_seed(number)
    if trainer.cuda:
        torch.cuda.manual_seed_all(number)


@patch(Trainer, "_reduce_and_log_stats")
def log_from_the_host(log: Callable, trainer: Trainer, *numbers) -> dict[str, Any]:
    """Copy the numbers to log from the GPU at once.

    fairseq averages them there, in four places and by kernels for single numbers, and waits for each number that it
    rounds.
    """
    if trainer.cuda:
        numbers = on_the_host(numbers)
    return log(trainer, *numbers)


def on_the_host(numbers: Any) -> Any:
    """Return nested lists, tuples and dictionaries with their single numbers, tensors [], on the CPU.

    Those of one type come by one copy.
    """
    tensors_of_type = defaultdict(list)

    def collect(tensor: Tensor) -> None:
        if tensor.dim() == 0:
            tensors_of_type[tensor.device, tensor.dtype].append(tensor)

    utils.apply_to_sample(collect, numbers)
    copies = {}
    for tensors in tensors_of_type.values():
        copied = torch.stack(tensors).cpu()
        copies.update(zip(map(id, tensors), copied, strict=True))
    return utils.apply_to_sample(lambda tensor: copies.get(id(tensor), tensor), numbers)

"""Memory of a training step, from a rehearsal of it on tensors that have shapes but no content.

The real network takes the step, so there is no formula to keep in agreement with it: every allocation is counted, and
nothing is computed. Attention is what a CPU computes, written out; a fused kernel would keep less. What a matrix
product needs inside, and what an allocator loses between blocks, is not counted.
"""

import contextlib
import weakref
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mae_lm_fairseq.analysis.flops import Sample
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.packing import batch_layout

PAD, TOKEN = 1, 4


@dataclass(frozen=True)
class Precision:
    """How fairseq trains in one of its precisions."""

    dtype: torch.dtype
    """Of weights and gradients."""
    optimizer_bytes: int
    """For each parameter. Adam's two moments take 8; beside half precision fairseq keeps a float32 copy of weight and
    gradient, another 8."""
    autocast: bool = False
    """Whether matrix products alone are in bfloat16."""


PRECISIONS = {
    "fp32": Precision(torch.float32, 8),
    "autocast": Precision(torch.float32, 8, autocast=True),
    "bf16": Precision(torch.bfloat16, 16),
    "fp16": Precision(torch.float16, 16),
}
"""By the names in :data:`~mae_lm_fairseq.analysis.planned_run.PRECISIONS`."""


@dataclass(frozen=True)
class Memory:
    """Bytes in use at the moment when a training step uses most, by what they hold."""

    weights: int
    optimizer: int
    """Moments and float32 copies."""
    gradients: int
    """Those that exist at that moment: all of them where gradients are accumulated over several batches."""
    encoder: int
    """What the encoder keeps for the backward pass."""
    decoder: int
    head: int
    """What LM head and loss keep: at most one chunk of logits, and the gradients that are made beside the loss."""
    backward: int
    """What the backward pass works with, activations that it computes again included."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())


class Rehearsal:
    """A network and a batch without content.

    Args:
        config, vocab_size: the network.
        sample, rows: the batch: so many equal samples.
        precision: of the training.
        checkpoint_activations: as the option of that name.
    """

    def __init__(
        self,
        config: MaskedAutoencoderConfig,
        vocab_size: int,
        sample: Sample,
        rows: int,
        precision: Precision = PRECISIONS["fp32"],
        checkpoint_activations: bool = False,
    ):
        self.tensors = FakeTensorMode()
        self.precision = precision
        mask = vocab_size - 1
        tokens = torch.full((rows, sample.sequence), TOKEN)
        tokens[:, sample.visible :] = mask
        # Made from real tokens, because which positions are masked is a question of content.
        batch = (batch_layout(tokens, tokens.eq(mask), PAD, mask), tokens, tokens[tokens.eq(mask)])
        self.layout, self.tokens, self.targets = tree_map_only(Tensor, self.tensors.from_tensor, batch)
        with self.tensors:
            self.network = MaskedAutoencoder(config, vocab_size, PAD, mask)
            for parameter in self.network.parameters():
                parameter.data = parameter.data.to(precision.dtype)
        for stack in self.network.stacks():
            stack.checkpoint_activations = checkpoint_activations

    def step(self, counter: "AllocationCounter | None" = None):
        """Forward and backward pass; gradients stay, and are added to."""
        enter = counter.enter if counter else lambda part: None
        with self.tensors:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision.autocast):
                enter("encoder")
                states = self.network.encode(self.tokens, self.layout)
                enter("decoder")
                states = self.network.decode(states[-1], self.layout)
                enter("head")
                loss, _ = self.network.lm_head.loss(states, self.targets)
            enter("backward")
            loss.backward()


class AllocationCounter(TorchDispatchMode):
    """Counts the bytes of all tensors that come into being while it is active, until they are freed.

    Attributes:
        peak: bytes by part at the moment when there were most.
    """

    def __init__(self):
        super().__init__()
        self.part = ""
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.blocks: dict[int, tuple[str, int]] = {}

    def enter(self, part: str):
        """Count what comes now to ``part``."""
        self.part = part

    def count(self, tensor: Tensor, part: str):
        """Count a tensor's memory to ``part``, to which it may not have belonged before."""
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self.blocks:
            self.live[self.blocks[key][0]] -= size
        else:
            weakref.finalize(storage, self._free, key)
        self.blocks[key] = part, size
        self.live[part] += size
        if self.live.total() > self.peak.total():
            self.peak = self.live.copy()

    def _free(self, key: int):
        part, size = self.blocks.pop(key)
        self.live[part] -= size

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in self.blocks:
                self.count(leaf, self.part)
        return result


def training_memory(rehearsal: Rehearsal, accumulate: bool) -> Memory:
    """What a training step needs.

    Args:
        rehearsal: of the step.
        accumulate: whether gradients of a batch before are there already (``--update-freq`` above 1).
    """
    counter, network = AllocationCounter(), rehearsal.network
    for tensor in (*network.parameters(), *network.buffers()):
        counter.count(tensor, "weights")
    with counter, _gradients_counted(network, counter):
        for _ in range(2 if accumulate else 1):
            rehearsal.step(counter)
    optimizer = rehearsal.precision.optimizer_bytes * sum(parameter.numel() for parameter in network.parameters())
    parts = ("weights", "gradients", "encoder", "decoder", "head", "backward")
    return Memory(optimizer=optimizer, **{part: counter.peak[part] for part in parts})


@contextlib.contextmanager
def _gradients_counted(network: nn.Module, counter: AllocationCounter):
    """Have gradients of parameters counted as such as soon as they are complete."""
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda parameter: counter.count(parameter.grad, "gradients"))
        for parameter in network.parameters()
    ]
    yield
    for hook in hooks:
        hook.remove()

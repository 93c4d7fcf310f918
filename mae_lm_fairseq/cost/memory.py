"""Memory of a training step, measured by running the step on fake tensors.

The real network runs the step, so there is no formula that could become outdated: every allocation is counted, and
nothing is computed. Attention is written out, as on CPUs, or that of the fused kernel, as on GPUs. Memory that
operators use inside, such as the workspace of matrix products, and fragmentation of the allocator are not counted.
"""

import weakref
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.cost.flops import Positions

PAD, TOKEN = 1, 4


@dataclass(frozen=True)
class Precision:
    """One of fairseq's training precisions."""

    dtype: torch.dtype
    """Type of weights and gradients."""
    optimizer_bytes: int
    """Bytes per parameter: 8 for Adam's two moments. With half precision, another 8 for fairseq's float32 copies of the
    weight and its gradient."""
    autocast: bool = False
    """Whether only matrix products are in bfloat16."""


PRECISIONS = {
    "fp32": Precision(torch.float32, 8),
    "autocast": Precision(torch.float32, 8, autocast=True),
    "bf16": Precision(torch.bfloat16, 16),
    "fp16": Precision(torch.float16, 16),
}
"""Precisions by the names in :data:`~mae_lm_fairseq.cost.planned_run.PRECISION_NAMES`."""


@dataclass(frozen=True)
class Memory:
    """Memory in bytes at the peak of a training step, by use."""

    weights: int
    optimizer: int
    """Moments and float32 copies."""
    gradients: int
    """Gradients that exist at the peak: all of them if gradients are accumulated over several batches."""
    encoder: int
    """Activations that the encoder saves for the backward pass."""
    decoder: int
    head: int
    """Memory of the LM head and the loss: at most one chunk of logits, and the gradients that are computed with the
    loss."""
    backward: int
    """Working memory of the backward pass, recomputed activations included."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())


class FakeTrainingStep:
    """A network and a batch of fake tensors, to run a training step on.

    Args:
        positions, rows: the batch: the positions of a sequence, and the number of equal sequences.
        fused: whether attention is that of the fused kernel, as in training on GPUs, in place of eager attention.
    """

    def __init__(
        self,
        config: MaskedAutoencoderConfig,
        vocab_size: int,
        positions: Positions,
        rows: int,
        precision: Precision = PRECISIONS["fp32"],
        checkpoint_activations: bool = False,
        fused: bool = False,
    ):
        self.tensors = FakeTensorMode()
        self.precision = precision
        mask = vocab_size - 1
        tokens = torch.full((rows, positions.sequence), TOKEN)
        tokens[:, positions.sequence - positions.predicted :] = mask
        early = torch.arange(positions.sequence).expand_as(tokens) < positions.visible
        # Start from real tensors: the layout depends on the content, that is on which positions are masked.
        layout = batch_layout(tokens, tokens.eq(mask), PAD, mask, early_masks=early)
        batch = (layout, tokens, tokens[tokens.eq(mask)])
        self.layout, self.tokens, self.targets = tree_map_only(Tensor, self.tensors.from_tensor, batch)
        with self.tensors:
            self.network = MaskedAutoencoder(config, vocab_size, PAD, mask)
            for parameter in self.network.parameters():
                parameter.data = parameter.data.to(precision.dtype)
        for stack in self.network.stacks():
            stack.checkpoint_activations = checkpoint_activations
            if fused:
                stack.attention_backend = AttentionBackend.fused

    def run(self, counter: "AllocationCounter | None" = None):
        """Run the forward and backward pass; gradients accumulate."""
        enter = counter.enter if counter else lambda part: None
        with self.tensors:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision.autocast):
                enter("encoder")
                states = self.network.encode(self.tokens, self.layout)[-1]
                enter("decoder")
                states = self.network.decode(states, self.layout)
                enter("head")
                loss, _ = self.network.lm_head.loss(states, self.targets, self.layout)
            enter("backward")
            loss.backward()


class AllocationCounter(TorchDispatchMode):
    """Dispatch mode that counts the bytes of all tensors allocated while it is active, until they are freed.

    Attributes:
        peak: bytes by part at the moment of highest total use.
    """

    def __init__(self):
        super().__init__()
        self.part = ""
        self.live: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()
        self.blocks: dict[int, tuple[str, int]] = {}

    def enter(self, part: str):
        """Attribute further allocations to ``part``."""
        self.part = part

    def count(self, tensor: Tensor, part: str):
        """Attribute a tensor's memory to ``part``, even if it was attributed to another part before."""
        storage = tensor.untyped_storage()
        key = id(storage)
        size = storage.nbytes()
        if key in self.blocks:
            earlier_part, _ = self.blocks[key]
            self.live[earlier_part] -= size
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


def training_memory(training_step: FakeTrainingStep, accumulate: bool) -> Memory:
    """Measure the memory of a training step.

    Args:
        training_step: the step to run, which serves one measurement.
        accumulate: whether gradients of a previous batch already exist (``--update-freq`` above 1).
    """
    counter = AllocationCounter()
    network = training_step.network
    for tensor in (*network.parameters(), *network.buffers()):
        counter.count(tensor, "weights")
    for parameter in network.parameters():
        if accumulate:
            with training_step.tensors:
                parameter.grad = torch.zeros_like(parameter)
            counter.count(parameter.grad, "gradients")
        parameter.register_post_accumulate_grad_hook(lambda parameter: counter.count(parameter.grad, "gradients"))
    with counter:
        training_step.run(counter)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return Memory(
        weights=counter.peak["weights"],
        optimizer=training_step.precision.optimizer_bytes * parameters,
        gradients=counter.peak["gradients"],
        encoder=counter.peak["encoder"],
        decoder=counter.peak["decoder"],
        head=counter.peak["head"],
        backward=counter.peak["backward"],
    )

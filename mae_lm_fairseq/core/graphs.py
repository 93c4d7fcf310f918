"""Forward and backward pass of batches of fixed sizes as CUDA graphs: one launch in place of a thousand.

A graph is captured for each bucket (:mod:`~mae_lm_fairseq.core.fixed_sizes`), at its first batch, on buffers to which
later batches are copied. As only one graph runs at a time, all share one pool of memory, and all add their gradients to
the same buffers. On a CPU, the function is called on the buffers instead: a rehearsal of everything but the capture.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

WARM_UPS = 2
"""Calls before a capture: the first one compiles and loads kernels, and allocates workspaces."""


class GraphedStep:
    """Computes the gradients of ``function(batch) -> (loss, *others)``, whose outputs are all tensors, by graphs.

    The function must not wait for the device, and its host code must depend on the sizes of the batch alone. What it
    computes is bit-equal to its call on the same batch, dropout included.

    Args:
        parameters: those that train. Their gradients are added to buffers, which begin at zero where ``grad`` is None,
            as after ``zero_grad``, and else at ``grad``.
    """

    def __init__(self, function: Callable[[Any], tuple[Tensor, ...]], parameters: Iterable[Tensor]):
        self.function = function
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        device = self.parameters[0].device
        self.scale = torch.ones((), device=device)
        self.buckets: dict[Hashable, _Buffers] = {}
        self.graphs: dict[Hashable, _Graph] = {}
        self.captures = device.type == "cuda"
        if self.captures:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()

    def __call__(self, bucket: Hashable, batch: Any, scale: float = 1.0) -> tuple[Tensor, ...]:
        """Add the gradients of ``scale`` times the loss of a batch, and return what the function returns.

        Args:
            bucket: batches of the same one have the same structure, sizes, and values that are no tensors.
            batch: tensors on the device of the parameters, in nested tuples, lists or dictionaries.
        """
        self._attach_gradients()
        self.prepare(bucket, batch)
        buffers = self.buckets[bucket]
        buffers.load(batch)
        self.scale.fill_(scale)
        if self.captures:
            return self.graphs[bucket].replay()
        return self._forward_backward(buffers)

    def prepare(self, bucket: Hashable, batch: Any) -> None:
        """Make the buffers of a bucket, and capture its graph, unless that has been done.

        The largest bucket should be the first one, or else the shared memory grows in pieces.
        """
        if bucket in self.buckets:
            return
        self.buckets[bucket] = _Buffers(batch)
        if self.captures:
            self.graphs[bucket] = self._captured(self.buckets[bucket])

    def _forward_backward(self, buffers: "_Buffers") -> tuple[Tensor, ...]:
        outputs = self.function(buffers.batch())
        loss = outputs[0] * self.scale
        loss.backward()
        return tuple(output.detach() for output in outputs)

    def _attach_gradients(self) -> None:
        """Let the gradients be in the buffers, with the values that they have."""
        empty = []
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            if parameter.grad is None:
                empty.append(gradient)
            elif parameter.grad is not gradient:
                gradient.copy_(parameter.grad)
            parameter.grad = gradient
        if empty:
            torch._foreach_zero_(empty)

    def _captured(self, buffers: "_Buffers") -> "_Graph":
        """Capture a graph. The calls before it leave neither gradients nor random numbers behind."""
        gradients = [parameter.grad for parameter in self.parameters]
        random_state = torch.cuda.get_rng_state()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UPS):
                self._drop_gradients()
                self._forward_backward(buffers)
        self._drop_gradients()
        torch.cuda.current_stream().wait_stream(self.stream)
        torch.cuda.set_rng_state(random_state)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        graph = torch.cuda.CUDAGraph()
        # Meanwhile, the thread of the data loader pins memory, which another mode would forbid.
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            outputs = self._forward_backward(buffers)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return _Graph(graph, outputs)

    def _drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


class _Buffers:
    """Memory for the tensors of a batch. What is no tensor is the same in all batches of a bucket."""

    def __init__(self, batch: Any):
        self.leaves, self.structure = pytree.tree_flatten(batch)
        self.leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]

    def batch(self) -> Any:
        """Return the batch that is in the memory."""
        return pytree.tree_unflatten(self.leaves, self.structure)

    def load(self, batch: Any) -> None:
        """Copy a batch to the memory.

        Raises:
            ValueError: if it is not of this bucket. Then a graph would compute with sizes of another batch.
        """
        leaves, structure = pytree.tree_flatten(batch)
        is_equal = structure == self.structure and all(map(_are_alike, self.leaves, leaves))
        if not is_equal:
            raise ValueError("the batch has other sizes than the first one of its bucket")
        buffers = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        torch._foreach_copy_(buffers, tensors, non_blocking=True)


def _are_alike(leaf: Any, other: Any) -> bool:
    """Return whether two tensors have the same shape, or two other values are equal."""
    if isinstance(leaf, Tensor):
        return isinstance(other, Tensor) and leaf.shape == other.shape
    return leaf == other


class _Graph:
    """A captured graph, and the tensors that it writes, whose memory the next graph uses again."""

    def __init__(self, graph: "torch.cuda.CUDAGraph", outputs: tuple[Tensor, ...]):
        self.graph = graph
        self.outputs = outputs

    def replay(self) -> tuple[Tensor, ...]:
        self.graph.replay()
        return tuple(output.clone() for output in self.outputs)

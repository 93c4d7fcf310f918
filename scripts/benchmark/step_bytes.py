#!/usr/bin/env python3
"""Count the bytes that a training step moves outside of matrix products, without a GPU.

Runs the forward pass up to the predicted states and the backward pass of mae_lm_base in float16 on tensors without
content. Attention is SDPA's memory-efficient kernel, the only one of torch 2.13 that takes a trained bias; a bias whose
rows are not aligned is copied, as torch copies it (``pad_bias`` in aten/src/ATen/native/transformers/attention.cpp).
The operator of ``--attention-backend fused`` is counted beside it. Each operator reads its inputs and writes its
outputs once; views move nothing, and matrix products are left out. A GPU's caches and fused kernels would move less.

Example:
    scripts/benchmark/step_bytes.py --json step-bytes.json
"""

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, preset_config
from mae_lm_fairseq.core.packing import batch_layout, to_device
from mae_lm_fairseq.fairseq_patches.patching import replaced
from mae_lm_fairseq.utils.command_line import Count, Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.utils.versions import provenance

VOCABULARY, PAD, TOKEN = 32_000, 1, 4
ALIGNMENT = 8
"""Multiple of elements at which the memory-efficient kernel needs the rows of the bias to begin."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
WRITES_FIRST = ("copy_", "new_zeros")
"""Operators that do not read their first argument."""
READ_TWICE = ("attend_backward",)
"""Operators of two kernels that read the same."""
MOVES_NOTHING = ("detach", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided")


class ByteCounter(TorchDispatchMode):
    """Dispatch mode that counts the bytes that operators read and write.

    Attributes:
        moved: bytes by operator.
        calls: number of calls by operator.
    """

    def __init__(self):
        super().__init__()
        self.moved: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._opname
        if name not in (*PRODUCTS, *MOVES_NOTHING) and not function.is_view:
            self.calls[name] += 1
            read = args[1:] if name in WRITES_FIRST else args
            self.moved[name] += (1 + (name in READ_TWICE)) * _bytes((read, kwargs)) + _bytes(result)
        return result


def _bytes(tree: object) -> int:
    """Return the bytes of all tensors; an expanded dimension is stored once."""
    return sum(
        leaf.itemsize * _stored(zip(leaf.shape, leaf.stride(), strict=True))
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor)
    )


def _stored(dimensions: Iterable[tuple[int, int]]) -> int:
    number = 1
    for size, stride in dimensions:
        number *= size if stride else 1
    return number


def attention_on_a_gpu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """Compute SDPA as torch does on a GPU if the bias is trained, the copy of an unaligned bias included."""
    if bias is not None:
        if any(stride % ALIGNMENT for stride in bias.stride()[:-1]):
            width = bias.shape[-1]
            bias = F.pad(bias, (0, ALIGNMENT - width % ALIGNMENT))[..., :width]
        bias = bias.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, dropout)[0]


def dropout_on_a_gpu(states: Tensor, p: float) -> Tensor:
    """Compute dropout with one kernel, as torch does on a GPU."""
    return torch.native_dropout(states, p, True)[0]


def step_bytes(
    preset: str, rows: int, length: int, mask_prob: float, dtype: torch.dtype, backend: AttentionBackend
) -> ByteCounter:
    """Count the bytes of a step.

    Args:
        rows, length: sequences of a batch and tokens of a sequence.
        mask_prob: probability that a token is masked; rows have different numbers of masks, as in training.
        dtype: of weights and states.
        backend: how attention is computed, ``sdpa`` or ``fused``.
    """
    config = preset_config(*ARCHITECTURES[preset])
    masked = torch.rand(rows, length, generator=torch.Generator().manual_seed(1)) < mask_prob
    mask = VOCABULARY - 1
    tokens = torch.full((rows, length), TOKEN).masked_fill(masked, mask)
    counter = ByteCounter()
    with on_meta_device():
        network = MaskedAutoencoder(config, VOCABULARY, PAD, mask).to("meta", dtype)
    for stack in network.stacks():
        stack.attention_backend = backend
    layout = to_device(batch_layout(tokens, masked, PAD, mask, needs=network.needs()), "meta")
    with (
        counter,
        replaced(F, "scaled_dot_product_attention", attention_on_a_gpu),
        replaced(F, "dropout", dropout_on_a_gpu),
    ):
        states = network.predicted_states(tokens.to("meta"), layout)
        torch.autograd.backward(states, torch.empty_like(states))
    return counter


@dataclass(frozen=True)
class ByteOptions(Options):
    """Options of the count.

    Attributes:
        json: JSON file for the results.
        rows: sequences of the batch.
    """

    json: OutputFile
    rows: Count = 32


def main(options: ByteOptions) -> None:
    """Count, print the operators that move most, and write the file."""
    results = {}
    for preset, backend in product(("mae_lm_base", "mae_lm_roberta_base"), ("sdpa", "fused")):
        counter = step_bytes(preset, options.rows, 512, 0.15, torch.float16, AttentionBackend(backend))
        moved = dict(counter.moved.most_common())
        row = {"bytes": counter.moved.total(), "by_operator": moved, "calls": counter.calls}
        results.setdefault(preset, {})[backend] = row
        print(f"{preset}, {backend}: {counter.moved.total() / 1e9:.1f} GB outside of matrix products")
        for name, size in counter.moved.most_common(12):
            print(f"  {size / 1e9:6.2f} GB  {counter.calls[name]:4} x {name}")
    write_json(options.json, provenance() | {"rows": options.rows, "length": 512, "step": results})


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(ByteOptions, sys.argv[1:], __doc__, Path(__file__).name))

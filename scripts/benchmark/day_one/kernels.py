"""Stage 6: the fused attention kernel: is it right, how fast is it beside sdpa and eager, with which blocks."""

import time
from functools import partial
from pathlib import Path
from statistics import median

import torch

from benchmark.day_one.measures import synchronize
from benchmark.day_one.scale import Scale
from mae_lm_fairseq.core.attention_backends import AttentionBackend, attention_pattern
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import ARCHITECTURES, preset_config
from mae_lm_fairseq.core.dropout import Dropout
from mae_lm_fairseq.core.packing import Layout, batch_layout, to_device

MASK_PROB, DROPOUT = 0.15, 0.1
PAD, TOKEN, MASK = 1, 4, 99
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = ((32, 32), (64, 32), (32, 64), (64, 64), (128, 32), (128, 64))
"""BLOCK_Q and BLOCK_K, of which the kernel's own are one."""


def measurements(scale: Scale, work: Path) -> list:
    """Return the stage's measurements. On a CPU, Triton's interpreter runs the kernel."""
    lengths = (128, 256, 512) if scale.on_gpu else (16,)
    return [
        *((f"difference from eager, {_short(dtype)}", partial(_difference, scale, dtype)) for dtype in DTYPES),
        *(
            (f"{backend.value}, {length} tokens", partial(_time, scale, length, backend))
            for length in lengths
            for backend in (AttentionBackend.fused, AttentionBackend.sdpa, AttentionBackend.eager)
        ),
        *((f"fused, blocks {q} x {k}", partial(_time_blocks, scale, lengths[-1], (q, k))) for q, k in BLOCKS),
    ]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _encoder(scale: Scale) -> torch.nn.Module:
    torch.manual_seed(1)
    config = preset_config(*ARCHITECTURES[scale.preset])
    return MaskedAutoencoder(config, MASK + 1, PAD, MASK).encoder.to(scale.device)


def _visible(scale: Scale, rows: int, length: int) -> Layout:
    """Return the visible positions of sequences whose tokens are masked at random."""
    masked = torch.rand(rows, length, generator=torch.Generator().manual_seed(1)) < MASK_PROB
    tokens = torch.full((rows, length), TOKEN).masked_fill(masked, MASK)
    return to_device(batch_layout(tokens, masked, PAD, MASK), torch.device(scale.device)).visible


def _difference(scale: Scale, dtype: torch.dtype) -> dict:
    """Compare output and gradients with eager attention.

    Raises:
        ValueError: if they differ by more than rounding.
    """
    from mae_lm_fairseq.models.kernel_comparison import TOLERANCES, difference_from_eager

    found = difference_from_eager(_encoder(scale), dtype)
    if not found <= TOLERANCES[dtype]:
        raise ValueError(f"the kernel differs from eager attention by {found:.2%}, more than {TOLERANCES[dtype]:.0%}")
    return {"difference": found}


def _time(scale: Scale, length: int, backend: AttentionBackend) -> dict:
    """Time forward and backward pass of one layer's attention, with dropout, in bfloat16 (CPU: float16)."""
    rows = scale.attention[0] * scale.length // length if scale.on_gpu else 1
    encoder, layout = _encoder(scale), _visible(scale, rows, length)
    attention = encoder.layers[0].attention
    shape = (4, layout.index.numel(), attention.heads, attention.dim // attention.heads)
    dtype = torch.bfloat16 if scale.on_gpu else torch.float16
    *inputs, gradient = torch.randn(shape, device=scale.device).to(dtype)
    leaves = [x.requires_grad_() for x in inputs]
    dropout = Dropout(DROPOUT).train()
    pattern = attention_pattern(layout, layout, encoder.relative_bias, backend)  # which all layers share

    def call() -> float:
        synchronize(scale)
        start = time.perf_counter()
        output = pattern.attend(*leaves, dropout)
        torch.autograd.grad(output, [*leaves, encoder.relative_bias.weight], gradient, retain_graph=True)
        synchronize(scale)
        return time.perf_counter() - start

    first = call()
    return {"first_ms": 1e3 * first, "median_ms": 1e3 * median(call() for _ in range(scale.repetitions))}


def _time_blocks(scale: Scale, length: int, blocks: tuple[int, int]) -> dict:
    from mae_lm_fairseq.core.kernels import fused_attention
    from mae_lm_fairseq.fairseq_patches.patching import replaced

    with replaced(fused_attention, "SMALL_BLOCKS", blocks):
        return _time(scale, length, AttentionBackend.fused)

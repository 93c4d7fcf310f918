"""Forms of the attention kernel that may be faster, as differences from the package's kernel.

Each enters the package only if it is 5 % faster on a GPU. The machine code for an H100 has 33 instructions per pair of
query and key in the forward pass today, 30 with ``opaque`` and ``complete``, 23 with ``words``, too.
"""

import functools
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from mae_lm_fairseq.core.kernels import fused_attention
from mae_lm_fairseq.core.kernels.operator import Pairs, keep

WORD = 32
Differences = tuple[tuple[str, str], ...]
"""Texts of the kernel's source, and what replaces them."""

OPAQUE: Differences = (
    (
        "@triton.jit\ndef _is_kept(",
        '''@triton.jit
def _opaque(x):
    """Return x; LLVM would otherwise round to half precision first, and drop the halves of words one by one."""
    if INTERPRETED:
        return x
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _is_kept(''',
    ),
    (
        "p = tl.where(_is_kept(random, j, DROPPED), p, 0.0)",
        "p = _opaque(tl.where(_is_kept(random, j, DROPPED), p, 0.0))",
    ),
    ("zp, dp = tl.where(is_kept, p, 0.0),", "zp, dp = _opaque(tl.where(is_kept, p, 0.0)),"),
    ("(t_k[None, :] - t_q[:, None] + reach)", "(t_k[None, :] - (t_q[:, None] - reach))"),
)
_OF_A_TILE = (
    "m, l, o, q, t_q, random, {start}, K, V, B, key_positions, stride_k, stride_v, head, reach, k_start, number_of_keys"
)
_CONSTANTS = ("HEAD", "BLOCK_D", "BLOCK_K", "SCALE", "BIAS", "DROPPED", "ACC", "PRECISION")


def complete(source: str) -> str:
    """Return the source with a forward pass that masks nothing in tiles that are full of keys."""
    head, loop = source.split("    for start in range(0, number_of_keys, BLOCK_K):\n", 1)
    body, rest = loop.split("        m = m_new\n", 1)
    body = body.replace("\n        ", "\n    ").removeprefix("    ")
    body = body.replace("_load_tile(", "_load_keys(").replace("HEAD, BLOCK_D)", "HEAD, BLOCK_D, COMPLETE)")
    body = body.replace("mask=is_key, other=0)", "mask=None if COMPLETE else is_key, other=None if COMPLETE else 0)")
    body = body.replace("ACC, PRECISION)\n    m_new", "ACC, PRECISION, COMPLETE)\n    m_new")
    tile = f"""@triton.jit
def _load_keys(X, stride, head, index, is_valid, HEAD: tl.constexpr, BLOCK_D: tl.constexpr, COMPLETE: tl.constexpr):
    if COMPLETE and HEAD == BLOCK_D:
        return tl.load(X + index.to(tl.int64)[:, None] * stride + head * HEAD + tl.arange(0, BLOCK_D)[None, :])
    return _load_tile(X, stride, head, index, is_valid, HEAD, BLOCK_D)


@triton.jit
def _forward_tile(
    {_OF_A_TILE.format(start="start")},
    {", ".join(f"{name}: tl.constexpr" for name in (*_CONSTANTS, "COMPLETE"))},
):
    {body.strip()}
    return m_new, l, o


@triton.jit
def _forward("""
    calls = f"""    complete = number_of_keys // BLOCK_K * BLOCK_K
    for start in range(0, complete, BLOCK_K):
        m, l, o = _forward_tile({_OF_A_TILE.format(start="start")}, {", ".join(_CONSTANTS)}, True)
    if complete < number_of_keys:
        m, l, o = _forward_tile({_OF_A_TILE.format(start="complete")}, {", ".join(_CONSTANTS)}, False)
"""
    head = head.replace(
        'PRECISION: tl.constexpr,\n):  # fmt: skip\n    """Return log2(e) S',
        'PRECISION: tl.constexpr, COMPLETE: tl.constexpr = False,\n):  # fmt: skip\n    """Return log2(e) S',
    )
    head = head.replace(
        'return tl.where(is_key[None, :], s, float("-inf"))',
        'return s if COMPLETE else tl.where(is_key[None, :], s, float("-inf"))',
    )
    return head.replace("@triton.jit\ndef _forward(", tile) + calls + rest


LOAD_RANDOM = "random = tl.load(R + (q_start + i) * heads + head, mask=is_query, other=0) if DROPPED else None"
WORDS: Differences = (
    (
        """    x = random.to(tl.uint32, bitcast=True)[:, None] ^ (keys.to(tl.uint32) * 0x9E3779B9)[None, :]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= DROPPED
""",
        "    return (random[:, None] & (1 << (keys & 31))[None, :]) != 0\n",
    ),
    (LOAD_RANDOM, "random = R + ((q_start + i) * heads + head) * ((reach + 32) // 32)"),
    ("_is_kept(random, j, DROPPED)", "_is_kept(tl.load(random + start // 32), j, DROPPED)"),
    (
        "tl.load(R + (q_start + i) * heads + head, mask=is_query, other=0), j, DROPPED)",
        "tl.load(R + ((q_start + i) * heads + head) * ((reach + 32) // 32) + block), j, DROPPED)",
    ),
    ("*pairs[:4], pairs.random, *numbers", "*pairs[:4], words_of(pairs, numbers[-1]), *numbers"),
    ("import torch\n", "import torch\nfrom benchmark.forms import words_of\n"),
)
"""Dropout bits of 32 keys are one word, drawn once per layer and read by all kernels; BLOCK_K must be 32, the bias
trained."""
_WORDS: dict[Tensor, Tensor] = {}


def words_of(pairs: Pairs, reach: int) -> Tensor | None:
    """Return the words [queries + 64, heads, words] int32, made once for each tensor of random numbers."""
    if pairs.random is None:
        return None
    if pairs.random not in _WORDS:
        _WORDS.clear()
        words = (reach + WORD) // WORD
        bits = keep(pairs.random, words * WORD, pairs.dropout).permute(1, 0, 2).unflatten(2, (words, WORD)).ne(0)
        packed = (bits.long() << torch.arange(WORD, device=bits.device)).sum(3)
        packed = torch.where(packed >= 1 << WORD - 1, packed - (1 << WORD), packed).int()
        # The last block reads behind the end.
        _WORDS[pairs.random] = torch.nn.functional.pad(packed, (0, 0, 0, 0, 0, 2 * WORD))
    return _WORDS[pairs.random]


FORMS = {
    "today": lambda source: source,
    "opaque": lambda source: replaced(source, OPAQUE),
    "opaque, complete": lambda source: complete(replaced(source, OPAQUE)),
    "opaque, complete, words": lambda source: replaced(complete(replaced(source, OPAQUE)), WORDS),
}


def replaced(source: str, differences: Differences) -> str:
    """Return the source with the differences.

    Raises:
        ValueError: if a text is not in the source, because the kernel has changed.
    """
    for old, new in differences:
        if old not in source:
            raise ValueError(f"the kernel has changed: {old!r} is not in it")
        source = source.replace(old, new)
    return source


@functools.cache
def load_form(name: str) -> ModuleType:
    """Return a form of :mod:`~mae_lm_fairseq.core.kernels.fused_attention`; it does not register its operators."""
    source = FORMS[name](Path(fused_attention.__file__).read_text(encoding="utf-8"))
    source = source.split("for _kernel in (attend")[0]
    path = Path(tempfile.mkdtemp(prefix="form-"), "form.py")  # triton reads the source of kernels
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"form_{abs(hash(name))}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

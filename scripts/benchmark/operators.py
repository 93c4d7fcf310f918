"""Where the time goes, by kind of operator."""

KINDS = {
    "matrix products of layers and LM head": ("aten::mm", "aten::addmm"),
    "products of attention, or its kernel": (
        *("aten::bmm", "aten::_scaled_dot_product", "aten::_efficient_attention", "aten::_flash_attention"),
        *("_FusedAttention", "mae_lm_fairseq::attend"),  # _FusedAttention in older results
    ),
    "casts and copies": ("aten::copy_", "aten::_to_copy", "aten::cat", "aten::clone", "aten::empty_strided"),
    "packing and embeddings": ("aten::index", "aten::embedding", "aten::gather", "aten::scatter", "aten::_index"),
    "GELU": ("aten::gelu",),
    "softmax": ("aten::_softmax", "aten::_log_softmax", "aten::logsumexp", "aten::exp_", "aten::amax", "aten::argmax"),
    "layer norm": ("aten::native_layer_norm",),
    "masks of dropout": ("aten::random_", "aten::ge", "_CheapDropout"),
    "other elementwise operators": ("aten::add", "aten::mul", "aten::sub", "aten::fill_", "aten::zero"),
    "gradients of biases, other sums": ("aten::sum",),
    "optimizer": ("aten::_fused_adamw_",),
}
"""Prefixes of the profiler's operator names, by kind; the first kind that matches counts."""
REST = "everything else, Python included"


def by_kind(operators: dict[str, float]) -> dict[str, float]:
    """Return the fraction of the time that each kind of operator takes.

    Args:
        operators: seconds of each operator, without the operators that it calls.
    """
    seconds = dict.fromkeys((*KINDS, REST), 0.0)
    for name, own in operators.items():
        seconds[next((kind for kind, prefixes in KINDS.items() if name.startswith(prefixes)), REST)] += own
    return {kind: own / sum(operators.values()) for kind, own in seconds.items()}

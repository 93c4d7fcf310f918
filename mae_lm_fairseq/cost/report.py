"""Comparison of two plans, as text and as JSON."""

from mae_lm_fairseq.cost.planner import Plan

ROWS = (
    ("masked, %", "mask_prob", 0.01, ".0f"),
    ("parameters, million", "parameters.total", 1e6, ",.1f"),
    ("  encoder, kept afterwards", "parameters.kept", 1e6, ",.1f"),
    ("  decoder", "parameters.decoder", 1e6, ",.1f"),
    ("  head, without embeddings", "parameters.head", 1e6, ",.1f"),
    ("training MFLOP per token of text", "flops_per_token.total", 1e6, ",.1f"),
    ("  encoder", "flops_per_token.encoder", 1e6, ",.1f"),
    ("  decoder", "flops_per_token.decoder", 1e6, ",.1f"),
    ("  head", "flops_per_token.head", 1e6, ",.1f"),
    ("memory per device at its peak, GB", "memory.total", 1e9, ",.2f"),
    ("  weights", "memory.weights", 1e9, ",.2f"),
    ("  gradients", "memory.gradients", 1e9, ",.2f"),
    ("  optimizer, fp32 copies", "memory.optimizer", 1e9, ",.2f"),
    ("  buffer of the exchange", "memory.exchange", 1e9, ",.2f"),
    ("  activations of the encoder", "memory.encoder", 1e9, ",.2f"),
    ("  activations of the decoder", "memory.decoder", 1e9, ",.2f"),
    ("  head, loss, chunk of logits", "memory.head", 1e9, ",.2f"),
    ("  backward pass", "memory.backward", 1e9, ",.2f"),
    ("sent per device and update, GB", "exchanged_bytes_per_update", 1e9, ",.2f"),
    ("updates", "updates", 1, ",.0f"),
    ("hours", "hours", 1, ",.1f"),
    ("device-hours", "device_hours", 1, ",.0f"),
)
"""Label, path in :meth:`~.cost.Plan.as_json`, unit, format."""


def as_json(planned: Plan, reference: Plan) -> dict:
    """Return two plans, and the compute of the first relative to the second."""
    device = vars(planned.run.device)
    return {
        "plans": [planned.as_json(), reference.as_json()],
        "relative_compute": relative_compute(planned, reference),
        "device": device,
    }


def relative_compute(planned: Plan, reference: Plan) -> float:
    """Return the ratio of two plans' FLOPs for the same text."""
    return planned.flops.total / reference.flops.total


def table(planned: Plan, reference: Plan) -> str:
    """Return a table of two plans, with the assumptions behind them."""
    plans, run = [planned, reference], planned.run
    figures = [plan.as_json() for plan in plans]
    lines = [_line("", [plan.run.preset for plan in plans])]
    for label, path, unit, form in ROWS:
        lines.append(_line(label, [format(_figure(figure, path) / unit, form) for figure in figures]))
    lines += [
        _line(f"fits {run.device_kind}", ["yes" if plan.fits else "NO" for plan in plans]),
        "",
        f"relative compute: {relative_compute(planned, reference):.1%} of {reference.run.preset}",
        f"assumed: {run.tokens:,} tokens; {run.devices} x {run.device_kind} at {run.mfu:.0%} of {run.peak / 1e12:.1f} "
        f"TFLOP/s in {run.precision}, {run.device.memory / 1e9:.0f} GB each ({run.device.source})",
    ]
    return "\n".join(lines)


def _line(label: str, values: list[str]) -> str:
    return f"{label:34}" + "".join(f"{value:>27}" for value in values)


def _figure(figures: dict, path: str) -> float:
    for name in path.split("."):
        figures = figures[name]
    return figures

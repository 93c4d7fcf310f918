"""Results of a benchmark: rates, ratios with their FLOP bounds, and the table."""

import functools
import platform
from collections.abc import Iterator
from dataclasses import asdict
from operator import attrgetter
from statistics import median

import torch

from benchmark.measurement import Results, Row
from benchmark.operators import KINDS, REST, by_kind
from benchmark.settings import Setting
from mae_lm_fairseq.utils.versions import provenance

RATIOS = {
    "authors_speedup": ("mae_lm", "authors"),
    # Each code as its users can run it on a CPU: the authors' has no option for bf16. The next entry adds
    # torch.autocast around their loss.
    "authors_speedup_bf16": ("mae_lm_bf16", "authors"),
    "authors_speedup_both_bf16": ("mae_lm_bf16", "authors_bf16"),
    "bf16_speedup": ("mae_lm_bf16", "mae_lm"),
    "mae_lm_step_cost": ("roberta", "mae_lm"),
    "three_ml_step_cost": ("roberta", "three_ml"),
    "roberta_speedup_over_fairseq": ("roberta_plain", "fairseq_roberta"),
    "roberta_speedup_over_fairseq_bf16": ("roberta_plain_bf16", "fairseq_roberta_bf16"),
    "roberta_speedup_over_hf": ("roberta_plain", "hf_roberta"),
    "roberta_speedup_over_hf_bf16": ("roberta_plain_bf16", "hf_roberta_bf16"),
    "roberta_speedup_over_modernbert": ("roberta_plain", "hf_modernbert"),
    "roberta_speedup_over_mpnet": ("roberta", "hf_mpnet"),
    "speedup_over_fairseq_adam": ("mae_lm", "mae_lm_fairseq_adam"),
}
"""Ratios of speeds in tokens/s, the first subject's over the second's; a cost is an inverse speed."""


def as_json(results: Results) -> dict:
    """Return all measurements, and all values derived from them."""
    ratios, bounds = ratios_and_bounds(results)
    return _provenance() | {
        "complete": results.complete,
        "setting": asdict(results.setting),
        "machine": machine(results.setting),
        "matrix_gflops": matrix_rates(results),
        "matrix_gflops_raw": results.matrix_gflops,
        "batches": {
            name: {"tokens": [row.sequence for row in rows], "masks": [row.masked for row in rows]}
            for name, rows in results.batches.items()
        },
        "ratios": ratios,
        "flop_bounds": bounds,
        "rows": [row_as_json(row, results) for row in results.rows],
        "failed": results.failed,
    }


_provenance = functools.cache(provenance)


def machine(setting: Setting) -> dict:
    """Describe the machine of the measurement."""
    gpu = torch.cuda.get_device_name() if setting.device == "cuda" else None
    return {
        "device": gpu or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def matrix_rates(results: Results) -> dict[str, float | None]:
    """Return the median rate of the matrix product in GFLOP/s for each precision; None if it could not be measured."""
    return {precision: median(rates) if rates else None for precision, rates in results.matrix_gflops.items()}


def row_as_json(row: Row, results: Results) -> dict:
    """Return a row of the table."""
    seconds = median(row.seconds)
    return {
        "subject": row.subject.name,
        "precision": row.subject.precision,
        "method": row.subject.method,
        "options": row.subject.options,
        **asdict(row.case),
        "seconds": row.seconds,
        "median_seconds": seconds,
        "spread": (max(row.seconds) - min(row.seconds)) / seconds,
        "text_tokens": row.text_tokens,
        "predicted_tokens": row.predicted_tokens,
        "tokens_per_second": row.tokens_per_second,
        "peak_memory_bytes": row.peak_memory,
        "flops": row.flops,
        "mfu": mfu(row, results),
        "losses": row.losses,
        "operators": row.operators,
        "time_by_kind": by_kind(row.operators) if row.operators else None,
    }


def mfu(row: Row, results: Results) -> float | None:
    """Return a row's FLOP rate as a fraction of the matrix product's rate."""
    rate = matrix_rates(results)[row.subject.precision]
    return rate and row.flops / median(row.seconds) / rate / 1e9


def ratios_and_bounds(results: Results) -> tuple[dict[str, float], dict[str, float]]:
    """Return the ratios between subjects, and their FLOP bounds.

    The bounds are the ratios if all subjects reached the same fraction of the matrix rate.

    Ratios without a suffix use the fastest of our subjects, compiled or with either attention backend; ``..._eager``
    use those that are not compiled.
    """
    ratios, bounds = {}, {}
    for eager in ("", "_eager"):
        for name, pair in RATIOS.items():
            fast, slow = (_entry(results, subject, bool(eager)) for subject in pair)
            if fast and slow:
                ratios[name + eager] = fast.tokens_per_second / slow.tokens_per_second
                bounds[name + eager] = _bound(fast, slow, matrix_rates(results))
        entry = _entry(results, "mae_lm", bool(eager))
        if entry:
            ratios[f"mfu{eager}"], bounds[f"mfu{eager}"] = mfu(entry, results), 1.0
    return ratios, bounds


def _entry(results: Results, name: str, eager: bool) -> Row | None:
    """Return the fastest row of a subject on the default batch (3ML's with half of the text masked)."""
    case = results.setting.case(**({"mask_prob": 0.5} if name.startswith("three_ml") else {}))
    names = {f"{name}_eager", f"{name}_sdpa"} | (set() if eager else {name})
    if not name.startswith(("mae_lm", "roberta", "three_ml")) or name == "mae_lm_fairseq_adam":
        names = {name}
    rows = [row for row in results.rows if row.subject.name in names and row.case == case]
    return max(rows, key=attrgetter("tokens_per_second"), default=None)


def _bound(fast: Row, slow: Row, rates: dict) -> float | None:
    bound = (slow.flops / slow.text_tokens) / (fast.flops / fast.text_tokens)
    if fast.subject.precision != slow.subject.precision:
        top, bottom = rates[fast.subject.precision], rates[slow.subject.precision]
        return top and bottom and bound * top / bottom
    return bound


def table(results: Results) -> str:
    """Format the rows, ratios and failures as text."""
    lines = [
        f"{'subject':26} {'batch':22} {'':4} {'s/step':>8} {'spread':>6} {'tokens/s':>9} {'GFLOP':>8} {'MFU':>5} "
        f"{'MiB':>7}  loss"
    ]
    for row in results.rows:
        figures = row_as_json(row, results)
        lines.append(
            f"{row.subject.name:26} {row.case!s:22} {row.subject.precision} {figures['median_seconds']:8.3f} "
            f"{figures['spread']:6.0%} {figures['tokens_per_second']:9.0f} {row.flops / 1e9:8.0f} "
            f"{_number(figures['mfu'], '.0%'):>5} {row.peak_memory / 2**20:7.0f}  "
            f"{row.losses[0]:.2f} -> {row.losses[-1]:.2f}"
        )
    rates = matrix_rates(results).items()
    lines += ["", "matrix product: " + ", ".join(f"{name} {_number(rate, '.0f')} GFLOP/s" for name, rate in rates), ""]
    lines.append(f"{'ratio':44} {'':>6}  FLOP bound")
    ratios, bounds = ratios_and_bounds(results)
    lines += [f"{name:44} {_number(ratios[name], '.2f'):>6}  {_number(bounds[name], '.2f')}" for name in ratios]
    lines += _time_by_kind(results)
    lines += [f"failed: {name}: {reason}" for name, reason in results.failed.items()]
    return "\n".join(lines)


def _time_by_kind(results: Results) -> Iterator[str]:
    """Yield a table with a column for each profiled row, which the lines above it name."""
    rows = [row for row in results.rows if row.operators]
    if not rows:
        return
    yield "\nwhere the time of a step goes:"
    yield from (f"  ({number}) {row.subject.name}, {row.case}" for number, row in enumerate(rows, 1))
    yield f"{'':40}" + "".join(f"{f'({number})':>6}" for number in range(1, len(rows) + 1))
    fractions = [by_kind(row.operators) for row in rows]
    for kind in (*KINDS, REST):
        yield f"{kind:40}" + "".join(f"{fraction[kind]:6.1%}" for fraction in fractions)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

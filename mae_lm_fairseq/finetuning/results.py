"""Results of a sweep: statistics over the seeds, and the report."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mae_lm_fairseq.utils.output import code, escaped, markdown_table

MODEL = "model"
"""Subdirectory of ``--out`` that holds the bundle of the best run."""


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Return ``median``, ``mean``, ``std`` (sample standard deviation; None for a single value) and ``values``."""
    values = [float(value) for value in values]
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"median": statistics.median(values), "mean": statistics.fmean(values), "std": std, "values": values}


def summary_cell(summary: Mapping[str, Any]) -> str:
    """Return what :func:`summarise` returns in words: the median, and the spread of the seeds."""
    spread = "one seed" if summary["std"] is None else "{mean:.1f} ± {std:.1f}".format(**summary)
    return f"{summary['median']:.1f} ({spread})"


def describe(counts: Mapping[str, int]) -> str:
    """Return counts by name in words."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def report(content: dict[str, Any], selection: str, *, hidden: Sequence[str], ending: str) -> str:
    """Return the text of ``report.md``, given the content of the result file.

    ``selection`` is the display name of the metric that selected the learning rate; metrics whose names have one of the
    suffixes ``hidden`` are left out; ``ending`` is below the table.
    """
    start, settings = content["start"], content["settings"]
    lengths = {"tokens_per_sample": " of up to {} tokens", "doc_stride": ", stride {}"}
    updates = f"{settings['updates']:,} updates of {settings['batch_size']} sequences"
    updates += "".join(text.format(settings[name]) for name, text in lengths.items() if name in settings)
    lines = [
        f"# {escaped(content['task'])}",
        "",
        f"{code(start['_name'])}, from {escaped(start['from'])}"
        + (f": {code(start['checkpoint'])} after {start['updates']:,} updates" if start["checkpoint"] else ""),
        "",
        f"{updates}. Development set, in per cent: median (mean ± standard deviation), and every seed. The learning "
        f"rate with the highest median {selection} is {content['learning_rate']:g}.",
        "",
        f"Data: {escaped('; '.join(f'{split}: {describe(counts)}' for split, counts in content['data'].items()))}.",
        "",
    ]
    if content["options"]:
        lines += [f"Options of fairseq-train, which override the recipe's: {code(' '.join(content['options']))}.", ""]
    rows = [
        [lr, name, summary_cell(summary), ", ".join(f"{value:.1f}" for value in summary["values"])]
        for lr, of_lr in content["grid"].items()
        for name, summary in of_lr.items()
        if not name.endswith(tuple(hidden))
    ]
    table = markdown_table(["learning rate", "metric", "median (mean ± std)", "seeds"], rows)
    ending = f"{ending} `{MODEL}/` holds the best model, for predictions.".lstrip()
    return "\n".join([*lines, table, "", ending, ""])

"""Results of a sweep: statistics over the seeds, and the report."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mae_lm_fairseq.utils.output import markdown_table

MODEL = "model"
"""Subdirectory of ``--out`` that holds the bundle of the best run."""


def prediction_names(split: str) -> tuple[str, str]:
    """Return patterns of the names of the files with the predictions of a set, in any format."""
    return f"{split}_predictions", f"{split}_predictions.*"


@dataclass(frozen=True)
class Summary:
    """Values of one metric over several seeds, in their order."""

    median: float
    mean: float
    std: float | None
    """Sample standard deviation (n - 1); None for a single seed."""
    values: list[float]

    def __str__(self) -> str:
        spread = "one seed" if self.std is None else f"{self.mean:.1f} ± {self.std:.1f}"
        return f"{self.median:.1f} ({spread})"


def summarise(values: Sequence[float]) -> Summary:
    """Return the median, mean and standard deviation of at least one value."""
    values = [float(value) for value in values]
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.median(values), statistics.fmean(values), std, values)


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
        f"# {content['task']}",
        "",
        f"`{start['_name']}`, from {start['from']}"
        + (f": `{start['checkpoint']}` after {start['updates']:,} updates" if start["checkpoint"] else ""),
        "",
        f"{updates}. Development set, in per cent: median (mean ± standard deviation), and every seed. The learning "
        f"rate with the highest median {selection} is {content['learning_rate']:g}.",
        "",
        f"Data: {'; '.join(f'{split}: {describe(counts)}' for split, counts in content['data'].items())}.",
        "",
    ]
    if content["options"]:
        lines += [f"Options of fairseq-train, which override the recipe's: `{' '.join(content['options'])}`.", ""]
    rows = [
        [lr, name, str(Summary(**summary)), ", ".join(f"{value:.1f}" for value in summary["values"])]
        for lr, of_lr in content["grid"].items()
        for name, summary in of_lr.items()
        if not name.endswith(tuple(hidden))
    ]
    table = markdown_table(["learning rate", "metric", "median (mean ± std)", "seeds"], rows)
    ending = f"{ending} `{MODEL}/` holds the best model, for predictions.".lstrip()
    return "\n".join([*lines, table, "", ending, ""])


def print_summary(metrics: Mapping[str, Mapping[str, Any]], out: Path) -> None:
    """Print the chosen metrics of ``results.json``, and where the report is."""
    for name, metric in metrics.items():
        print(f"{name}: median {metric['median']:.1f}, seeds {', '.join(f'{value:.1f}' for value in metric['values'])}")
    print(f"report: {out / 'report.md'}")

"""Results of a sweep: statistics over the seeds, and the report."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import MODEL
from mae_lm_fairseq.utils.output import code, escaped, markdown_table, with_spread


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Return ``median``, ``mean``, ``std`` (sample standard deviation; None for a single value) and ``values``."""
    values = [float(value) for value in values]
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"median": statistics.median(values), "mean": statistics.fmean(values), "std": std, "values": values}


def summary_cell(summary: Mapping[str, Any]) -> str:
    """Return what :func:`summarise` returns in words: the median, and the spread of the seeds."""
    spread = "one seed"
    if summary["std"] is not None:
        spread = with_spread(summary["mean"], summary["std"], ".1f", ".1f")
    return f"{summary['median']:.1f} ({spread})"


def seed_values(summary: Mapping[str, Any]) -> str:
    """Return the value of every seed in words."""
    return ", ".join(f"{value:.1f}" for value in summary["values"])


def end_of_path(path: Path) -> str:
    """Return the last two parts of a path, all that a result file has of it: the file may be published."""
    return "/".join(path.parts[-2:])


def counts_in_words(counts: Mapping[str, int]) -> str:
    """Return counts by name in words."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def report_text(content: dict[str, Any], selection: str, *, hidden_suffixes: Sequence[str], ending: str) -> str:
    """Return the text of ``report.md``, given the content of the result file.

    ``selection`` is the display name of the metric that selected the learning rate; metrics whose names have one of the
    ``hidden_suffixes`` are left out; ``ending`` is below the table.
    """
    start = content["start"]
    origin = f"{code(start['_name'])}, from {escaped(start['from'])}"
    if start["checkpoint"]:
        origin += f": {code(start['checkpoint'])} after {start['updates']:,} updates"

    training = content["settings"]
    batch = f"{training['batch_size']} sequences"
    if "max_tokens" in training:
        batch = f"at most {training['max_tokens']:,} tokens and {batch}"
    schedule = f"{training['updates']:,} updates of {batch}"
    if "tokens_per_sample" in training:
        schedule += f" of up to {training['tokens_per_sample']} tokens"
    if "doc_stride" in training:
        schedule += f", stride {training['doc_stride']}"
    legend = (
        "Development set, in per cent: median (mean ± standard deviation), and every seed. The learning rate with the "
        f"highest median {selection} is {content['learning_rate']:g}."
    )
    data = "; ".join(f"{split}: {counts_in_words(counts)}" for split, counts in content["data"].items())

    paragraphs = [f"# {escaped(content['task'])}", origin, f"{schedule}. {legend}", f"Data: {escaped(data)}."]
    if content["options"]:
        options = code(" ".join(content["options"]))
        paragraphs.append(f"Options of fairseq-train, which override the recipe's: {options}.")
    paragraphs.append(_grid_table(content["grid"], hidden_suffixes))
    paragraphs.append(f"{ending} `{MODEL}/` holds the best model, for predictions.".lstrip())
    return "\n\n".join(paragraphs) + "\n"


def _grid_table(grid: Mapping[str, Mapping[str, Any]], hidden_suffixes: Sequence[str]) -> str:
    rows = []
    for lr, summaries in grid.items():
        for name, summary in summaries.items():
            if not name.endswith(tuple(hidden_suffixes)):
                rows.append([lr, name, summary_cell(summary), seed_values(summary)])
    return markdown_table(["learning rate", "metric", "median (mean ± std)", "seeds"], rows)

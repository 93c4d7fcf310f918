#!/usr/bin/env python3
"""Draw the figure of speed on docs/benchmarks.md from the committed results of scripts/benchmark.py."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
OUT = RESULTS / "speed.png"
HERE = "here"
# Of each panel: its title, the files, and the subjects with what they train and whose code.
PANELS = (
    (
        "H100, 12 layers of width 768, bfloat16",
        ("day-one/steps-1.json", "day-one/steps-2.json"),
        {
            "roberta_plain_fused": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "hf_roberta": ("MLM", "transformers"),
            "mae_lm_fused": ("MAE-LM", HERE),
        },
    ),
    (
        "two CPU cores, 12 layers of width 768",
        ("cpu-base.json",),
        {
            "roberta_plain_eager": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "mae_lm_eager": ("MAE-LM", HERE),
            "authors": ("MAE-LM", "the authors"),
        },
    ),
    (
        "two CPU cores, 4 layers of width 256",
        ("cpu-small.json",),
        {
            "roberta_plain_eager": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "hf_roberta": ("MLM", "transformers"),
            "mae_lm_eager": ("MAE-LM", HERE),
            "authors": ("MAE-LM", "the authors"),
        },
    ),
)


def speeds() -> dict[str, dict[str, float]]:
    """Return tokens of text per second by panel and by ``MODEL, CODE``."""
    return {
        panel: {name: row["tokens_per_second"] for name, row in measured.items()}
        for panel, measured in measured_rows().items()
    }


def measured_rows() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows of the results by panel and by ``MODEL, CODE``."""
    rows_of_panels = {}
    for title, files, subjects in PANELS:
        measured = {}
        for file in files:
            content = json.loads((RESULTS / file).read_bytes())
            setting = content["setting"]
            for row in content["rows"]:
                usual = (row["rows"], row["length"]) == (setting["rows"], setting["length"])
                if usual and row["mask_prob"] == 0.15 and (not row.get("ragged")):
                    measured.setdefault(row["subject"], row)
        rows_of_panels[title] = {", ".join(names): measured[subject] for subject, names in subjects.items()}
    return rows_of_panels


def ranges_of_steps() -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return the range of a ratio over pairs of steps, by machine, by what is trained, and by the other code.

    The implementations of a comparison take turns, a step each, so steps of the same number are neighbours in time.
    """
    ranges = {}
    for panel, measured in measured_rows().items():
        for name, row in measured.items():
            trained, code = name.split(", ")
            if code != HERE:
                seconds_here = measured[f"{trained}, {HERE}"]["seconds"]
                times_as_fast = [theirs / here for theirs, here in zip(row["seconds"], seconds_here, strict=True)]
                ranges[panel, trained, code] = min(times_as_fast), max(times_as_fast)
    return ranges


def ratios(objective: str) -> list[tuple[str, str, float]]:
    """Return the machine, the other code, and how many times as fast this package trains an MLM or MAE-LM."""
    compared = []
    for machine, measured in speeds().items():
        for name, speed in measured.items():
            trained, code = name.split(", ")
            if trained == objective and code != HERE:
                compared.append((machine, code, measured[f"{objective}, {HERE}"] / speed))
    return compared


def figure() -> Figure:
    """Return the figure: a bar for each machine and other code, a panel for what is trained."""
    panels = {"MLM": ratios("MLM"), "MAE-LM": ratios("MAE-LM")}
    heights = [len(compared) for compared in panels.values()]
    drawn = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (objective, compared) in zip(
        drawn.subplots(2, 1, sharex=True, height_ratios=heights), panels.items(), strict=True
    ):
        names = [f"{code}: {machine}" for machine, code, _ in compared]
        bars = axes.barh(names, [ratio for *_, ratio in compared], color="#0072B2", height=0.6)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_ylim(len(compared) - 0.5, -0.5)
        axes.margins(x=0.1)
        axes.set_title(
            f"Training {'an MLM' if objective == 'MLM' else objective}, compared with other code", fontsize=10
        )
        axes.tick_params(labelsize=9)
    axes.set_xlabel("times as fast (the line marks equal speed)")
    return drawn


if __name__ == "__main__":
    # A test compares the description with the files.
    figure().savefig(OUT, dpi=130, metadata={"Description": json.dumps(speeds())})
    print(OUT.name)

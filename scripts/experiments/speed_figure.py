#!/usr/bin/env python3
"""Draw README.md's figure of speed from the committed results of scripts/benchmark.py."""

import json
from pathlib import Path

from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
OUT = RESULTS / "speed.png"
HERE = "here"
# Of each panel: its title, the files, and the subjects with what they train and whose code.
PANELS = (
    (
        "H100, 12 layers x 768, bfloat16",
        ("day-one/steps-1.json", "day-one/steps-2.json"),
        {
            "roberta_plain_fused": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "hf_roberta": ("MLM", "transformers"),
            "mae_lm_fused": ("MAE-LM", HERE),
        },
    ),
    (
        "2 CPU cores, 12 layers x 768, float32",
        ("cpu-base.json",),
        {
            "roberta_plain_eager": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "mae_lm_eager": ("MAE-LM", HERE),
            "authors": ("MAE-LM", "authors"),
        },
    ),
    (
        "2 CPU cores, 4 layers x 256, float32",
        ("cpu-small.json",),
        {
            "roberta_plain_eager": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "hf_roberta": ("MLM", "transformers"),
            "mae_lm_eager": ("MAE-LM", HERE),
            "authors": ("MAE-LM", "authors"),
        },
    ),
)


def speeds() -> dict[str, dict[str, float]]:
    """Return tokens of text per second by panel and by ``MODEL, CODE``."""
    found = {}
    for title, files, subjects in PANELS:
        measured = {}
        for file in files:
            content = json.loads((RESULTS / file).read_bytes())
            setting = content["setting"]
            for row in content["rows"]:
                usual = (row["rows"], row["length"]) == (setting["rows"], setting["length"])
                if usual and row["mask_prob"] == 0.15 and (not row.get("ragged")):
                    measured.setdefault(row["subject"], row["tokens_per_second"])
        found[title] = {", ".join(names): measured[subject] for subject, names in subjects.items()}
    return found


def figure(found: dict[str, dict[str, float]]) -> Figure:
    """Return the figure: a bar for each model and program, a panel for each machine and size."""
    drawn = Figure(figsize=(11, 2.9), layout="constrained")
    for axes, (title, of_panel) in zip(drawn.subplots(1, len(found)), found.items(), strict=True):
        colours = ["#0072B2" if name.endswith(HERE) else "#BBBBBB" for name in of_panel]
        values = [value / 1000 for value in of_panel.values()]
        axes.bar_label(axes.barh(list(of_panel), values, color=colours), fmt="%.3g", padding=2, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("thousand tokens of text per second", fontsize=8)
        axes.tick_params(labelsize=8)
    return drawn


if __name__ == "__main__":
    # A test compares the description with the files.
    figure(speeds()).savefig(OUT, dpi=130, metadata={"Description": json.dumps(speeds())})
    print(OUT.name)

#!/usr/bin/env python3
"""Draw the figures of the studies finetuning and tagging from their committed results."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
MODELS = ("MLM", "MAE-LM", "random weights")
# The numbers of each panel, by its title: the directory or the end of the run's name, and the metric.
SENTENCES = {
    "SST-2\naccuracy (%)": ("SST-2", "accuracy"),
    "CoLA\nMatthews correlation (x 100)": ("CoLA", "matthews"),
    "RTE\naccuracy (%)": ("RTE", "accuracy"),
    "STS-B\nmean of both correlations (x 100)": ("STS-B", "score"),
    "SQuAD 1.1\nF1 (%)": ("squad", "f1"),
}
WORDS = {
    "parts of speech, EWT\naccuracy (%)": ("ewt", "accuracy"),
    "entities, WNUT 2017\nF1 (%)": ("wnut", "f1"),
}


def draw(path: Path, panels: dict[str, list[list[float]]]) -> None:
    """Draw a panel for each task: the seeds of every model as dots, and their median as a line."""
    figure = Figure(figsize=(2.8 * len(panels), 3.2), layout="constrained")
    for axes, (title, models) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        name, unit = title.split("\n")
        for place, values in enumerate(models):
            offsets = [place + 0.08 * (number - (len(values) - 1) / 2) for number in range(len(values))]
            [dots] = axes.plot(offsets, values, "o", alpha=0.6)
            axes.hlines(median(values), place - 0.3, place + 0.3, color=dots.get_color(), linewidth=2)
        axes.set(title=name, ylabel=unit, xticks=range(len(MODELS)))
        axes.set_xticklabels(MODELS, rotation=30, ha="right")
        axes.grid(axis="y", alpha=0.25)
    figure.suptitle("Development sets: seeds of fine-tuning (dots) and their median (line)", fontsize="medium")
    figure.savefig(path, dpi=120)


def read(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    of_sentences = {
        title: [
            read(RESULTS / "finetuning" / model / task / "results.json")["metrics"][metric]["values"]
            for model in ("roberta", "mae_lm", "scratch")
        ]
        for title, (task, metric) in SENTENCES.items()
    }
    draw(RESULTS / "finetuning" / "glue.png", of_sentences)
    runs = read(RESULTS / "tagging" / "results.json")["runs"]
    of_words = {
        title: [runs[f"{model}-{task}"]["metrics"][metric]["values"] for model in ("mlm", "mae", "random")]
        for title, (task, metric) in WORDS.items()
    }
    draw(RESULTS / "tagging" / "tagging.png", of_words)

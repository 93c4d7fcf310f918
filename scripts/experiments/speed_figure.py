#!/usr/bin/env python3
"""Draw the figure of speed on docs/benchmarks.md from the committed results of scripts/benchmark.py."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent.parent / "results"
OUT = RESULTS / "speed.png"
HERE = "here"
RUNS = (1, 2, 3)
ON_CPUS = {
    "roberta_plain_eager": ("MLM", HERE),
    "fairseq_roberta": ("MLM", "fairseq"),
    "hf_roberta": ("MLM", "transformers"),
    "mae_lm_eager": ("MAE-LM", HERE),
    "authors": ("MAE-LM", "the authors"),
}
# Of each panel: its title, the files of each run, and the subjects with what they train and whose code.
PANELS = (
    (
        "H100, 12 layers of width 768, bfloat16",
        [("day-one/steps-1.json", "day-one/steps-2.json")],
        {
            "roberta_plain_fused": ("MLM", HERE),
            "fairseq_roberta": ("MLM", "fairseq"),
            "hf_roberta": ("MLM", "transformers"),
            "mae_lm_fused": ("MAE-LM", HERE),
        },
    ),
    (
        "two CPU cores, 12 layers of width 768",
        [(f"cpu-runs/base-mlm-{run}.json", f"cpu-runs/base-mae-lm-{run}.json") for run in RUNS],
        ON_CPUS,
    ),
    (
        "two CPU cores, 4 layers of width 256",
        [(f"cpu-runs/small-{run}.json",) for run in RUNS],
        ON_CPUS,
    ),
)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast this package is as another code, in each run on a machine."""

    machine: str
    code: str
    runs: list[float]

    @property
    def median(self) -> float:
        """Median over the runs."""
        return median(self.runs)


def speeds() -> dict[str, dict[str, float]]:
    """Return the median over runs of tokens of text per second, by panel and by ``MODEL, CODE``."""
    return {
        panel: {name: median(run[name] for run in runs) for name in runs[0]} for panel, runs in speeds_of_runs().items()
    }


def speeds_of_runs() -> dict[str, list[dict[str, float]]]:
    """Return the tokens of text per second of each run by panel, by ``MODEL, CODE``."""
    runs_of_panels = {}
    for title, runs, subjects in PANELS:
        runs_of_panels[title] = [speeds_of_run(files, subjects) for files in runs]
    return runs_of_panels


def speeds_of_run(files: tuple[str, ...], subjects: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Return the tokens per second of one run, from its files."""
    measured: dict[str, float] = {}
    for file in files:
        content = json.loads((RESULTS / file).read_bytes())
        setting = content["setting"]
        for row in content["rows"]:
            is_usual = (row["rows"], row["length"]) == (setting["rows"], setting["length"])
            if is_usual and row["mask_prob"] == 0.15 and not row.get("ragged"):
                measured.setdefault(row["subject"], row["tokens_per_second"])
    return {", ".join(names): measured[subject] for subject, names in subjects.items()}


def ratios(objective: str) -> list[Ratio]:
    """Return how many times as fast as other code this package trains an MLM or MAE-LM.

    Implementations that are compared take turns in a run, a step each.
    """
    compared = []
    for machine, runs in speeds_of_runs().items():
        for name in runs[0]:
            trained, code = name.split(", ")
            if trained == objective and code != HERE:
                times_as_fast = [run[f"{objective}, {HERE}"] / run[name] for run in runs]
                compared.append(Ratio(machine, code, times_as_fast))
    return compared


def figure() -> Figure:
    """Return the figure: a bar for each machine and other code, a panel for what is trained."""
    panels = {"MLM": ratios("MLM"), "MAE-LM": ratios("MAE-LM")}
    heights = [len(compared) for compared in panels.values()]
    drawn = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, (objective, compared) in zip(
        drawn.subplots(2, 1, sharex=True, height_ratios=heights), panels.items(), strict=True
    ):
        names = [f"{ratio.code}: {ratio.machine}" for ratio in compared]
        axes.barh(names, [ratio.median for ratio in compared], color="#0072B2", height=0.6)
        for place, ratio in enumerate(compared):
            slowest, fastest = min(ratio.runs), max(ratio.runs)
            axes.plot([slowest, fastest], [place, place], color="black", linewidth=2)
            axes.text(fastest + 0.02, place, f"{ratio.median:.2f}", va="center", fontsize=9)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_ylim(len(compared) - 0.5, -0.5)
        axes.margins(x=0.1)
        axes.set_title(
            f"Training {'an MLM' if objective == 'MLM' else objective}, compared with other code", fontsize=10
        )
        axes.tick_params(labelsize=9)
    axes.set_xlabel("times as fast: median and range over runs (H100: one run)")
    return drawn


if __name__ == "__main__":
    # A test compares the description with the files.
    figure().savefig(OUT, dpi=130, metadata={"Description": json.dumps(speeds())})
    print(OUT.name)

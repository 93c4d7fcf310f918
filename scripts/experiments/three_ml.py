"""Compute what 3ML costs beside RoBERTa, by formula and by the clock, and what pages say of it."""

import json
from statistics import median

from experiments import reproduction
from experiments.findings import RESULTS, TREATMENTS
from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.cost.planner import flops_per_token

COMPUTE_3ML = "scripts/results/compute-3ml/README.md"
GPT2_VOCABULARY = 50_265
"""Size of the vocabulary that 3ML's data preparation uses."""
VOCABULARY_OF_STUDIES = 8_000
"""Size of the vocabulary of the studies at size tiny."""


def compute(size: str, vocabulary: int = GPT2_VOCABULARY, length: int = 512) -> float:
    """Return the training FLOPs of 3ML with half of the tokens masked, relative to RoBERTa's at 15 %."""
    return relative_compute(f"mae_lm_3ml_self_{size}", 0.5, vocabulary, length)


def compute_at_tiny(length: int = 128) -> float:
    """Return the same at size tiny, with the vocabulary of the studies."""
    return compute("tiny", VOCABULARY_OF_STUDIES, length)


def relative_compute(preset: str, mask_prob: float, vocabulary: int, length: int) -> float:
    """Return the training FLOPs of a preset, relative to RoBERTa's at 15 %, for sequences of ``length`` tokens."""
    run = PlannedRun(preset, mask_prob=mask_prob, vocab_size=vocabulary, tokens_per_sample=length)
    return flops_per_token(run).total / flops_per_token(run.roberta()).total


def step_on_two_cores() -> float:
    """Return the seconds of 3ML's step at base size, relative to RoBERTa's, on two CPU cores."""
    ratios = json.loads((RESULTS / "cpu-base.json").read_text(encoding="utf-8"))["ratios"]
    return ratios["three_ml_step_cost"]


def steps_on_an_h100() -> list[tuple[float, float]]:
    """Return the milliseconds of 3ML's step and of the RoBERTa preset's at base size, of two measurements."""
    day_one = {}
    for name in ("steps-2.json", "steps-4.json"):
        for row in json.loads((RESULTS / "day-one" / name).read_text(encoding="utf-8"))["rows"]:
            day_one[row["subject"]] = 1000 * row["median_seconds"]
    later = eager_steps_on_an_h100()
    return [(day_one["three_ml_fused"], day_one["roberta_fused"]), (later[0]["step_ms"], later[1]["step_ms"])]


def eager_steps_on_an_h100() -> tuple[dict[str, float], dict[str, float]]:
    """Return the profiled steps of 3ML and of the RoBERTa preset: milliseconds of step, kernels and host."""
    rows = json.loads((RESULTS / "compiled-layers" / "6.json").read_text(encoding="utf-8"))["rows"]
    return rows["variants"]["step, 3ML, eager, None"], rows["steps"]["step, RoBERTa, eager"]


def seconds_in_treatments() -> float:
    """Return the seconds per update of 3ML relative to the MLM's at size tiny: median of three rounds."""
    by_model = {}
    for row in json.loads((RESULTS / "treatments" / "seconds.json").read_text(encoding="utf-8"))["runs"]:
        (measured,) = row["measures"]["seconds"].values()
        by_model.setdefault(row["model"], {})[row["seed"]] = measured["per_update"]
    three_ml, mlm = by_model["never, 50 % (3ML)"], by_model["all [MASK]"]
    return median(three_ml[seed] / mlm[seed] for seed in mlm)


def seconds_in_presets() -> float:
    """Return the same of the page on the presets of size tiny."""
    rows = json.loads((RESULTS / "presets-tiny.json").read_text(encoding="utf-8"))["rows"]
    seconds = {row["title"]: row["seconds_per_update"] for row in rows}
    return seconds["3ML-self, 50 % masked"] / seconds["RoBERTa"]


def phrases() -> dict[str, list[str]]:
    """Return what two pages say of the cost."""
    (first_3ml, first_mlm), (later_3ml, later_mlm) = steps_on_an_h100()
    profiled_3ml, profiled_mlm = eager_steps_on_an_h100()
    seed = (reproduction.UNDISTURBED_SEED,)
    in_reproduction = reproduction.seconds(reproduction.THREE_ML, seed) / reproduction.seconds(reproduction.MLM, seed)
    in_treatments = f"{seconds_in_treatments():.2f}"
    return {
        COMPUTE_3ML: [
            f"it takes {first_3ml:.1f} ms where the RoBERTa preset takes {first_mlm:.1f}",
            f"{later_3ml:.1f} where it takes {later_mlm:.1f}",
            f"take {profiled_3ml['kernel_ms'] / profiled_mlm['kernel_ms']:.2f} of the RoBERTa preset's time",
            f"{compute_at_tiny():.2f} times for sequences of 128 tokens",
            f"{compute_at_tiny(length=53):.2f} times for the 53 tokens",
            f"{in_treatments} times as long",
            f"{in_reproduction[0]:.2f} in [reproduction.md]",
            f"{seconds_in_presets():.2f} in [presets.md]",
        ],
        TREATMENTS: [f"[{compute_at_tiny():.1f} times the compute]", f"and {in_treatments} times as long"],
    }

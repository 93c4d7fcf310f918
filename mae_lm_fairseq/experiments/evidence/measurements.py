"""Measurements of the trained models of the evidence study, by the commands that users run."""

import sys
from collections.abc import Callable
from pathlib import Path

from mae_lm_fairseq.experiments.evidence.arms import Arm
from mae_lm_fairseq.experiments.evidence.settings import PRIMARY_THRESHOLD, PROBED, SUITES, THRESHOLDS, Setup
from mae_lm_fairseq.experiments.evidence.trainings import folder_of, updates_of
from mae_lm_fairseq.experiments.inspection import checkpoint_after
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.runner import Run

LOSSES = "evaluation.json"


def _models(setup: Setup, stage: str, arm: Arm, seed: int) -> dict[str, Path]:
    """Return the models to measure by their number of updates, the trained one last."""
    checkpoints = folder_of(setup, stage, arm, seed) / "checkpoints"
    before = setup.extent.checkpoints[:-1] if stage == "main" else []
    between = {str(updates): checkpoint_after(checkpoints, updates) for updates in before}
    return between | {str(updates_of(setup, stage, arm)): checkpoints / "checkpoint_last.pt"}


def measurement_runs(setup: Setup, stage: str, arm: Arm, seed: int) -> dict[str, Run]:
    """Return the measurements of a training by name."""
    extent, files, folder = setup.extent, setup.files, folder_of(setup, stage, arm, seed)
    models, is_of_main = _models(setup, stage, arm, seed), stage == "main" or arm.branch_of is not None

    def measurement(name: str, verb: str, read: Callable, *options: str, data: str = "--data-bin") -> Run:
        out = folder / name
        target = ["--json", str(folder / LOSSES)] if verb == "evaluate" else ["--out", str(out)]
        command = [sys.executable, "-m", "mae_lm_fairseq", verb, *map(str, models.values()), "--labels", *models]
        command += [data, str(files.data_bin), *options, *target]
        return Run(f"{arm.title}, seed {seed}, {name}", command, folder / f"{name}.json", lambda run: read(out))

    text = ["--text", str(files.text)]
    loss = [*text, "--tokens", str(extent.loss_tokens), "--pseudo-tokens", str(extent.pseudo_tokens)]
    runs = {"loss": measurement("loss", "evaluate", _losses, *loss)}
    settings = [(threshold, centred) for threshold in THRESHOLDS for centred in (False, True)]
    for threshold, centred in settings if is_of_main else [(PRIMARY_THRESHOLD, False)]:
        options = [*text, "--tokens", str(extent.rank_tokens), "--threshold", str(threshold), "--bootstrap", "2"]
        name = f"rank-{threshold}" + "-centred" * centred
        runs[name] = measurement(name, "rank", _ranks, *options, *["--centred"] * centred, data="--tokenizer")
    if stage == "pilot":
        return runs
    probed = [f"--{part}={getattr(files, f'probe_{part}')}" for part in ("train", "dev", "test")]
    limit = ["--limit", str(extent.probe_sentences)]
    runs["probe"] = measurement("probe", "probe", _probes, "--column", PROBED, *probed, *limit)
    if is_of_main:
        for name in SUITES:
            options = ["--pairs", str(getattr(files, name)), "--limit", str(extent.pairs)]
            runs[name] = measurement(name, "minimal-pairs", _pairs, *options)
    return runs


def _losses(out: Path) -> dict:
    return {label: {"loss": model["loss"]} for label, model in read_json(out.with_name(LOSSES))["models"].items()}


def _ranks(out: Path) -> dict:
    """Return the ranks of real tokens and of ``[MASK]`` by label, input and layer."""
    names = ("layer", "input", "tokens", "threshold", "entropy")
    models = read_json(out / "ranks.json")["models"]
    return {model["label"]: [{name: row[name] for name in names} for row in model["ranks"]] for model in models}


def _probes(out: Path) -> dict:
    """Return the accuracies in per cent by label, of all layers on both texts, and of random weights."""
    columns = {
        "layers": ("layers", "accuracy"),
        "layers, development file": ("layers", "dev_accuracy"),
        "random weights": ("random weights", "accuracy"),
    }
    return {
        label: {name: [100 * row[of] for row in model[rows]] for name, (rows, of) in columns.items()}
        for label, model in read_json(out / "results.json")["models"].items()
    }


def _pairs(out: Path) -> dict:
    """Return the accuracies in per cent by label, of the model and of its controls."""
    return {
        label: {name: 100 * scores["overall"]["accuracy"] for name, scores in model["scores"].items()}
        for label, model in read_json(out / "results.json")["models"].items()
    }

"""The stages of the evidence study.

``scripts/study.py`` uses this module. A stage trains its models, then measures them with the commands that users run
(``mae-lm evaluate``, ``rank``, ``probe``, ``minimal-pairs``), each in a process of its own. The study resumes.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.experiments.evidence.arms import (
    FURTHER_CAUSAL,
    MAE_LM,
    MLM,
    OUTWARDS,
    Arm,
    branch_arms,
    causal_arms,
    main_arms,
    pilot_arm,
    pilot_arms,
)
from mae_lm_fairseq.experiments.evidence.measurements import measurement_runs
from mae_lm_fairseq.experiments.evidence.settings import Setup
from mae_lm_fairseq.experiments.evidence.trainings import training_run, updates_of
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, write_json
from mae_lm_fairseq.utils.runner import Run, reserve, run_all
from mae_lm_fairseq.utils.versions import commit, machine, versions


def pilot(setup: Setup) -> None:
    """Run the pilot, with further learning rates if the best one lies at the edge."""
    arms = pilot_arms()
    content = _stage(setup, "pilot", arms, 1)
    while more := [arm for model in (MLM, MAE_LM) if (arm := _outwards(content, model)) and arm not in arms]:
        arms += more
        content = _stage(setup, "pilot", arms, 1)
    # Not before the last learning rate, because the other stages read the best one from this file.
    write_json(setup.out / "pilot.json", content)


def causal(setup: Setup) -> None:
    """Run the causal test, at the MLM's best learning rate of the pilot."""
    rate, _ = learning_rates(_pilot_of(setup))
    content = _stage(setup, "causal", causal_arms(rate), setup.extent.causal_seeds)
    write_json(setup.out / "causal.json", content)


def main_runs(setup: Setup) -> None:
    """Run the main comparison, at the learning rates of the pilot."""
    content = _stage(setup, "main", main_arms(*learning_rates(_pilot_of(setup))), setup.extent.main_seeds)
    write_json(setup.out / "main.json", content)


def further(setup: Setup) -> None:
    """Run what no hypothesis is about: further models of the causal test, and decay branches of the main runs."""
    for stage in ("causal", "main"):
        if not (setup.out / f"{stage}.json").exists():
            raise UserError(f"{setup.out / stage}.json does not exist; run the stage {stage} first")
    rate, _ = learning_rates(_pilot_of(setup))
    content = _stage(setup, "further", causal_arms(rate, FURTHER_CAUSAL), setup.extent.causal_seeds)
    content["runs"] += _stage(setup, "further", branch_arms(rate), setup.extent.main_seeds)["runs"]
    write_json(setup.out / "further.json", content)


def _pilot_of(setup: Setup) -> dict:
    """Return the results of the pilot.

    Raises:
        UserError: if it has not run, or with another size or other files.
    """
    path = setup.out / "pilot.json"
    if not path.exists():
        raise UserError(f"{path} does not exist; run the stage pilot first")
    found = read_json(path)
    check_same([found, {"stage": "this one", "extent": asdict(setup.extent), "files": setup.files.fingerprints()}])
    return found


def check_same(stages: Sequence[Mapping[str, Any]]) -> None:
    """Check that stages have the same size and files.

    Raises:
        UserError: if they do not.
    """
    first, *others = stages
    for other in others:
        for name in ("extent", "files"):
            if other[name] != first[name]:
                raise UserError(
                    f"the stages {first['stage']} and {other['stage']} differ in {name}; use the same --size and "
                    "files, or another --out"
                )


def _stage(setup: Setup, stage: str, arms: Sequence[Arm], seeds: int) -> dict:
    files = setup.files.fingerprints()
    reserve(setup.out / stage, {"size": setup.size, "machine": machine(), **files})
    commits = _commits(setup.out / stage)
    trained = [(arm, seed) for seed in range(1, 1 + seeds) for arm in arms]
    print(f"{stage}: {len(trained)} trainings", flush=True)
    trainings = [training_run(setup, stage, arm, seed) for arm, seed in trained]
    run_all(trainings, setup.jobs)
    measured = [measurement_runs(setup, stage, arm, seed) for arm, seed in trained]
    print(f"{stage}: {sum(map(len, measured))} measurements", flush=True)
    run_all([run for of_training in measured for run in of_training.values()], setup.jobs)
    return {
        "stage": stage,
        "versions": versions(),
        "commits": commits,
        "machine": machine(),
        "extent": asdict(setup.extent),
        "files": files,
        "runs": [
            _entry(setup, stage, arm, seed, {"training": training} | runs)
            for (arm, seed), training, runs in zip(trained, trainings, measured, strict=True)
        ],
    }


def _commits(directory: Path) -> list[str | None]:
    """Return the commits that a stage has been started from, this one included."""
    path, current = directory / "commits.json", commit()
    found = read_json(path) if path.exists() else []
    if current not in found:
        found.append(current)
        write_json(path, found)
    return found


def losses(pilot: dict, model: str) -> dict[str, float]:
    """Return the held-out loss of the pilot's runs that differ in the learning rate alone, by learning rate."""
    start = "learning rate "
    return {
        run["change"].removeprefix(start): next(iter(run["loss"].values()))["loss"]
        for run in pilot["runs"]
        if run["model"] == model and run["change"].startswith(start)
    }


def best_learning_rate(pilot: dict, model: str) -> str:
    """Return the learning rate with the lowest held-out loss."""
    found = losses(pilot, model)
    return min(found, key=found.get)


def learning_rates(pilot: dict) -> tuple[str, str]:
    """Return the best learning rates of the MLM and of MAE-LM."""
    return best_learning_rate(pilot, MLM), best_learning_rate(pilot, MAE_LM)


def _outwards(pilot: dict, model: str) -> Arm | None:
    """Return the run of the next learning rate outwards if the best one of a model lies at the edge."""
    rate = OUTWARDS.get(best_learning_rate(pilot, model))
    return rate and pilot_arm(model, rate)


def _entry(setup: Setup, stage: str, arm: Arm, seed: int, runs: Mapping[str, Run]) -> dict:
    """Return the results of a training and of its measurements, with their commands."""
    found = {name: read_json(run.result) for name, run in runs.items()}
    commands = {name: shlex.join(_portable(content["command"])) for name, content in found.items()}
    pace = found.pop("training")["result"]
    updates = updates_of(setup, stage, arm) - (setup.extent.branch[0] if arm.branch_of else 0)
    seconds = pace["seconds_per_update"] * updates + sum(content["seconds"] for content in found.values())
    return {
        "model": arm.model,
        "change": arm.change,
        "seed": seed,
        "core_hours": round(seconds / 3600, 3),
        **pace,
        "commands": commands,
        **{name: content["result"] for name, content in found.items()},
    }


def _portable(command: Sequence[str]) -> list[str]:
    """Return a command without the paths of this machine's Python and package."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return [names.get(word, word) for word in command]

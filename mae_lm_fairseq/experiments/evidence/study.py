"""The stages of the evidence study.

``scripts/study.py`` uses this module. A stage trains its models, then measures them with the commands that users run
(``mae-lm evaluate``, ``rank``, ``probe``, ``minimal-pairs``), each in a process of its own. The study resumes.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.experiments.evidence.arms import (
    MAE_LM,
    MLM,
    OUTWARDS,
    Arm,
    causal_arms,
    main_arms,
    pilot_arm,
    pilot_arms,
)
from mae_lm_fairseq.experiments.evidence.measurements import measurement_runs
from mae_lm_fairseq.experiments.evidence.settings import Setup
from mae_lm_fairseq.experiments.evidence.trainings import branch_run, folder_of, training_run
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.runner import Run, reserve, run_all
from mae_lm_fairseq.utils.versions import commit, machine, versions


def pilot(setup: Setup) -> dict:
    """Run the pilot, with further learning rates if the best one lies at the edge."""
    arms = pilot_arms()
    content = _stage(setup, "pilot", arms, 1)
    while more := [arm for model in (MLM, MAE_LM) if (arm := _outwards(content, model)) and arm not in arms]:
        arms += more
        content = _stage(setup, "pilot", arms, 1)
    return content


def causal(setup: Setup) -> dict:
    """Run the causal test, at the MLM's best learning rate of the pilot."""
    rate = best_learning_rate(results(setup, "pilot"), MLM)
    return _stage(setup, "causal", causal_arms(rate), setup.extent.causal_seeds)


def main_runs(setup: Setup) -> dict:
    """Run the main comparison, at the learning rates of the pilot."""
    rates = [best_learning_rate(results(setup, "pilot"), model) for model in (MLM, MAE_LM)]
    return _stage(setup, "main", main_arms(*rates), setup.extent.main_seeds)


def results(setup: Setup, stage: str) -> dict:
    """Return the results of a stage that is done.

    Raises:
        UserError: if it is not.
    """
    path = setup.out / f"{stage}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the stage {stage} first") from None


def _stage(setup: Setup, stage: str, arms: Sequence[Arm], seeds: int) -> dict:
    files = {name: str(path) for name, path in asdict(setup.files).items()}
    reserve(setup.out / stage, {"size": setup.size, "machine": machine(), **files})
    trained = [(arm, seed) for seed in range(1, 1 + seeds) for arm in arms]
    print(f"{stage}: {len(trained)} trainings", flush=True)
    paces = run_all([training_run(setup, stage, arm, seed) for arm, seed in trained], setup.jobs)
    if stage == "main":
        print(f"{stage}: {len(trained)} decay branches", flush=True)
        run_all([branch_run(setup, arm, seed) for arm, seed in trained], setup.jobs)
    measured = [measurement_runs(setup, stage, arm, seed) for arm, seed in trained]
    print(f"{stage}: {sum(map(len, measured))} measurements", flush=True)
    run_all([run for of_training in measured for run in of_training.values()], setup.jobs)
    content = {
        "stage": stage,
        "versions": versions(),
        "commit": commit(),
        "machine": machine(),
        "extent": asdict(setup.extent),
        "runs": [
            _entry(setup, stage, arm, seed, pace, runs)
            for (arm, seed), pace, runs in zip(trained, paces, measured, strict=True)
        ],
    }
    write_json(setup.out / f"{stage}.json", content)
    return content


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


def _outwards(pilot: dict, model: str) -> Arm | None:
    """Return the run of the next learning rate outwards if the best one of a model lies at the edge."""
    rate = OUTWARDS.get(best_learning_rate(pilot, model))
    return rate and pilot_arm(model, rate)


def _entry(setup: Setup, stage: str, arm: Arm, seed: int, pace: dict, measurements: Mapping[str, Run]) -> dict:
    """Return the results of a training with its command and the commands of its measurements."""
    folder = folder_of(setup, stage, arm, seed)
    training = _read(folder / "training.json")
    found = {name: _read(run.result) for name, run in measurements.items()}
    extent = setup.extent
    updates = extent.long + extent.branch[1] - extent.branch[0] if stage == "main" else extent.short
    seconds = pace["seconds_per_update"] * updates + sum(content["seconds"] for content in found.values())
    commands = {"training": training["command"], **{name: content["command"] for name, content in found.items()}}
    return {
        "model": arm.model,
        "change": arm.change,
        "seed": seed,
        "core_hours": round(seconds / 3600, 3),
        **pace,
        "commands": {name: shlex.join(_portable(words)) for name, words in commands.items()},
        **{name: content["result"] for name, content in found.items()},
    }


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _portable(command: Sequence[str]) -> list[str]:
    """Return a command without the paths of this machine's Python and package."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return [names.get(word, word) for word in command]

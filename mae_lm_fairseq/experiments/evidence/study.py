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
from typing import Any

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.experiments.evidence.arms import (
    COMMON,
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
from mae_lm_fairseq.utils.files import read_json, write_json, write_text
from mae_lm_fairseq.utils.runner import Run, run_all
from mae_lm_fairseq.utils.versions import commit, machine, versions


def pilot(setup: Setup) -> None:
    """Run the pilot, with further learning rates if the best one lies at the edge."""
    arms = pilot_arms()
    content = _stage(setup, "pilot", arms, 1)
    while more := [arm for model in (MLM, MAE_LM) if (arm := _outwards(content, model)) and arm not in arms]:
        arms += more
        content = _stage(setup, "pilot", arms, 1)
    # Not before the last learning rate, because the other stages read the best one from this file.
    _finish(setup, "pilot", content)


def causal(setup: Setup) -> None:
    """Run the causal test, at the MLM's best learning rate of the pilot."""
    rate, _ = learning_rates(_pilot_of(setup))
    _finish(setup, "causal", _stage(setup, "causal", causal_arms(rate), setup.extent.causal_seeds))


def main_runs(setup: Setup) -> None:
    """Run the main comparison, at the learning rates of the pilot: first the models of the hypotheses."""
    rate, own_rate = learning_rates(_pilot_of(setup))
    for arms in (main_arms(rate, rate), main_arms(rate, own_rate)):
        _finish(setup, "main", _stage(setup, "main", arms, setup.extent.main_seeds))


def further(setup: Setup) -> None:
    """Run what no hypothesis is about: decay branches of the main runs, and further models of the causal test."""
    for stage in ("causal", "main"):
        if not (setup.out / f"{stage}.json").exists():
            raise UserError(f"{setup.out / stage}.json does not exist; run the stage {stage} first")
    rate, _ = learning_rates(_pilot_of(setup))
    _stage(setup, "further", branch_arms(rate), setup.extent.main_seeds)
    _finish(setup, "further", _stage(setup, "further", causal_arms(rate, FURTHER_CAUSAL), setup.extent.causal_seeds))


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


def check_same(stages: Sequence[Mapping[str, Any]], names: Sequence[str] = ("extent", "files")) -> None:
    """Check that stages have the same size and files.

    Args:
        stages: their results.
        names: what has to be the same.

    Raises:
        UserError: if they do not.
    """
    first, *others = stages
    for other in others:
        for name in names:
            if other[name] != first[name]:
                raise UserError(
                    f"the stages {first['stage']} and {other['stage']} differ in {name}; run them with the same, or "
                    "choose another --out"
                )


def _stage(setup: Setup, stage: str, arms: Sequence[Arm], seeds: int) -> dict:
    """Train and measure the models of a stage, as many at a time as there are jobs, and return all results so far.

    ``OUT/STAGE.part.json`` has the results of the models that are measured. With a copy of it in another OUT, also on
    another machine, the stage resumes from there; the decay branches need the checkpoints of the main runs as well.
    """
    content = _begun(setup, stage, {arm.title: COMMON | arm.options for arm in arms})
    before = {(run["model"], run["change"], run["seed"]) for run in content["runs"]}
    trained = [(arm, seed) for seed in range(1, 1 + seeds) for arm in arms]
    missing = [(arm, seed) for arm, seed in trained if (arm.model, arm.change, seed) not in before]
    for name, value in (("commits", commit()), ("machine", machine())) if missing else ():
        if value not in content[name]:
            content[name].append(value)
    for start in range(0, len(missing), setup.jobs):
        print(f"{stage}: {len(trained) - len(missing) + start} of {len(trained)} models are measured", flush=True)
        content["runs"] += _train_and_measure(setup, stage, missing[start : start + setup.jobs])
        write_json(_part_of(setup, stage), content)
    return content


def _part_of(setup: Setup, stage: str) -> Path:
    return setup.out / f"{stage}.part.json"


def _begun(setup: Setup, stage: str, options: Mapping[str, dict]) -> dict:
    """Return the results of a stage so far, which may be none.

    Args:
        setup: the study.
        stage: name of the stage.
        options: the training options of its models.

    Raises:
        UserError: if they are of another size, or of other files, versions or options.
    """
    described = {"stage": stage, "versions": versions(), "commits": [], "machine": [], "extent": asdict(setup.extent)}
    described |= {"files": setup.files.fingerprints(), "options": {}, "runs": []}
    paths = (_part_of(setup, stage), setup.out / f"{stage}.json")
    found = [read_json(path) for path in paths if path.exists()]
    content = max(found, key=lambda one: len(one["runs"]), default=described)
    known = content["options"]
    current = described | {"stage": "this one", "options": known | options}
    # A stage may add models, as the pilot does, but not change those that it has.
    check_same([content | {"options": options | known}, current], ("extent", "files", "versions", "options"))
    content["options"] = known | options
    setup.out.mkdir(parents=True, exist_ok=True)
    write_json(_part_of(setup, stage), content)
    return content


def _finish(setup: Setup, stage: str, content: dict) -> None:
    # Without indentation, which would be 40 % of the file.
    write_text(setup.out / f"{stage}.json", json.dumps(content) + "\n")
    _part_of(setup, stage).unlink()


def _train_and_measure(setup: Setup, stage: str, trained: Sequence[tuple[Arm, int]]) -> list[dict]:
    """Return the results of some models and seeds."""
    trainings = [training_run(setup, stage, arm, seed) for arm, seed in trained]
    run_all(trainings, setup.jobs)
    measured = [measurement_runs(setup, stage, arm, seed) for arm, seed in trained]
    run_all([run for of_training in measured for run in of_training.values()], setup.jobs)
    return [
        _entry(setup, stage, arm, seed, {"training": training} | runs)
        for (arm, seed), training, runs in zip(trained, trainings, measured, strict=True)
    ]


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
        "commit": commit(),
        "machine": machine(),
        "core_hours": round(seconds / 3600, 3),
        **pace,
        "commands": commands,
        **{name: content["result"] for name, content in found.items()},
    }


def _portable(command: Sequence[str]) -> list[str]:
    """Return a command without the paths of this machine's Python and package."""
    names = {sys.executable: "python", str(PACKAGE): PACKAGE.name}
    return [names.get(word, word) for word in command]

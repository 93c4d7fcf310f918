"""The seconds per update of the models of a plan, which it asks for with ``equal = "seconds"``.

Each model is trained twice for a few updates, without saving. The second time is in the reverse order, so that a
machine that becomes faster or slower meanwhile favours none of them.
"""

from dataclasses import replace
from statistics import fmean

from mae_lm_fairseq.study.plan import Model, Train
from mae_lm_fairseq.study.runs import Workspace, environments, train_options
from mae_lm_fairseq.training.command import train_command
from mae_lm_fairseq.training.runner import Run, run_all
from mae_lm_fairseq.training.training_log import read_records, seconds_per_update

SPEED = "speed"
"""Directory of the short trainings, whose results a study that is resumed finds."""
WARM_UP, TIMED_UPDATES = 5, 20
"""Number of their first updates, which do not count, and of all."""


def measured_speeds(workspace: Workspace) -> dict[str, float]:
    """Return the seconds of an update of each model that is trained, by name, and print them.

    Raises:
        UserError: if a training fails.
    """
    plan = replace(workspace.plan, train=Train(TIMED_UPDATES))
    timed = Workspace(plan, workspace.out / SPEED, workspace.threads, workspace.files)
    models = [model for model in plan.models if not model.random]
    runs = [_run_for(timed, model, 1) for model in models]
    runs += [_run_for(timed, model, 2) for model in reversed(models)]
    results = run_all(runs, 1, timed.threads, environments())  # runs at the same time slow each other down
    seconds = {}
    for model, first, second in zip(models, results, reversed(results), strict=False):
        seconds[model.name] = fmean([first["per_update"], second["per_update"]])
        print(f"{model.name}: {first['per_update']:.3g} and {second['per_update']:.3g} seconds per update", flush=True)
    return seconds


def _run_for(timed: Workspace, model: Model, seed: int) -> Run:
    """Return a short training of a model, at its first learning rate, which writes nothing but its log."""
    rate = next(iter(model.learning_rates), None)
    training = timed.training(model, rate, seed)
    options = train_options(timed.plan, training, TIMED_UPDATES, training.folder / "checkpoints")
    options |= {"log-interval": WARM_UP, "no-save": True}
    return Run(
        name=f"speed of {training.name}",
        command=train_command(timed.plan.data.data_bin, options),
        result=training.result(TIMED_UPDATES),
        read_result=read_speed,
        updates=TIMED_UPDATES,
    )


def read_speed(run: Run) -> dict[str, float]:
    """Return the median seconds per update after the warm-up, from the log of a run."""
    records = read_records(run.log, "train_inner")
    return {"per_update": seconds_per_update(records[updates] for updates in records if updates > WARM_UP)}

"""The trainings that a plan needs: the rule for learning rates decides on them while results come in."""

import math
from collections.abc import Iterable, Sequence

from mae_lm_fairseq.study.endpoints import ENDPOINTS, ValueBySeed
from mae_lm_fairseq.study.plan import Model
from mae_lm_fairseq.study.results_file import Choice
from mae_lm_fairseq.study.run_files import Training
from mae_lm_fairseq.study.runs import Workspace
from mae_lm_fairseq.utils.errors import UserError


def needed_trainings(workspace: Workspace) -> list[Training]:
    """Return the trainings that are known to be needed, in the order in which they are run."""
    rule = workspace.plan.rates
    compared_by_rule = _at_all_rates(workspace, rule.seeds) if rule else []
    trainings = [*compared_by_rule, *_at_chosen_rates(workspace), *_left_after_damage(workspace)]
    by_folder = {training.folder: training for training in trainings}
    return [*by_folder.values()]


def _at_all_rates(workspace: Workspace, seeds: int | None = None) -> list[Training]:
    """Return the trainings at all rates of the plan, those of the first seeds or of all."""
    trainings = []
    for model in workspace.plan.models:
        for rate in model.learning_rates:
            trainings += workspace.trainings(model, rate, model.all_seeds[:seeds])
    return trainings


def _at_chosen_rates(workspace: Workspace) -> list[Training]:
    """Return the trainings at known rates, seed by seed, so that every model has its first results early."""
    models = workspace.plan.models
    choices = [choose(workspace, model) for model in models]
    seeds = set().union(*(model.all_seeds for model in models))
    trainings = []
    for seed in sorted(seeds):
        for model, choice in zip(models, choices, strict=True):
            if seed in model.all_seeds and choice.is_known:
                trainings.append(workspace.training(model, choice.rate, seed))
    return trainings


def _left_after_damage(workspace: Workspace) -> list[Training]:
    """Return what is finished at any rate: trainings at one that was left after damage are also reported."""
    trainings = _at_all_rates(workspace)
    updates_of = workspace.plan.updates_of
    return [training for training in trainings if training.result(updates_of(training.model)).exists()]


def choose(workspace: Workspace, model: Model) -> Choice:
    """Apply the rule for learning rates to a model."""
    rule = workspace.plan.rates
    if not model.learning_rates:
        return Choice()
    rate = _lowest_rate(workspace, model)
    if rate is None:
        return Choice(is_known=False)
    if rule is None or rule.halve is None:
        return Choice(rate)

    # First by the seeds that the rate was chosen with, so that damage is found before the others are trained.
    of_first_seeds = _damage(workspace, model, rate, model.all_seeds[: rule.seeds])
    if of_first_seeds is None:
        return Choice(rate, is_known=False)
    if rule.is_damage(of_first_seeds):
        return Choice(rate / 2, damage=of_first_seeds)
    of_all_seeds = _damage(workspace, model, rate, model.all_seeds)
    if of_all_seeds is not None and rule.is_damage(of_all_seeds):
        return Choice(rate / 2, damage=of_all_seeds)
    return Choice(rate, damage=None if math.isnan(of_first_seeds) else of_first_seeds)


def _damage(workspace: Workspace, model: Model, rate: float, seeds: Sequence[int]) -> float | None:
    """Return last layer at the end less its best checkpoint, on average over seeds; None if a seed is not finished."""
    trainings = workspace.trainings(model, rate, seeds)
    return _mean(workspace, trainings, workspace.plan.rates.halve, "end_less_best_checkpoint")


def _lowest_rate(workspace: Workspace, model: Model) -> float | None:
    """Return the learning rate with the lowest value, those without a number last; None if results are missing."""
    rule = workspace.plan.rates
    rates = model.learning_rates
    if len(rates) == 1:
        return rates[0]
    means = {}
    for rate in rates:
        trainings = workspace.trainings(model, rate, model.all_seeds[: rule.seeds])
        means[rate] = _mean(workspace, trainings, rule.lowest, "last")
    if None in means.values():
        return None
    return min(means, key=lambda rate: (math.isnan(means[rate]), means[rate]))


def _mean(workspace: Workspace, trainings: Iterable[Training], text: str, endpoint: str) -> float | None:
    """Return the mean of an endpoint of MEASURE.VALUE over trainings; None if one is not measured at its end.

    Raises:
        UserError: if the measure has no such value.
    """
    planned, name = workspace.plan.measure_and_value(text)
    by_seed = [workspace.values(training, planned) for training in trainings]
    last = workspace.plan.train.updates
    if any(last not in values for values in by_seed):
        return None
    value = ValueBySeed(by_seed, name)
    if not value.is_measured:
        measured = ", ".join(by_seed[0][last])
        raise UserError(f"{workspace.plan.document.name}: [rates] names {text}, but {planned.name} measured {measured}")
    numbers = ENDPOINTS[endpoint](value)
    return float(numbers.mean())

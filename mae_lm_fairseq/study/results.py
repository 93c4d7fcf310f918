"""The results of a study, selected from ``results.json``: trainings, values of seeds, contrasts, and tables."""

from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

from mae_lm_fairseq.measures.seconds import Seconds
from mae_lm_fairseq.study.contrasts import Outcome, outcomes
from mae_lm_fairseq.study.endpoints import ValueBySeed
from mae_lm_fairseq.study.looks import marked
from mae_lm_fairseq.study.plan import PlannedMeasure, parse_plan
from mae_lm_fairseq.study.results_file import ResultsFile, TrainingResult
from mae_lm_fairseq.study.tables import long_table

if TYPE_CHECKING:
    from pandas import DataFrame


class Results:
    """The results of a study, as its plan says which.

    Args:
        file: the content of ``results.json``.
    """

    def __init__(self, file: ResultsFile):
        self.file = file
        self.plan = parse_plan(file.plan, "results.json")
        if file.costs:
            self.plan = self.plan.with_equal_cost(file.costs)

    def of_model(self, model: str) -> list[TrainingResult]:
        """Return the results of a model at its chosen learning rate, by seed."""
        rate = self.file.rates[model].rate
        results = [result for result in self.file.runs if result.model == model and result.learning_rate == rate]
        return sorted(results, key=lambda result: result.seed)

    def of_all_models(self) -> list[TrainingResult]:
        """Return the results of all models at their chosen learning rates."""
        return [result for model in self.plan.models for result in self.of_model(model.name)]

    def value_of_model(self, model: str, text: str) -> tuple[list[int], ValueBySeed]:
        """Return the seeds of a model that are measured after the last update, and a value, MEASURE.VALUE, of each."""
        return self.value_by_seed(self.of_model(model), text)

    def value_by_seed(self, results: Iterable[TrainingResult], text: str) -> tuple[list[int], ValueBySeed]:
        """Return the seeds of some results that are measured after the last update, and a value of each."""
        planned, name = self.plan.measure_and_value(text)
        seeds = []
        by_seed = []
        for result in self.finished(results, planned):
            seeds.append(result.seed)
            measured = result.measures[planned.name]
            by_seed.append({int(updates): values for updates, values in measured.items()})
        return seeds, ValueBySeed(by_seed, name)

    def finished(self, results: Iterable[TrainingResult], planned: PlannedMeasure) -> list[TrainingResult]:
        """Return those of some results that are measured after the last update."""
        last = str(self.last_checkpoint(planned))
        return [result for result in results if last in result.measures.get(planned.name, {})]

    def last_checkpoint(self, planned: PlannedMeasure) -> int:
        """Return the last checkpoint at which something is measured."""
        return planned.checkpoints(self.plan.checkpoints)[-1]

    def progress(self) -> tuple[int, int]:
        """Return how many trainings at the chosen rates are measured after the last update, and how many there are."""
        trainings = {(model.name, seed) for model in self.plan.models for seed in model.all_seeds}
        complete = []
        for result in self.of_all_models():
            if (result.model, result.seed) in trainings and self._is_complete(result):
                complete.append(result)
        return len(complete), len(trainings)

    def _is_complete(self, result: TrainingResult) -> bool:
        """Return whether each measure has its last checkpoint; random weights have that of the end alone."""
        is_random = self.plan.model(result.model).random
        for planned in self.plan.measures:
            ends_early = self.last_checkpoint(planned) < self.plan.train.updates
            if is_random and ends_early:
                continue
            if not self.finished([result], planned):
                return False
        return True

    def identical_models(self) -> list[tuple[str, str]]:
        """Return the pairs of models whose values are equal in all measures, seeds and checkpoints, times apart.

        Such a pair says nothing of an option by which the models differ, but that it has no effect.
        """
        times = [planned.name for planned in self.plan.measures if isinstance(planned.measure, Seconds)]
        table = long_table(self.of_all_models())
        table = table[~table["measure"].isin(times)]
        by_model = dict([*table.groupby("model", sort=False)])
        pairs = []
        for first, second in combinations(by_model, 2):
            if _are_equal(by_model[first], by_model[second]):
                pairs.append((first, second))
        return pairs

    def tested(self) -> list[Outcome]:
        """Return the outcomes of the contrasts that can be tested."""
        return marked(outcomes(self.plan, self.value_of_model), self.plan, self.file.looks)

    def whole_table(self) -> "DataFrame":
        """Return the long table of all trainings, with each model's own number of updates beside the checkpoint's."""
        table = long_table(self.file.runs)
        models = map(self.plan.model, table["model"])
        updates = [*map(self.plan.scaled, table["updates"], models)]
        return table.assign(updates=updates, checkpoint=table["updates"])

    def table(self, planned: PlannedMeasure) -> "DataFrame":
        """Return the long table of a measure: its values at the chosen learning rates, of the complete seeds."""
        table = long_table(self.finished(self.of_all_models(), planned))
        return table[table["measure"] == planned.name]


def _are_equal(first: "DataFrame", second: "DataFrame") -> bool:
    """Return whether the tables of two models have common seeds, and equal numbers with all of them."""
    seeds = {*first["seed"]} & {*second["seed"]}
    place = ["seed", "updates", "measure", "value", "layer"]
    numbers = []
    for table in (first, second):
        table = table[table["seed"].isin(seeds)]
        numbers.append(table.set_index(place)["number"].sort_index())
    return bool(seeds) and numbers[0].equals(numbers[1])

"""Results of a study as one long table with a row for each number, from which the report takes its tables and figures.

The tables are those of pandas (extra ``analysis``), with these columns:

- ``model``, ``rate``, ``seed``: the training; the rate is missing if it is that of the options or the recipe.
- ``updates``, ``measure``: when the model was measured, and the measure's name in the plan.
- ``value``, ``layer``: the name of the value, and the layer, which is missing for a value that is not by layer.
- ``number``: the number; missing if it is not defined.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from mae_lm_fairseq.measures.figures import Line
from mae_lm_fairseq.utils.output import markdown_table, with_spread

if TYPE_CHECKING:
    from pandas import DataFrame

    from mae_lm_fairseq.study.results_file import TrainingResult

COLUMNS = ("model", "rate", "seed", "updates", "measure", "value", "layer", "number")
_TYPES = {"rate": float, "layer": "Int64", "number": float}


def long_table(results: "Iterable[TrainingResult]") -> "DataFrame":
    """Return the long table of the results of some trainings, in their order."""
    from pandas import DataFrame

    rows = []
    for result in results:
        training = (result.model, result.learning_rate, result.seed)
        for measure, by_updates in result.measures.items():
            for updates, values in by_updates.items():
                for name, value in values.items():
                    place = (*training, int(updates), measure, name)
                    if isinstance(value, list):
                        rows += [(*place, layer, number) for layer, number in enumerate(value)]
                    else:
                        rows.append((*place, None, value))
    return DataFrame(rows, columns=COLUMNS).astype(_TYPES)


def of_all_seeds(table: "DataFrame", last: int) -> "DataFrame":
    """Return the rows of the values that all seeds of a model have, at each checkpoint.

    Values that are missing at the last checkpoint are left out.
    """
    seeds = table.groupby("model")["seed"].transform("nunique")
    seeds_with_value = table.groupby(["model", "value", "updates"])["seed"].transform("nunique")
    complete = table[seeds_with_value == seeds]

    last_with_value = complete.groupby(["model", "value"])["updates"].transform("max")
    return complete[last_with_value == last]


def of_last_layer(table: "DataFrame") -> "DataFrame":
    """Return the rows of the last layer, and those of values that are not by layer."""
    return table.drop_duplicates(["model", "rate", "seed", "updates", "measure", "value"], keep="last")


def are_by_layer(table: "DataFrame") -> dict[str, bool]:
    """Return whether each value is by layer, by its name."""
    has_layer = table["layer"].notna()
    return has_layer.groupby(table["value"], sort=False).last().to_dict()


def constants(table: "DataFrame") -> dict[str, float]:
    """Return the numbers that are equal in all models, seeds and checkpoints, such as baselines: not results."""
    measurements = table.drop_duplicates(["model", "seed", "updates"])
    numbers = table[table["layer"].isna()].groupby("value", sort=False)["number"]
    summary = numbers.agg(["count", "nunique", "first"])
    is_everywhere = summary["count"] == len(measurements)
    is_equal = summary["nunique"] == 1
    return summary.loc[is_everywhere & is_equal, "first"].to_dict()


def cells(table: "DataFrame", columns: str, cell: Callable[[np.ndarray], str]) -> "DataFrame":
    """Return a row of cells for each model, in the order of the table.

    Args:
        columns: the column of the table that a cell's column shows.
        cell: returns the text of a cell from the numbers of the seeds.
    """
    numbers = table.groupby(["model", columns], sort=False)["number"]
    by_column = numbers.agg(lambda seeds: cell(seeds.to_numpy())).unstack(columns)
    return by_column.sort_index(axis="columns").reindex(table["model"].unique())


def mean_cell(numbers: np.ndarray) -> str:
    """Return mean and standard deviation over the seeds; numbers that are not defined do not count."""
    if np.isnan(numbers).all():
        return "-"
    mean = np.nanmean(numbers)
    if len(numbers) == 1:
        return f"{mean:.4g}"
    return with_spread(mean, np.nanstd(numbers, ddof=1), ".4g", ".2g")


def cost_cell(numbers: np.ndarray) -> str:
    """Return a number that all seeds have in full, such as one of updates, or else the mean and the deviation."""
    return f"{numbers[0]:,.6g}" if np.ptp(numbers) == 0 else mean_cell(numbers)


def seeds_cell(numbers: np.ndarray) -> str:
    """Return mean, standard deviation, and every seed."""
    if len(numbers) == 1 or np.isnan(numbers).all():
        return mean_cell(numbers)
    every = ", ".join(f"{number:.4g}" for number in numbers)
    return f"{mean_cell(numbers)} ({every})"


def to_markdown(title: str, table: "DataFrame") -> list[str]:
    """Return the lines of a table of cells with a row for each model, and a blank one."""
    header = [title, *map(str, table.columns)]
    return [markdown_table(header, table.reset_index().to_numpy()), ""]


def lines_of(table: "DataFrame", x: str) -> dict[str, dict[str, Line]]:
    """Return the lines of a figure by value and model, with every seed.

    Args:
        x: the column of the x axis, ``layer`` or ``updates``.
    """
    lines: dict[str, dict[str, Line]] = {}
    for (name, model), rows in table.groupby(["value", "model"], sort=False):
        by_seed = rows.pivot(index="seed", columns=x, values="number")
        line = Line(by_seed.columns.to_numpy(dtype=int), by_seed.to_numpy())
        lines.setdefault(name, {})[model] = line
    return lines

#!/usr/bin/env python3
"""Write the tables on the page of the study headroom, from what the steps of headroom.py have written.

tasks: the candidates of stage T, and which ones are chosen.
simulation: the settings that were tried, and how often the rule gives each verdict in the chosen one.
rule: the scores of every seed, the differences that the rule tests, and the scores at every learning rate of
fine-tuning, from the verdicts and the results of the main study.

Example:
    scripts/experiments/headroom_tables.py tasks tasks.json
    scripts/experiments/headroom_tables.py simulation simulation.json
    scripts/experiments/headroom_tables.py rule verdicts.json main/results.json
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from experiments.findings import minus
from experiments.headroom import (
    ARMS,
    EQUIVALENT,
    NOT_INFERIOR,
    RANDOM,
    Results,
    at_chosen_rate,
    chosen_rate,
    frequency_of_equivalence,
    merged,
    rates_of,
    scores as scores_at,
)
from mae_lm_fairseq.utils.command_line import Argument, Options, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.output import markdown_table

DIFFERENCES = ("arm", "task", "points", "of the headroom [90 %]", "p")
SMALLEST_P = 0.001
"""Smallest p that a table states; below it, a table says that it is smaller."""
MODELS = (*ARMS, RANDOM)
VERDICTS = ("supported", "contradicted", "mixed", *EQUIVALENT, "cannot tell")


def candidates(tasks: Mapping[str, Any]) -> str:
    """Return the table of the candidates, the largest headroom in deviations first."""
    rows = []
    for candidate in sorted(tasks["candidates"], key=lambda one: one["deviations"], reverse=True):
        name, random, pretrained = candidate["measure"], candidate["random"], candidate["pretrained"]
        scores = [f"{value:.1f}" for value in (random, pretrained, pretrained - random, candidate["deviations"])]
        rows.append([name, *scores, "yes" if name in tasks["chosen"] else "no"])
    return markdown_table(["task", "random weights", "mean of the arms", "headroom", "in deviations", "chosen"], rows)


def settings(simulation: Mapping[str, Any]) -> str:
    """Return the table of the settings that were tried: the lower frequency of the two correlations."""
    rows = []
    for setting in simulation["tried"]:
        frequencies = [*setting["without_effect"].values()]
        equivalent = min(map(frequency_of_equivalence, frequencies))
        not_inferior = min(one.get(NOT_INFERIOR, 0.0) for one in frequencies)
        margin = f"{100 * setting['margin']:.0f} %"
        rows.append([margin, "; ".join(setting["measures"]), per_cent(equivalent), per_cent(not_inferior)])
    return markdown_table(["margin", "tasks", "*equivalent* or its variants", "*not inferior*"], rows)


def frequencies(simulation: Mapping[str, Any]) -> str:
    """Return the table of how often the rule gives each verdict in the chosen setting."""
    chosen = simulation["chosen"]
    columns = {}
    for correlation, one in chosen["without_effect"].items():
        columns[f"no effect, correlation {correlation}"] = one
    for effect, one in chosen["with_effect"].items():
        columns[f"effect of {100 * float(effect):g} %"] = one
    rows = []
    for name in (*VERDICTS, NOT_INFERIOR):
        rows.append([name, *(per_cent(one.get(name, 0.0)) for one in columns.values())])
    return markdown_table(["verdict", *columns], rows)


def per_cent(fraction: float) -> str:
    """Return a fraction in per cent."""
    return f"{100 * fraction:.1f} %"


def scores(results: Results, measures: Sequence[str]) -> str:
    """Return the table of the scores of every seed."""
    rows = []
    for measure in measures:
        for model in MODELS:
            values = [*at_chosen_rate(results, model, measure).values()]
            by_seed = " ".join(f"{value:.1f}" for value in values)
            rows.append([measure, model, chosen_rate(results, model, measure), by_seed, f"{fmean(values):.1f}"])
    return markdown_table(["task", "model", "rate", "by seed", "mean"], rows)


def scores_by_rate(results: Results, measures: Sequence[str]) -> str:
    """Return the table of the mean scores at every learning rate of fine-tuning."""
    rates = rates_of(results, measures[0])
    rows = []
    for measure in measures:
        for model in MODELS:
            means = [fmean(scores_at(results, model, measure, rate, "test").values()) for rate in rates]
            rows.append([measure, model, *(f"{mean:.1f}" for mean in means)])
    return markdown_table(["task", "model", *rates], rows)


def differences(verdicts: Mapping[str, Any]) -> str:
    """Return the table of the differences from the MLM that the rule tests."""
    rows = []
    for arm, of_arm in verdicts["arms"].items():
        for measure, best in of_arm["at_the_chosen_rates"].items():
            lowest = of_arm["at_the_lowest_rate"][measure]
            rows.append([arm, measure, *as_cells(best), in_points(lowest), p_value(lowest)])
    return markdown_table([*DIFFERENCES, "points at the lowest rate", "p there"], rows)


def outside_the_rule(verdicts: Mapping[str, Any]) -> str:
    """Return the table of the differences from the MLM on tasks outside the rule."""
    rows = []
    for arm, of_arm in verdicts["arms"].items():
        for measure, best in of_arm["outside_the_rule"].items():
            rows.append([arm, measure, *as_cells(best)])
    return markdown_table(DIFFERENCES, rows)


def as_cells(statistics: Mapping[str, Any]) -> list[str]:
    """Return a difference in points and as a fraction of the headroom, with its interval and p."""
    low, high = statistics["interval_90"]
    fraction = minus(f"{100 * statistics['mean']:+.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
    return [in_points(statistics), fraction, p_value(statistics)]


def in_points(statistics: Mapping[str, Any]) -> str:
    """Return a difference in points."""
    return minus(f"{statistics['points']:+.1f}")


def p_value(statistics: Mapping[str, Any]) -> str:
    """Return the corrected p of a difference."""
    p = statistics["p_holm"]
    return f"{p:.3f}" if p >= SMALLEST_P else f"< {SMALLEST_P}"


def of_tasks(tasks: Mapping[str, Any]) -> list[str]:
    """Return the tables of the step ``tasks``."""
    return [candidates(tasks)]


def of_simulation(simulation: Mapping[str, Any]) -> list[str]:
    """Return the tables of the step ``simulation``."""
    tables = [settings(simulation)]
    if simulation["chosen"]:
        tables.append(frequencies(simulation))
    return tables


def of_rule(verdicts: Mapping[str, Any], *parts: Results) -> list[str]:
    """Return the tables of the step ``rule``."""
    results, measures = merged(parts), [*verdicts["headrooms"]]
    return [
        scores(results, measures),
        differences(verdicts),
        outside_the_rule(verdicts),
        scores_by_rate(results, measures),
    ]


TABLES: dict[str, Callable[..., list[str]]] = {"tasks": of_tasks, "simulation": of_simulation, "rule": of_rule}


@dataclass(frozen=True)
class TablesOptions(Options):
    """Options of this program.

    Attributes:
        step: tasks, simulation or rule.
        files: what the tables are made of.
    """

    step: Annotated[Literal["tasks", "simulation", "rule"], Argument("STEP", positional=True)]
    files: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]


def main(options: TablesOptions) -> None:
    """Print the tables."""
    contents = [read_json(path) for path in options.files]
    for table in TABLES[options.step](*contents):
        print(table, "", sep="\n")


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(TablesOptions, sys.argv[1:], __doc__, "headroom_tables.py"))

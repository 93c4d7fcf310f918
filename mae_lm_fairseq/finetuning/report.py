"""Comparison of models on GLUE and SQuAD: a table as in the papers, differences with intervals, and a dot plot.

``python -m mae_lm_fairseq.finetuning.report MAE-LM=DIR RoBERTa=DIR scratch=DIR --out DIR``, where each DIR is the
``--out`` of ``mae-lm finetune``, or a directory that contains several of them. A label may be given more than once.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from mae_lm_fairseq.finetuning.results import Summary
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.measures.figures import check_matplotlib, plot_seeds
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program
from mae_lm_fairseq.utils.files import make_output_directory, read_json, write_text
from mae_lm_fairseq.utils.output import configure_logging, markdown_table


class Column(NamedTuple):
    """A task in the table."""

    metrics: tuple[str, ...]
    """Names of the metrics shown."""
    score: str
    """The metric by which models are compared."""


_IN_PAPERS = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "RTE", "MRPC", "STS-B")
COLUMNS = {
    **{name: Column(TASKS[name].metrics, "score") for name in dict.fromkeys((*_IN_PAPERS, *TASKS))},
    "SQuAD 1.1": Column(("exact_match", "f1"), "f1"),
    "SQuAD 2.0": Column(("exact", "f1"), "f1"),
}
"""Columns in the order of RoBERTa's and MAE-LM's tables, followed by the tasks that those tables omit."""

Table = dict[str, dict[str, dict[str, Summary]]]
"""Summaries by model label, task and metric."""


def read_table(arguments: list[str]) -> Table:
    """Read the results given as LABEL=DIR.

    Raises:
        UserError: if an argument is malformed, a directory has no results, or a label has two results for one task.
    """
    table: Table = {}
    for argument in arguments:
        label, equals, directory = argument.partition("=")
        if not (label and equals and directory):
            raise UserError(f"{argument}: must be LABEL=DIR")
        for result in read_results(Path(directory)):
            row = table.setdefault(label, {})
            if result["task"] in row:
                raise UserError(f"{directory}: {label} already has results of {result['task']}")
            row[result["task"]] = {name: Summary(**summary) for name, summary in result["metrics"].items()}
    return table


def read_results(directory: Path) -> list[dict]:
    """Read the fine-tuning results in a directory and its immediate subdirectories.

    Raises:
        UserError: if there are no results, or a file is damaged.
    """
    found = [path for path in (directory / "results.json", *sorted(directory.glob("*/results.json"))) if path.exists()]
    results = [result for result in map(read_json, found) if isinstance(result, dict)]
    results = [result for result in results if result.get("task") in COLUMNS or {"task", "files"} <= result.keys()]
    if not results:
        raise UserError(f"{directory}: no results.json of mae-lm finetune in it")
    return results


def columns_of(table: Table) -> dict[str, Column]:
    """Return the tasks for which any model has results, in the papers' order, then those of the user's own files."""
    found = {task: column_of(task, summaries) for row in table.values() for task, summaries in row.items()}
    return {task: found[task] for task in sorted(found, key=_order)}


def column_of(task: str, summaries: dict[str, Summary]) -> Column:
    """Return the column of a task.

    The column of entities has precision, recall and F1, without those by type. The columns of the user's other files
    have all metrics, and accuracy or the mean as score.
    """
    if task in COLUMNS:
        return COLUMNS[task]
    if "precision" in summaries:
        return Column(("precision", "recall", "f1"), "f1")
    metrics = tuple(name for name in summaries if name != "score")
    return Column(metrics, "accuracy" if "accuracy" in metrics else "score")


def _order(task: str) -> int:
    return list(COLUMNS).index(task) if task in COLUMNS else len(COLUMNS)


def markdown(table: Table) -> str:
    """Return the table of medians and the differences between each model and the last one."""
    tasks = columns_of(table)
    names = [_title(*item) for item in tasks.items()]
    of_glue = [task for task in tasks if task in TASKS]
    rows = []
    for label, row in table.items():
        cells = [_cell(column, row[task]) if task in row else "-" for task, column in tasks.items()]
        average = [_average(row, of_glue)] if of_glue else []
        seeds = sorted({len(score(row, task, tasks).values) for task in row})
        rows.append([label, *cells, *average, ", ".join(map(str, seeds))])
    head = [
        "# Development sets",
        "",
        "Medians over the seeds, in per cent." + (f" {_average_in_words(of_glue)}" if of_glue else ""),
        "",
        markdown_table(["model", *names, *(["AVG"] if of_glue else []), "seeds"], rows),
    ]
    return "\n".join([*head, *_differences(table, tasks), ""])


def _average(row: dict[str, dict[str, Summary]], tasks: list[str]) -> str:
    """Return the average of a model over tasks of GLUE, if it has results of all of them."""
    if not all(task in row for task in tasks):
        return "-"
    return f"{fmean(row[task]['score'].median for task in tasks):.1f}"


def _average_in_words(tasks: list[str]) -> str:
    covered = "all" if len(tasks) == len(TASKS) else f"{len(tasks)} of the {len(TASKS)}"
    missing = [task for task in TASKS if task not in tasks]
    without = f"; it leaves out {', '.join(missing)}" if missing else ""
    return f"AVG is the mean over {covered} tasks of GLUE ({', '.join(tasks)}) of each task's mean metric{without}."


def _title(task: str, column: Column) -> str:
    return f"{task} ({'m/mm' if task == 'MNLI' else '/'.join(column.metrics)})"


def _compared(task: str, column: Column) -> str:
    """Return the task with the metric by which models are compared."""
    metrics, score = column
    return f"{task} ({score if score in metrics else 'mean of both' if len(metrics) > 1 else metrics[0]})"


def _cell(column: Column, summaries: dict[str, Summary]) -> str:
    names = {*column.metrics, *(f"{name}_mismatched" for name in column.metrics)}  # the latter for MNLI
    shown = [summary for name, summary in summaries.items() if name in names]
    return "/".join(f"{summary.median:.1f}" for summary in shown)


def score(row: dict[str, dict[str, Summary]], task: str, tasks: dict[str, Column]) -> Summary:
    """Return the summary by which a model is compared on a task."""
    return row[task][tasks[task].score]


@dataclass(frozen=True)
class Difference:
    """Difference between two means.

    Attributes:
        mean: the difference.
        standard_error: its standard error; None if either side has a single seed.
        low, high: its 95 % confidence interval (Welch's); None if either side has a single seed.
    """

    mean: float
    standard_error: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.standard_error is None:
            return f"{self.mean:+.1f} (one seed)"
        verdict = ", within two standard errors" if abs(self.mean) <= 2 * self.standard_error else ""
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]{verdict}"


def difference(ours: Summary, theirs: Summary) -> Difference:
    """Return the mean of ``ours`` minus the mean of ``theirs``, with Welch's 95 % interval."""
    mean = ours.mean - theirs.mean
    if ours.std is None or theirs.std is None:
        return Difference(mean, None, None, None)
    from scipy.stats import t

    squares = [side.std**2 / len(side.values) for side in (ours, theirs)]
    error = math.sqrt(sum(squares))
    if error == 0:
        return Difference(mean, 0.0, mean, mean)
    sides = zip(squares, (ours, theirs), strict=True)
    freedom = sum(squares) ** 2 / sum(square**2 / (len(side.values) - 1) for square, side in sides)
    margin = float(t.ppf(0.975, freedom)) * error
    return Difference(mean, error, mean - margin, mean + margin)


def _differences(table: Table, tasks: dict[str, Column]) -> list[str]:
    """Compare each model with the last one by the mean score over the seeds."""
    if len(table) < 2:
        return []
    *others, (base, of_base) = table.items()
    rows = []
    for label, row in others:
        both = [task in row and task in of_base for task in tasks]
        cells = [
            str(difference(score(row, task, tasks), score(of_base, task, tasks))) if known else "-"
            for task, known in zip(tasks, both, strict=True)
        ]
        rows.append([label, *cells])
    head = f"Mean score minus that of {base}, with Welch's 95 % interval:"
    return ["", head, "", markdown_table(["model", *tasks], rows)]


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="python -m mae_lm_fairseq.finetuning.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", nargs="+", metavar="LABEL=DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    return parser


def main(argv: list[str] | None = None):
    """Write ``glue.md`` and ``glue.png``."""
    options = parser().parse_args(argv)
    configure_logging()
    check_matplotlib()
    table = read_table(options.results)
    make_output_directory(options.out)
    text = markdown(table)
    write_text(options.out / "glue.md", text)
    tasks = columns_of(table)
    scores = {
        _compared(task, column): {label: score(row, task, tasks).values for label, row in table.items() if task in row}
        for task, column in tasks.items()
    }
    plot_seeds(options.out / "glue.png", "Development sets", scores)
    print(text)


if __name__ == "__main__":
    with errors_end_the_program():
        main()

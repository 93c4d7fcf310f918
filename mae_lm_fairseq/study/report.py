"""The report of a study: contrasts, tables and figures, made from ``results.json`` alone.

The contrasts are computed from arrays of seeds and layers, all tables and figures of measures from the long table of
:mod:`~mae_lm_fairseq.study.tables`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from mae_lm_fairseq.measures.figures import COLOURS, LAYER
from mae_lm_fairseq.measures.measure import Measure
from mae_lm_fairseq.measures.seconds import Cost
from mae_lm_fairseq.study.contrasts import Outcome
from mae_lm_fairseq.study.endpoints import ENDPOINTS
from mae_lm_fairseq.study.history import Change
from mae_lm_fairseq.study.looks import Look
from mae_lm_fairseq.study.plan import CONTRASTS, Contrast, Plan, PlannedMeasure
from mae_lm_fairseq.study.results import Results
from mae_lm_fairseq.study.results_file import ResultsFile, TrainingResult
from mae_lm_fairseq.study.tables import (
    are_by_layer,
    cells,
    constants,
    cost_cell,
    lines_of,
    mean_cell,
    of_all_seeds,
    of_last_layer,
    seeds_cell,
    to_markdown,
)
from mae_lm_fairseq.utils.directories import REPORT, replacing_files
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import code, code_block, counted, escaped, markdown_table

if TYPE_CHECKING:
    from pandas import DataFrame

TABLE = "results.csv"
"""File with a row for each number, beside the report."""
NOTES = """\
- The quantity is the endpoint of the model, less the endpoint of the other model with the same seed. In brackets 95 %
  intervals of the mean (Student), not corrected.
- p: Student's t test; two-sided for a sign, one-sided against the margins otherwise; 1 for equal values, which have no
  variance. p (Holm): corrected over all {primaries} primary contrasts of the plan, also while some have no results. A
  verdict is about p (Holm) below 0.05, and needs all seeds of the plan.
- p (signs): exact sign-flip test, which assumes symmetry alone, not normality. With {seeds} seeds it cannot be below
  {least:.4f}, or half of that if it is one-sided.
- ± below is the standard deviation over the seeds, every one of which is in `results.json`.
- *Not shown* is no evidence of the opposite. Descriptive contrasts have no verdict."""

OWN_UPDATES = """\
Below, the updates of checkpoints are those of `[train]`. Models with other numbers of updates were measured at the \
same fractions of their own."""
SECONDS_DIFFER = 0.1
"""Fraction by which the seconds of a training may differ from those of the first model, and count as equal."""

EXPLORATORY = """
- *Exploratory*: seeds were added, or the prediction was changed, after results had been seen, so that p is too small. \
`looks` in the plan states such looks beforehand."""


def write_report(out: Path, file: ResultsFile) -> None:
    """Replace ``report.md``, its figures and ``results.csv`` in the directory of ``results.json``.

    Args:
        file: the content of ``results.json``.
    """
    with replacing_files(out, REPORT) as directory:
        results = Results(file)
        write_text(directory / REPORT, "\n".join(_report(directory, results)))
        write_text(directory / TABLE, results.whole_table().to_csv(index=False))


def _report(directory: Path, results: Results) -> list[str]:
    """Return the lines of a report, after drawing its figures in a directory."""
    file = results.file
    plan = results.plan
    identical = results.identical_models()
    lines = [f"# {escaped(file.title)}", ""]
    done, trainings = results.progress()
    if done != trainings:
        lines += [f"**Incomplete: {done} of {trainings} trainings have all measurements.**", ""]
    lines += _identical(identical)
    if plan.differ_in_cost:
        lines += [f"{_equal_costs(results)} {OWN_UPDATES}", "", _costs_and_scores(results), ""]

    tested = results.tested()
    if tested:
        lines += ["## Contrasts", "", contrast_table(tested, identical), "", _notes(plan, tested), ""]
        for ending in ("png", *plan.formats):
            plot_contrasts(directory / f"{CONTRASTS}.{ending}", tested, plan)
        lines += [f"![contrasts]({CONTRASTS}.png)", ""]
    if file.looks:
        intro = "Looks: reports in which a primary contrast had all seeds of its plan."
        lines += [intro, "", look_table(file.looks), ""]
    lines += _untested(results, tested)
    lines += _changes(file.extended, file.changes)

    if plan.rates is not None:
        lines += ["## Learning rates", "", *_chosen_rates(results), "", _tried_rates(results), ""]
    for planned in plan.measures:
        if results.finished(results.of_all_models(), planned):
            lines += _section(directory, results, planned)
    return [*lines, "## Made by", "", *_made_by(file), ""]


def _identical(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for first, second in pairs:
        names = escaped(f"{first} and {second}")
        lines += [f"**{names} are identical in every value**: their differences in the plan have no effect.", ""]
    return lines


def _equal_costs(results: Results) -> str:
    """Return what the models were trained for: equal costs, or what differed in spite of it."""
    equal = results.plan.train.equal
    if equal == "updates":
        return "The models were trained for different numbers of updates, as the plan says."
    costs = results.file.costs
    sentence = f"The models were trained for equal {equal}."
    if equal != "seconds" or not costs:  # earlier versions did not write them
        return sentence
    differing = _differing_seconds(results)
    if differing:
        sentence = f"**The models were not trained for equal seconds**: {escaped('; '.join(differing))}."
    measured = "; ".join(f"{name} {seconds:.3g}" for name, seconds in costs.items())
    return f"{sentence} Seconds per update, as measured before the trainings: {escaped(measured)}."


def _differing_seconds(results: Results) -> list[str]:
    """Return the models whose trainings took a different time than those of the first model, and how much."""
    seconds = {}
    for name in results.file.costs:
        _, value = results.value_of_model(name, f"{Cost.kind}.seconds")
        if value.is_measured:
            seconds[name] = value.final().mean()
    first = next(iter(seconds), None)
    differing = []
    for name in seconds:
        ratio = seconds[name] / seconds[first]
        if abs(ratio - 1) > SECONDS_DIFFER:
            differing.append(f"{name} took {ratio:.2f} times as long as {first}")
    return differing


def _costs_and_scores(results: Results) -> str:
    """Return a table of the cost of the models' trainings, and of what the contrasts are about."""
    costs = [f"{Cost.kind}.{value.name}" for value in Cost.values]
    columns = dict.fromkeys([*costs, *(contrast.of for contrast in results.plan.contrasts)])
    rows = []
    for model in results.plan.models:
        row = [model.name]
        for text in columns:
            _, value = results.value_of_model(model.name, text)
            row.append(cost_cell(ENDPOINTS["last"](value)) if value.is_measured else "-")
        rows.append(row)
    return markdown_table(["model", *columns], rows)


def _untested(results: Results, tested: Iterable[Outcome]) -> list[str]:
    """Return a line for each contrast that could not be tested, with the reason; nothing if all were."""
    names = [outcome.contrast.name for outcome in tested]
    lines = []
    for contrast in results.plan.contrasts:
        if contrast.name not in names:
            lines += [escaped(f"Not tested, {_why_untested(results, contrast)}: {contrast.name}."), ""]
    return lines


def _why_untested(results: Results, contrast: Contrast) -> str:
    for model in filter(None, (contrast.model, contrast.less)):
        seeds, value = results.value_of_model(model, contrast.of)
        if len(seeds) < len(results.plan.model(model).all_seeds):
            return f"as results of {model} are missing"
        if not value.is_measured:
            return f"as not every seed of {model} has {contrast.of}"
    return f"as {contrast.endpoint} of {contrast.of} is not a number in two common seeds"


def _changes(extended: Iterable[str], changes: Iterable[Change]) -> list[str]:
    """Return the changes of the plan since the study began."""
    lines = []
    if extended:
        names = [f"- {escaped(name)}" for name in extended]
        lines += ["Added to the plan after the study had begun:", "", *names, ""]
    for change in changes:
        lines += [f"The plan was changed on {escaped(change.date)}:", "", *code_block("diff", change.lines), ""]
    return lines


def look_table(looks: Iterable[Look]) -> str:
    """Return a table of the looks so far."""
    rows = []
    for look in looks:
        seeds = str(len(look.seeds))
        rows.append([look.contrast, look.date, seeds, _p(look.p), _p(look.corrected), look.verdict])
    return markdown_table(["contrast", "date", "seeds", "p", "p (Holm)", "verdict"], rows)


def contrast_table(tested: Iterable[Outcome], identical: Iterable[tuple[str, str]] = ()) -> str:
    """Return a table of contrasts with every seed.

    Args:
        identical: pairs of models without any difference; their contrasts have no verdict.
    """
    pairs = [{*pair} for pair in identical]
    rows = []
    for outcome in tested:
        contrast = outcome.contrast
        low, high = outcome.interval
        verdict = "identical models" if {contrast.model, contrast.less} in pairs else outcome.verdict
        row = [
            f"{contrast.name}: {contrast.claim}" if contrast.claim else contrast.name,
            f"{contrast.endpoint} of {contrast.of}, {contrast.in_words()}",
            _prediction(contrast),
            f"{outcome.mean:+.3g} [{low:+.3g}, {high:+.3g}]",
            ", ".join(f"{value:+.3g}" for value in outcome.values.values()),
            _p(outcome.p),
            _p(outcome.sign_flip),
            _p(outcome.corrected),
            f"**{verdict}**" if contrast.primary else verdict,
        ]
        rows.append(row)
    header = ["contrast", "quantity", "predicted", "mean [95 %]", "seeds", "p", "p (signs)", "p (Holm)", "verdict"]
    return markdown_table(header, rows)


def _prediction(contrast: Contrast) -> str:
    if contrast.predicted == "equivalent":
        return f"equivalent ± {contrast.margin:g}"
    if contrast.predicted == "not worse":
        return f"not worse than -{contrast.margin:g}"
    return contrast.predicted or "-"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _notes(plan: Plan, tested: Iterable[Outcome]) -> str:
    seeds = max(len(outcome.values) for outcome in tested)
    primaries = sum(contrast.primary for contrast in plan.contrasts)
    notes = NOTES.format(primaries=primaries, seeds=seeds, least=2 / 2**seeds)
    if plan.looks:
        numbers = " and ".join(map(str, plan.looks))
        notes += f"\n- The plan has looks at {numbers} seeds; p (Holm) is corrected for them, too (Pocock)."
    if any(outcome.is_exploratory for outcome in tested):
        notes += EXPLORATORY
    return notes


def _chosen_rates(results: Results) -> list[str]:
    """Return a line with the chosen learning rate for each model that has any, and the damage that it does."""
    lines = []
    for model in results.plan.models:
        if not model.learning_rates:
            continue
        choice = results.file.rates[model.name]
        line = f"- {escaped(model.name)}: "
        line += f"{choice.rate:g}" if choice.is_known else "not chosen yet"
        if choice.damage is not None:
            line += ", **half of the chosen one**" if results.plan.rates.is_damage(choice.damage) else ""
            line += f"; last layer at the end less its best checkpoint: {choice.damage:+.2f}"
        lines.append(line)
    return lines


def _tried_rates(results: Results) -> str:
    """Return a table of all rates that were tried, with what the rule and the contrasts compare."""
    plan = results.plan
    lowest = plan.rates.lowest
    columns = {lowest: (lowest, "last")}
    for contrast in plan.contrasts:
        if contrast.of != lowest:
            columns[f"{contrast.endpoint} of {contrast.of}"] = (contrast.of, contrast.endpoint)

    rows = []
    planned, _ = plan.measure_and_value(lowest)
    for result in results.finished(results.file.runs, planned):
        rate = result.learning_rate
        if rate:
            numbers = [_of_training(results, result, text, endpoint) for text, endpoint in columns.values()]
            rows.append([result.model, f"{rate:g}", str(result.seed), *numbers])
    return markdown_table(["model", "learning rate", "seed", *columns], rows)


def _of_training(results: Results, result: TrainingResult, text: str, endpoint: str) -> str:
    """Return an endpoint of one training, of a value that is written as MEASURE.VALUE."""
    _, value = results.value_by_seed([result], text)
    if not value.is_measured:
        return "-"
    [number] = ENDPOINTS[endpoint](value)
    return f"{number:.4g}"


def _section(directory: Path, results: Results, planned: PlannedMeasure) -> list[str]:
    """Return the section of a measure, after drawing its figure in a directory."""
    plan = results.plan
    measured = results.table(planned)
    last = results.last_checkpoint(planned)
    table = of_all_seeds(measured, last)
    final = table[table["updates"] == last]
    models = [*measured["model"].unique()]
    constant = constants(measured)
    names = [*final["value"].unique()]
    values = _divided(names, planned.measure.shown_names, constant if len(models) > 1 else {})

    title = escaped(planned.name)
    lines = [f"## {title}", "", *_description(planned.measure)]
    lines += [f"After {_own_updates(plan, last)} updates:", "", *_final(final, values.shown, models)]
    lines += _above_entropy(final)
    lines += _by_updates(table, values.shown)
    for ending in (*plan.formats, "png"):
        figure = directory / f"{planned.name}.{ending}"
        is_drawn = plot_measure(figure, planned, table, constant)
    if is_drawn:
        lines += [f"![{title}]({quote(figure.name)})", ""]
    if values.same:
        numbers = ", ".join(f"{name} {number:.4g}" for name, number in values.same.items())
        lines += [f"Of all models, seeds and checkpoints: {escaped(numbers)}.", ""]
    if values.folded:
        folded = _final(final, values.folded, models)
        lines += ["<details>", "<summary>All other values</summary>", "", *folded, "</details>", ""]
    return lines


def _own_updates(plan: Plan, checkpoint: int) -> str:
    """Return the number of updates of a checkpoint, or those of the models that are trained, if they differ."""
    updates = {model.name: f"{plan.scaled(checkpoint, model):,}" for model in plan.models if not model.random}
    if len({*updates.values()}) > 1:
        return " or ".join(f"{number} ({escaped(name)})" for name, number in updates.items())
    return next(iter(updates.values()), f"{checkpoint:,}")


class Division(NamedTuple):
    """Values of a section: those that it leads with, those equal everywhere with their number, and the others."""

    shown: list[str]
    same: dict[str, float]
    folded: list[str]


def _divided(names: Sequence[str], leading: Sequence[str], constant: Mapping[str, float]) -> Division:
    """Return where a section has its values.

    Args:
        names: all values.
        leading: the values that a section of this measure leads with; all, if it has none.
        constant: values that are the same in all models.
    """
    shown = [name for name in leading if name in names] if leading else [*names]
    rest = [name for name in names if name not in shown]
    same = {name: constant[name] for name in rest if name in constant}
    folded = [name for name in rest if name not in same]
    return Division(shown, same, folded)


def _description(measure: Measure) -> list[str]:
    description = measure.__doc__.splitlines()[0].replace("``", "`")
    options = [f"{name} {value}" for name, value in vars(measure).items() if value is not None]
    if options:
        description += f" {code(', '.join(options))}"
    return [description, ""]


def _final(final: "DataFrame", names: Sequence[str], models: Sequence[str]) -> list[str]:
    """Return a table of the values that are not by layer, and one for each value by layer."""
    by_layer = are_by_layer(final)
    numbers = [name for name in names if not by_layer[name]]
    lines = []
    if numbers:
        table = cells(final[final["value"].isin(numbers)], "value", seeds_cell)
        lines += to_markdown("model", table.reindex(index=models, columns=numbers).fillna("-"))
    for name in names:
        if by_layer[name]:
            table = cells(final[final["value"] == name], "layer", mean_cell)
            lines += to_markdown(f"{name}, by layer", table.fillna(""))
    return lines


def _by_updates(table: "DataFrame", names: Iterable[str]) -> list[str]:
    """Return a table for each value, with a column for each checkpoint, if there are several."""
    by_layer = are_by_layer(table)
    lines = []
    for name in names:
        of_name = of_last_layer(table[table["value"] == name])
        by_updates = cells(of_name, "updates", mean_cell).fillna("-")
        if len(by_updates.columns) > 1:
            by_updates.columns = [f"{updates:,}" for updates in by_updates.columns]
            layer = " of the last layer" if by_layer[name] else ""
            lines += to_markdown(f"{name}{layer}, by updates", by_updates)
    return lines


def _above_entropy(final: "DataFrame") -> list[str]:
    """Return a line with the models whose loss is that of a model without context, or above it."""
    if not {"loss", "unigram_entropy"} <= {*final["value"]}:
        return []
    values = final.pivot(index=["model", "seed"], columns="value", values="number")
    above = values[values["loss"] >= values["unigram_entropy"]].index.get_level_values("model")
    models = [model for model in final["model"].unique() if model in above]
    if not models:
        return []
    listed = escaped("; ".join(models))
    return [f"**Loss not below the unigram entropy**, which takes frequencies of tokens alone: {listed}.", ""]


def _made_by(file: ResultsFile) -> list[str]:
    if not file.runs:
        return ["Nothing is finished yet."]
    seconds = sum(sum(result.seconds.values()) for result in file.runs)
    hours = seconds * file.threads / 3600
    core_hours = f"{hours:.1f}" if hours >= 0.1 else "less than 0.1"
    names = []
    for field in ("commits", "machines", "versions"):
        of_runs = set().union(*(getattr(result, field) for result in file.runs))
        names.append("; ".join(sorted(of_runs)))
    made_by = escaped("; ".join(names))
    plan = file.plan.rstrip("\n").split("\n")
    return [
        f"`mae-lm study`, {counted(len(file.runs), 'training')}, {core_hours} core-hours, pauses included "
        f"({counted(file.threads, 'thread')} per run), commit {made_by}. `results.json` has the plan, every command, "
        "seed and checkpoint.",
        "",
        *code_block("toml", plan),
    ]


def plot_measure(path: Path, planned: PlannedMeasure, table: "DataFrame", constant: Mapping[str, float]) -> bool:
    """Plot values by layer after the last update, or else numbers by checkpoint; return whether there is anything.

    Args:
        table: the values that all seeds have, see :func:`~mae_lm_fairseq.study.tables.of_all_seeds`.
        constant: the numbers that are equal in all models, such as baselines.
    """
    has_layer = table["layer"].notna()
    if has_layer.any():
        is_last = table["updates"] == table["updates"].max()
        x_label = LAYER
        lines = lines_of(table[has_layer & is_last], "layer")
    else:
        x_label = "updates"
        lines = lines_of(table, "updates")
    return planned.measure.figure(path, planned.name, x_label, lines, constant)


def plot_contrasts(path: Path, tested: Sequence[Outcome], plan: Plan) -> None:
    """Plot every contrast on an axis of its own: seeds as dots, the mean with its 95 % interval, and zero."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 1.1 * len(tested)), layout="constrained")
    grid = figure.subplots(len(tested), 1, squeeze=False)
    for axes, outcome in zip(grid[:, 0], tested, strict=True):
        contrast = outcome.contrast
        colour = COLOURS[0] if contrast.primary else "grey"
        axes.axvline(0, color="black", linewidth=0.8)
        margin = contrast.margin or 0.0
        for x in (margin, -margin):
            axes.axvline(x, color="black", linewidth=0.8, linestyle=":")
        axes.plot(outcome.interval, [0, 0], color=colour, linewidth=2)
        axes.plot([outcome.mean], [0], "D", color=colour)
        seeds = [*outcome.values.values()]
        axes.plot(seeds, [0.5] * len(seeds), "o", color=colour, alpha=0.5, markersize=4)

        axes.set_title(f"{contrast.name}: {contrast.in_words()}", fontsize=8, loc="left")
        planned, value = plan.measure_and_value(contrast.of)
        label = planned.measure.in_words(value)
        if contrast.endpoint != "last":
            label += f": {contrast.endpoint.replace('_', ' ')}"
        axes.set_xlabel(label, fontsize=7)
        axes.set(ylim=(-0.5, 1), yticks=[])
        axes.tick_params(labelsize=7)
    figure.suptitle("Contrasts: seeds (dots), mean and 95 % interval; primary ones in colour", fontsize=9)
    figure.savefig(path, dpi=120)

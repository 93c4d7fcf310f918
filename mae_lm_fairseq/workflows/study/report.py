"""The report of a study: contrasts, tables and figures, made from ``results.json`` alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mae_lm_fairseq.measures.figures import COLOURS, LAYER, Lines, Panel, plot_panels
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import markdown_table
from mae_lm_fairseq.workflows.study.contrasts import Outcome, outcomes
from mae_lm_fairseq.workflows.study.endpoints import Values
from mae_lm_fairseq.workflows.study.plan import Plan, parse_plan

NOTES = """\
- The quantity is the endpoint of the model, less the endpoint of the other model with the same seed. In brackets 95 %
  intervals of the mean (Student), not corrected.
- p: Student's t test; two-sided for a sign, one-sided against the margins otherwise; 1 for equal values, which have no
  variance. p (Holm): corrected over all {primaries} primary contrasts of the plan, also while some have no results. A
  verdict is about p (Holm) below 0.05.
- p (signs): exact sign-flip test, which assumes symmetry alone, not normality. With {seeds} seeds it cannot be below
  {least:.4f}.
- ± below is the standard deviation over the seeds.
- *Not shown* is no evidence of the opposite. Descriptive contrasts have no verdict."""


class Results:
    """Content of ``results.json``.

    Args:
        content: the content.
    """

    def __init__(self, content: Mapping[str, Any]):
        self.content, self.plan = content, parse_plan(content["plan"], "results.json")

    def runs(self, model: str) -> list[dict[str, Any]]:
        """Return the runs of a model at its chosen learning rate, by seed."""
        rate = self.content["rates"][model]["rate"]
        found = [run for run in self.content["runs"] if (run["model"], run["learning_rate"]) == (model, rate)]
        return sorted(found, key=lambda run: run["seed"])

    def values(self, model: str, value: str) -> tuple[list[int], Values]:
        """Return seeds and values of a model, of the seeds that are measured after the last update."""
        measure, _, name = value.partition(".")
        last = str(self.last_checkpoint(measure))
        runs = [run for run in self.runs(model) if last in run["measures"].get(measure, {})]
        by_checkpoint = [{int(updates): found for updates, found in run["measures"][measure].items()} for run in runs]
        return [run["seed"] for run in runs], Values(by_checkpoint, name)

    def last_checkpoint(self, measure: str) -> int:
        """Return the last checkpoint at which something is measured."""
        of_plan = self.plan.checkpoints
        return next(one for one in self.plan.measures if one.name == measure).checkpoints(of_plan)[-1]

    def measured(self, measure: str) -> dict[str, Values]:
        """Return the values of all models that have some after the last update; their name is still empty."""
        found = {model.name: self.values(model.name, measure)[1] for model in self.plan.models}
        return {model: values for model, values in found.items() if values.runs}


def write_report(out: Path, content: Mapping[str, Any]) -> None:
    """Write ``report.md`` and its figures into the directory of ``results.json``, whose content is given."""
    results = Results(content)
    plan, lines = results.plan, [f"# {content['title']}", ""]
    tested = outcomes(plan, results.values)
    if tested:
        lines += ["## Contrasts", "", contrast_table(tested), "", _notes(plan, tested), ""]
        plot_contrasts(out / "contrasts.png", tested)
        lines += ["![contrasts](contrasts.png)", ""]
    names = [one.contrast.name for one in tested]
    if untested := [one.name for one in plan.contrasts if one.name not in names]:
        lines += [f"Not tested, as fewer than two seeds of each model have the value: {', '.join(untested)}.", ""]
    if content["extended"]:
        lines += ["Added to the plan after the study had begun:", "", *(f"- {one}" for one in content["extended"]), ""]
    lines += _rates(results)
    for measure in plan.measures:
        if measured := results.measured(measure.name):
            last = results.last_checkpoint(measure.name)
            lines += [f"## {measure.name}", "", *_settings(measure), f"After {last:,} updates:", "", *_tables(measured)]
            if plot(out / f"{measure.name}.png", measure.name, measured):
                lines += [f"![{measure.name}]({measure.name}.png)", ""]
    lines += ["## Made by", "", *_made_by(content), ""]
    write_text(out / "report.md", "\n".join(lines))


def contrast_table(tested: Sequence[Outcome]) -> str:
    """Return a table of contrasts with every seed."""
    rows = []
    for one in tested:
        contrast, (low, high) = one.contrast, one.interval
        margin = f" ± {contrast.margin:g}" if contrast.predicted == "equivalent" else ""
        margin = f" than -{contrast.margin:g}" if contrast.predicted == "not worse" else margin
        quantity = f"{contrast.endpoint} of {contrast.of}, {contrast.model}"
        seeds = ", ".join(f"{value:+.3g}" for value in one.values.values())
        rows.append(
            [
                f"{contrast.name}{f': {contrast.claim}' if contrast.claim else ''}",
                quantity + (f" less {contrast.less}" if contrast.less else ""),
                f"{contrast.predicted or '-'}{margin}",
                f"{one.mean:+.3g} [{low:+.3g}, {high:+.3g}]",
                seeds,
                *map(_p, (one.p, one.sign_flip, one.corrected)),
                f"**{one.verdict}**" if contrast.primary else one.verdict,
            ]
        )
    header = ["contrast", "quantity", "predicted", "mean [95 %]", "seeds", "p", "p (signs)", "p (Holm)", "verdict"]
    return markdown_table(header, rows)


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _notes(plan: Plan, tested: Sequence[Outcome]) -> str:
    seeds = max(len(one.values) for one in tested)
    primaries = sum(contrast.primary for contrast in plan.contrasts)
    return NOTES.format(primaries=primaries, seeds=seeds, least=2 / 2**seeds)


def _rates(results: Results) -> list[str]:
    """Return what the rule for learning rates chose, and a table of all runs that it chose from."""
    plan = results.plan
    if plan.rates is None:
        return []
    lines = ["## Learning rates", ""]
    for model in (model for model in plan.models if model.learning_rates):
        choice = results.content["rates"][model.name]
        rate = f"{choice['rate']:g}" if choice["is_known"] else "not chosen yet"
        damage = choice["damage"]
        ending = "" if damage is None else f"; last layer at the end less its best checkpoint: {damage:+.2f}"
        halved = ", **half of the chosen one**" if damage is not None and damage < -plan.rates.by else ""
        lines.append(f"- {model.name}: {rate}{halved}{ending}")
    measure, _, name = plan.rates.lowest.partition(".")
    last = str(plan.train.updates)
    rows = [
        [run["model"], f"{run['learning_rate']:g}", str(run["seed"]), f"{run['measures'][measure][last][name]:.4f}"]
        for run in results.content["runs"]
        if run["learning_rate"] and last in run["measures"].get(measure, {})
    ]
    return [*lines, "", markdown_table(["model", "learning rate", "seed", plan.rates.lowest], rows), ""]


def _settings(measure: Any) -> list[str]:
    """Return what the measure is, and its options."""
    options = ", ".join(f"{name} {value}" for name, value in vars(measure.options).items() if value is not None)
    return [f"{measure.options.__doc__.splitlines()[0]} `{options}`" if options else "", ""]


def _tables(measured: Mapping[str, Values]) -> list[str]:
    """Return tables after the last update: of numbers, with every seed, and of values by layer."""
    lines, names = [], _names(measured)
    if numbers := [name for name, is_by_layer in names.items() if not is_by_layer]:
        rows = [
            [model, *(_cell(values.other(name).final()) if name in values.final_names() else "-" for name in numbers)]
            for model, values in measured.items()
        ]
        lines += [markdown_table(["model", *numbers], rows), ""]
    checkpoints = next(iter(measured.values())).checkpoints
    for name in numbers if len(checkpoints) > 1 else ():
        rows = [
            [model, *(_cell(values.other(name).at(updates), seeds=False) for updates in checkpoints)]
            for model, values in measured.items()
            if name in values.final_names()
        ]
        lines += [markdown_table([f"{name}, by updates", *map(str, checkpoints)], rows), ""]
    for name in (name for name, is_by_layer in names.items() if is_by_layer):
        of_models = {
            model: values.other(name).final() for model, values in measured.items() if name in values.final_names()
        }
        layers = max(values.shape[1] for values in of_models.values())
        rows = [
            [model, *(_cell(values[:, layer], seeds=False) for layer in range(values.shape[1]))]
            for model, values in of_models.items()
        ]
        rows = [row + [""] * (layers + 1 - len(row)) for row in rows]
        lines += [markdown_table([f"{name}, by layer", *map(str, range(layers))], rows), ""]
    return lines


def _names(measured: Mapping[str, Values]) -> dict[str, bool]:
    """Return the names of all values, and whether they are by layer."""
    return {
        name: isinstance(values.runs[0][values.checkpoints[-1]][name], list)
        for values in measured.values()
        for name in values.final_names()
    }


def _cell(values: np.ndarray, seeds: bool = True) -> str:
    """Return mean, standard deviation and, in parentheses, every seed."""
    if np.isnan(values).all():
        return "-"
    mean = f"{np.nanmean(values):.4g}"
    if len(values) == 1:
        return mean
    every = f" ({', '.join(f'{value:.4g}' for value in values)})" if seeds else ""
    return f"{mean} ± {np.nanstd(values, ddof=1):.2g}{every}"


def plot(path: Path, title: str, measured: Mapping[str, Values]) -> bool:
    """Plot a measure: values by layer after the last update, numbers by checkpoint; return whether there is anything.

    Args:
        path: the PNG to write.
        title: title of the figure.
        measured: values by model.
    """
    names, panels = _names(measured), []
    has_layers = any(names.values())
    for name in [name for name, is_by_layer in names.items() if is_by_layer == has_layers]:
        lines = {}
        for model, values in measured.items():
            if name not in values.final_names():
                continue
            named = values.other(name)
            y = named.final() if has_layers else np.stack([named.at(one) for one in named.checkpoints], axis=1)
            if y.shape[1] > 1:
                lines[model] = Lines(np.arange(y.shape[1]) if has_layers else np.array(named.checkpoints), y)
        if lines:
            panels.append(Panel(name, LAYER if has_layers else "updates", lines))
    if panels:
        plot_panels(path, title, *panels)
    return bool(panels)


def plot_contrasts(path: Path, tested: Sequence[Outcome]) -> None:
    """Plot every contrast on an axis of its own: seeds as dots, the mean with its 95 % interval, and zero.

    Args:
        path: the PNG to write.
        tested: the contrasts.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 0.9 * len(tested)), layout="constrained")
    for axes, one in zip(figure.subplots(len(tested), 1, squeeze=False)[:, 0], tested, strict=True):
        (low, high), colour = one.interval, COLOURS[0] if one.contrast.primary else "grey"
        axes.axvline(0, color="black", linewidth=0.8)
        for margin in (one.contrast.margin or 0.0, -(one.contrast.margin or 0.0)):
            axes.axvline(margin, color="black", linewidth=0.8, linestyle=":")
        axes.plot([low, high], [0, 0], color=colour, linewidth=2)
        axes.plot([one.mean], [0], "D", color=colour)
        axes.plot([*one.values.values()], [0.5] * len(one.values), "o", color=colour, alpha=0.5, markersize=4)
        less = f" less {one.contrast.less}" if one.contrast.less else ""
        axes.set_title(f"{one.contrast.name}: {one.contrast.of}, {one.contrast.model}{less}", fontsize=8, loc="left")
        axes.set(ylim=(-0.5, 1), yticks=[])
        axes.tick_params(labelsize=7)
    figure.suptitle("Contrasts: seeds (dots), mean and 95 % interval; primary ones in colour", fontsize=9)
    figure.savefig(path, dpi=120)


def _made_by(content: Mapping[str, Any]) -> list[str]:
    runs = content["runs"]
    if not runs:
        return ["Nothing is finished yet."]
    hours = sum(sum(run["seconds"].values()) for run in runs) * content["threads"] / 3600
    commits, machines, versions = (
        "; ".join(sorted({one for run in runs for one in run[name]})) for name in ("commits", "machines", "versions")
    )
    return [
        f"`mae-lm study`, {len(runs)} trainings, {hours:.1f} core-hours ({content['threads']} threads per run), commit "
        f"{commits}; {machines}; {versions}. `results.json` has the plan, every command, seed "
        "and checkpoint.",
        "",
        "```toml",
        content["plan"].rstrip("\n"),
        "```",
    ]

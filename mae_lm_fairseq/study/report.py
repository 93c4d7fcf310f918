"""The report of a study: contrasts, tables and figures, made from ``results.json`` alone."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from mae_lm_fairseq.measures.figures import COLOURS, LAYER, Lines
from mae_lm_fairseq.measures.seconds import Seconds
from mae_lm_fairseq.study.contrasts import Outcome, outcomes
from mae_lm_fairseq.study.endpoints import ENDPOINTS, Values, last_layer
from mae_lm_fairseq.study.looks import marked
from mae_lm_fairseq.study.plan import CONTRASTS, Measure, Plan, parse_plan
from mae_lm_fairseq.utils.directories import REPORT, replacing_files
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import code, code_block, escaped, markdown_table

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


class Results:
    """Content of ``results.json``."""

    def __init__(self, content: Mapping[str, Any]):
        self.content, self.plan = content, parse_plan(content["plan"], "results.json")

    def runs(self, model: str) -> list[dict[str, Any]]:
        """Return the runs of a model at its chosen learning rate, by seed."""
        rate = self.content["rates"][model]["rate"]
        found = [run for run in self.content["runs"] if (run["model"], run["learning_rate"]) == (model, rate)]
        return sorted(found, key=lambda run: run["seed"])

    def values(self, model: str, value: str) -> tuple[list[int], Values]:
        """Return seeds and values of a model, of the seeds that are measured after the last update."""
        runs, values = self.complete(self.runs(model), value)
        return [run["seed"] for run in runs], values

    def progress(self) -> tuple[int, int]:
        """Return how many trainings at the chosen rates are measured after the last update, and how many there are."""
        runs = [run for model in self.plan.models for run in self.runs(model.name) if run["seed"] in model.all_seeds]
        for measure in self.plan.measures:
            runs, _ = self.complete(runs, measure.name)
        return len(runs), sum(len(model.all_seeds) for model in self.plan.models)

    def identical_models(self) -> list[tuple[str, str]]:
        """Return the pairs of models whose values are equal in all measures, seeds and checkpoints, times apart.

        Such a pair says nothing of an option by which the models differ, but that it has no effect.
        """
        of_models = {model.name: self._all_values(model.name) for model in self.plan.models}
        pairs = []
        for first, second in combinations(of_models, 2):
            seeds = of_models[first].keys() & of_models[second].keys()
            if seeds and all(of_models[first][seed] == of_models[second][seed] for seed in seeds):
                pairs.append((first, second))
        return pairs

    def _all_values(self, model: str) -> dict[int, dict[str, Any]]:
        """Return the values of a model by seed and measure, without those of seconds and without empty seeds."""
        measures = [measure.name for measure in self.plan.measures if not isinstance(measure.options, Seconds)]
        by_seed = {}
        for run in self.runs(model):
            values = {name: run["measures"][name] for name in measures if name in run["measures"]}
            if values:
                by_seed[run["seed"]] = values
        return by_seed

    def tested(self) -> list[Outcome]:
        """Return the outcomes of the contrasts that can be tested."""
        return marked(outcomes(self.plan, self.values), self.plan, self.content.get("looks", ()))

    def complete(self, runs: Sequence[dict[str, Any]], value: str) -> tuple[list[dict[str, Any]], Values]:
        """Return those of some runs that are measured after the last update, and their values."""
        measure, name = self.plan.measured_value(value)
        last = str(self.last_checkpoint(measure))
        complete = [run for run in runs if last in run["measures"].get(measure.name, {})]
        measured = [run["measures"][measure.name] for run in complete]
        return complete, Values([{int(updates): found for updates, found in run.items()} for run in measured], name)

    def last_checkpoint(self, measure: Measure) -> int:
        """Return the last checkpoint at which something is measured."""
        return measure.checkpoints(self.plan.checkpoints)[-1]

    def measured(self, measure: str) -> dict[str, Values]:
        """Return the values of all models that have some after the last update; their name is still empty."""
        found = {model.name: self.values(model.name, measure)[1] for model in self.plan.models}
        return {model: values for model, values in found.items() if values.runs}


def write_report(out: Path, content: Mapping[str, Any]) -> None:
    """Replace ``report.md`` and its figures in the directory of ``results.json``, whose content is given."""
    with replacing_files(out, REPORT) as made:
        write_text(made / REPORT, "\n".join(_report(made, content)))


def _report(made: Path, content: Mapping[str, Any]) -> list[str]:
    """Return the lines of a report, after drawing its figures in a directory."""
    results = Results(content)
    plan, lines = results.plan, [f"# {escaped(content['title'])}", ""]
    done, planned = results.progress()
    if done < planned:
        lines += [f"**Incomplete: {done} of {planned} trainings have all measurements.**", ""]
    identical = results.identical_models()
    for first, second in identical:
        pair = escaped(f"{first} and {second}")
        lines += [f"**{pair} are identical in every value**: their differences in the plan have no effect.", ""]
    if tested := results.tested():
        lines += ["## Contrasts", "", contrast_table(tested, identical), "", _notes(plan, tested), ""]
        plot_contrasts(made / f"{CONTRASTS}.png", tested, plan)
        lines += [f"![contrasts]({CONTRASTS}.png)", ""]
    if looks := content.get("looks"):
        lines += ["Looks: reports in which a primary contrast had all seeds of its plan.", "", look_table(looks), ""]
    names = [one.contrast.name for one in tested]
    if untested := [one.name for one in plan.contrasts if one.name not in names]:
        reason = "as fewer than two seeds of each model have the value" if done == planned else "as results are missing"
        lines += [f"Not tested, {reason}: {escaped('; '.join(untested))}.", ""]
    if extended := content.get("extended"):  # in studies of earlier versions, which accepted no other changes
        lines += ["Added to the plan after the study had begun:", "", *(f"- {escaped(one)}" for one in extended), ""]
    for change in content.get("changes", ()):
        lines += [f"The plan was changed on {escaped(change['date'])}:", "", *code_block("diff", change["lines"]), ""]
    lines += _rates(results)
    for measure in plan.measures:
        if measured := results.measured(measure.name):
            lines += _measure(made, measure, measured, results.last_checkpoint(measure))
    return [*lines, "## Made by", "", *_made_by(content), ""]


def look_table(looks: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the looks so far."""
    rows = [
        [look["contrast"], look["date"], str(len(look["seeds"])), _p(look["p"]), _p(look["corrected"]), look["verdict"]]
        for look in looks
    ]
    return markdown_table(["contrast", "date", "seeds", "p", "p (Holm)", "verdict"], rows)


def contrast_table(tested: Sequence[Outcome], identical: Sequence[tuple[str, str]] = ()) -> str:
    """Return a table of contrasts with every seed.

    Args:
        identical: pairs of models without any difference; their contrasts have no verdict.
    """
    pairs = [{*pair} for pair in identical]
    rows = []
    for one in tested:
        contrast, (low, high) = one.contrast, one.interval
        margin = f" ± {contrast.margin:g}" if contrast.predicted == "equivalent" else ""
        margin = f" than -{contrast.margin:g}" if contrast.predicted == "not worse" else margin
        quantity = f"{contrast.endpoint} of {contrast.of}, {contrast.model}"
        seeds = ", ".join(f"{value:+.3g}" for value in one.values.values())
        verdict = "identical models" if {contrast.model, contrast.less} in pairs else one.verdict
        rows.append(
            [
                f"{contrast.name}{f': {contrast.claim}' if contrast.claim else ''}",
                quantity + (f" less {contrast.less}" if contrast.less else ""),
                f"{contrast.predicted or '-'}{margin}",
                f"{one.mean:+.3g} [{low:+.3g}, {high:+.3g}]",
                seeds,
                *map(_p, (one.p, one.sign_flip, one.corrected)),
                f"**{verdict}**" if contrast.primary else verdict,
            ]
        )
    header = ["contrast", "quantity", "predicted", "mean [95 %]", "seeds", "p", "p (signs)", "p (Holm)", "verdict"]
    return markdown_table(header, rows)


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _notes(plan: Plan, tested: Sequence[Outcome]) -> str:
    seeds = max(len(one.values) for one in tested)
    primaries = sum(contrast.primary for contrast in plan.contrasts)
    notes = NOTES.format(primaries=primaries, seeds=seeds, least=2 / 2**seeds)
    if plan.looks:
        numbers = " and ".join(map(str, plan.looks))
        notes += f"\n- The plan has looks at {numbers} seeds; p (Holm) is corrected for them, too (Pocock)."
    if any(one.is_exploratory for one in tested):
        notes += (
            "\n- *Exploratory*: seeds were added, or the prediction was changed, after results had been seen, so that "
            "p is too small. `looks` in the plan states such looks beforehand."
        )
    return notes


def _rates(results: Results) -> list[str]:
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
        lines.append(f"- {escaped(model.name)}: {rate}{halved}{ending}")
    compared = dict.fromkeys((one.of, one.endpoint) for one in plan.contrasts if one.of != plan.rates.lowest)
    columns = {plan.rates.lowest: (plan.rates.lowest, "last")}
    columns |= {f"{endpoint} of {of}": (of, endpoint) for of, endpoint in compared}
    rows = [
        [
            run["model"],
            f"{run['learning_rate']:g}",
            str(run["seed"]),
            *(_of_run(results, run, *of) for of in columns.values()),
        ]
        for run in results.complete(results.content["runs"], plan.rates.lowest)[0]
        if run["learning_rate"]
    ]
    return [*lines, "", markdown_table(["model", "learning rate", "seed", *columns], rows), ""]


def _of_run(results: Results, run: dict[str, Any], of: str, endpoint: str) -> str:
    runs, values = results.complete([run], of)
    return f"{ENDPOINTS[endpoint](values)[0]:.4g}" if runs and values.name in values.final_names() else "-"


def _measure(made: Path, measure: Measure, measured: Mapping[str, Values], last: int) -> list[str]:
    names = value_names(measured)
    shown = [name for name in measure.options.shown or names if name in names]
    same = {} if len(measured) == 1 else _same_everywhere(measured, [name for name in names if name not in shown])
    others = [name for name in names if name not in shown and name not in same]
    lines = [f"## {escaped(measure.name)}", "", *_settings(measure)]
    lines += [f"After {last:,} updates:", "", *_final(measured, shown)]
    if above := [model for model, values in measured.items() if _is_above_entropy(values)]:
        listed = escaped("; ".join(above))
        lines += [f"**Loss not below the unigram entropy**, which takes frequencies of tokens alone: {listed}.", ""]
    lines += _by_updates(measured, shown)
    figure = made / f"{measure.name}.png"
    if plot_measure(figure, measure, measured):
        lines += [f"![{escaped(measure.name)}]({quote(figure.name)})", ""]
    if same:
        shared = ", ".join(f"{name} {value:.4g}" for name, value in same.items())
        lines += [f"Of all models, seeds and checkpoints: {escaped(shared)}.", ""]
    if others:
        lines += ["<details>", "<summary>All other values</summary>", "", *_final(measured, others), "</details>", ""]
    return lines


def _is_above_entropy(values: Values) -> bool:
    if not {"loss", "unigram_entropy"} <= {*values.final_names()}:
        return False
    return bool((values.other("loss").final() >= values.other("unigram_entropy").final()).any())


def _settings(measure: Measure) -> list[str]:
    options = ", ".join(f"{name} {value}" for name, value in vars(measure.options).items() if value is not None)
    what = measure.options.__doc__.splitlines()[0].replace("``", "`")
    return [f"{what} {code(options)}" if options else what, ""]


def _same_everywhere(measured: Mapping[str, Values], names: Sequence[str]) -> dict[str, float]:
    """Return the numbers that are equal in all models, seeds and checkpoints, such as baselines: not results."""
    found = {
        name: {
            None if isinstance(value := found_then.get(name), list) else value
            for values in measured.values()
            for run in values.runs
            for found_then in run.values()
        }
        for name in names
    }
    return {name: float(*values) for name, values in found.items() if len(values) == 1 and None not in values}


def _final(measured: Mapping[str, Values], names: Sequence[str]) -> list[str]:
    by_layer = value_names(measured)
    plain = [name for name in names if not by_layer[name]]
    rows = [
        [model, *(_cell(values.other(name).final()) if name in values.final_names() else "-" for name in plain)]
        for model, values in measured.items()
    ]
    lines = [markdown_table(["model", *plain], rows), ""] if plain else []
    for name in (name for name in names if by_layer[name]):
        lines += _by_layer(name, {model: values.final() for model, values in _that_have(measured, name).items()})
    return lines


def _by_updates(measured: Mapping[str, Values], names: Sequence[str]) -> list[str]:
    by_layer, lines = value_names(measured), []
    for name in names:
        found = _that_have(measured, name)
        checkpoints = sorted({updates for values in found.values() for updates in values.checkpoints})
        rows = [[model, *(_at(values, updates) for updates in checkpoints)] for model, values in found.items()]
        title = f"{name}{' of the last layer' if by_layer[name] else ''}, by updates"
        table = markdown_table([title, *(f"{updates:,}" for updates in checkpoints)], rows)
        lines += [table, ""] if len(checkpoints) > 1 else []
    return lines


def _at(values: Values, updates: int) -> str:
    return _cell(last_layer(values.at(updates)), seeds=False) if updates in values.checkpoints else "-"


def _that_have(measured: Mapping[str, Values], name: str) -> dict[str, Values]:
    return {model: values.other(name) for model, values in measured.items() if name in values.final_names()}


def _by_layer(name: str, of_models: Mapping[str, np.ndarray]) -> list[str]:
    layers = max(values.shape[1] for values in of_models.values())
    rows = [
        [model, *(_cell(column, seeds=False) for column in values.T), *[""] * (layers - values.shape[1])]
        for model, values in of_models.items()
    ]
    return [markdown_table([f"{name}, by layer", *map(str, range(layers))], rows), ""]


def _cell(values: np.ndarray, seeds: bool = True) -> str:
    if np.isnan(values).all():
        return "-"
    mean = f"{np.nanmean(values):.4g}"
    if len(values) == 1:
        return mean
    every = f" ({', '.join(f'{value:.4g}' for value in values)})" if seeds else ""
    return f"{mean} ± {np.nanstd(values, ddof=1):.2g}{every}"


def _made_by(content: Mapping[str, Any]) -> list[str]:
    runs = content["runs"]
    if not runs:
        return ["Nothing is finished yet."]
    hours = sum(sum(run["seconds"].values()) for run in runs) * content["threads"] / 3600
    commits, machines, versions = (
        "; ".join(sorted({one for run in runs for one in run[name]})) for name in ("commits", "machines", "versions")
    )
    made_by = escaped(f"{commits}; {machines}; {versions}")
    return [
        f"`mae-lm study`, {len(runs)} trainings, {hours:.1f} core-hours, pauses included ({content['threads']} threads "
        f"per run), commit {made_by}. `results.json` has the plan, every command, seed and checkpoint.",
        "",
        *code_block("toml", content["plan"].rstrip("\n").split("\n")),
    ]


def value_names(measured: Mapping[str, Values]) -> dict[str, bool]:
    """Return the names of all values of a measure, and whether they are by layer."""
    return {
        name: isinstance(values.runs[0][values.checkpoints[-1]][name], list)
        for values in measured.values()
        for name in values.final_names()
    }


def plot_measure(path: Path, measure: Measure, measured: Mapping[str, Values]) -> bool:
    """Plot values by layer after the last update, or else numbers by checkpoint; return whether there is anything."""
    by_layer = value_names(measured)
    has_layers, lines = any(by_layer.values()), {}
    for name in (name for name in by_layer if by_layer[name] == has_layers):
        of_model = lines.setdefault(name, {})
        for model, values in ((model, values.other(name)) for model, values in measured.items()):
            if name in values.final_names():
                y = values.final() if has_layers else np.stack([values.at(one) for one in values.checkpoints], axis=1)
                of_model[model] = Lines(np.arange(y.shape[1]) if has_layers else np.array(values.checkpoints), y)
    same = _same_everywhere(measured, [name for name in by_layer if not by_layer[name]])
    return measure.options.figure(path, measure.name, LAYER if has_layers else "updates", lines, same)


def plot_contrasts(path: Path, tested: Sequence[Outcome], plan: Plan) -> None:
    """Plot every contrast on an axis of its own: seeds as dots, the mean with its 95 % interval, and zero."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 1.1 * len(tested)), layout="constrained")
    for axes, one in zip(figure.subplots(len(tested), 1, squeeze=False)[:, 0], tested, strict=True):
        (low, high), colour = one.interval, COLOURS[0] if one.contrast.primary else "grey"
        axes.axvline(0, color="black", linewidth=0.8)
        for margin in (one.contrast.margin or 0.0, -(one.contrast.margin or 0.0)):
            axes.axvline(margin, color="black", linewidth=0.8, linestyle=":")
        axes.plot([low, high], [0, 0], color=colour, linewidth=2)
        axes.plot([one.mean], [0], "D", color=colour)
        axes.plot([*one.values.values()], [0.5] * len(one.values), "o", color=colour, alpha=0.5, markersize=4)
        less = f" less {one.contrast.less}" if one.contrast.less else ""
        axes.set_title(f"{one.contrast.name}: {one.contrast.model}{less}", fontsize=8, loc="left")
        measure, value = plan.measured_value(one.contrast.of)
        endpoint = "" if one.contrast.endpoint == "last" else f": {one.contrast.endpoint.replace('_', ' ')}"
        axes.set_xlabel(measure.options.in_words(value) + endpoint, fontsize=7)
        axes.set(ylim=(-0.5, 1), yticks=[])
        axes.tick_params(labelsize=7)
    figure.suptitle("Contrasts: seeds (dots), mean and 95 % interval; primary ones in colour", fontsize=9)
    figure.savefig(path, dpi=120)

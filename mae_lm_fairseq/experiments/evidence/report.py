"""Report of the evidence study: verdicts, tables and figures, from the JSON files of the stages alone."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mae_lm_fairseq.analysis.figures import LAYER
from mae_lm_fairseq.experiments.evidence.arms import (
    DEEP_MLM,
    DEEP_MLM_LAYER,
    FRACTIONS,
    FURTHER_CAUSAL,
    MAE_LM,
    MAE_LM_OWN_RATE,
    MLM,
    MLM_801010,
    MLM_OTHER_RATE,
    PILOT_LEARNING_RATE,
)
from mae_lm_fairseq.experiments.evidence.hypotheses import (
    MARGIN,
    Hypothesis,
    best_layer_below,
    final,
    interval,
    last_layer,
    last_less_below,
    last_probes,
    models_of,
    outcomes,
    rank_in,
    ranks,
    runs_of,
    split_by_seeds,
)
from mae_lm_fairseq.experiments.evidence.settings import PRIMARY_RANK, SUITES, THRESHOLDS
from mae_lm_fairseq.experiments.evidence.study import check_same, learning_rates
from mae_lm_fairseq.experiments.reproduction_figures import Lines, Panel, plot_panels
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.markdown import markdown_table

NOTES = """\
- *Last less best below*: the probe's accuracy at the last layer less that of the best layer below it, of which layer 0
  (the embeddings) is one. The tables name that layer, and have the same difference without layer 0 beside.
- p: of a t test, two-sided for < 0 and > 0, one-sided otherwise (within: the larger one of two). p (Holm): corrected
  over all nine hypotheses, also while some of them have no results yet. The intervals are not corrected. Equal values
  have no variance, and p = 1.
- *Not shown* is no evidence of the opposite.
- The tables below give mean ± standard deviation over the seeds of pretraining. *Random weights* are one draw."""

AFTER_THE_DECAY = """\
The learning rate decays in the last quarter alone. So the last point of a curve differs from the others in more than
the number of tokens."""


def write_report(directory: Path, stages: Mapping[str, dict]) -> None:
    """Write ``report.md`` and the figures of all stages that have results.

    Args:
        directory: output directory.
        stages: content of ``pilot.json``, ``causal.json``, ``main.json`` and ``further.json``, as far as they exist.

    Raises:
        UserError: if the stages differ in size or files.
    """
    check_same(list(stages.values()))
    pilot, causal, main, further = (stages.get(name) for name in ("pilot", "causal", "main", "further"))
    hours = sum(run["core_hours"] for stage in stages.values() for run in stage["runs"])
    lines = ["# Evidence study", "", f"{hours:.1f} core-hours.", *_versions(stages)]
    main, unfinished = split_by_seeds(main) if main else (None, None)
    if causal or main:
        lines += ["", "## Hypotheses", "", verdicts(outcomes(causal, main)), "", NOTES]
        lines += premise_of_main(main) if main else []
        lines += [premise(causal)] if causal else []
    if main:
        _plot_main(directory, main)
        lines += ["", "## Main runs", "", _models_table(main), *at_the_other_rate(main)]
        lines += ["", _ranks_table(main), "", _curves_table(main), "", AFTER_THE_DECAY, "", _pairs_table(main)]
        lines += ["", "![probe by layer](probe.png)", "", "![rank by tokens](rank.png)", "", "![pairs](pairs.png)"]
    lines += _observations(unfinished) if unfinished and unfinished["runs"] else []
    beside, branches = _parts(further) if further else ([], [])
    if causal:
        causal = causal | {"runs": causal["runs"] + beside}
        _plot_fractions(directory, causal)
        lines += ["", "## Causal test", "", _models_table(causal), "", "![fraction of [MASK]](fractions.png)"]
    if branches:
        lines += ["", "## Decay at half way", "", _models_table(further | {"runs": branches})]
    if pilot:
        _plot_factors(directory, pilot)
        lines += ["", "## Pilot", "", rates(pilot), "", _pilot_table(pilot), "", "![factors of the pilot](pilot.png)"]
    write_text(directory / "report.md", "\n".join([*lines, ""]))


def _parts(further: dict) -> tuple[list[dict], list[dict]]:
    """Return the runs that belong to the causal test, and the decay branches."""
    beside = [run for run in further["runs"] if run["model"] in FURTHER_CAUSAL]
    return beside, [run for run in further["runs"] if run not in beside]


def premise(causal: dict) -> str:
    """Return whether the causal runs have the deficit whose cause H7 and H8 are about."""
    values = last_less_below(causal, MLM)
    low, high = interval(values)
    found = f"last less best below is {values.mean():+.2f} [{low:+.2f}, {high:+.2f}]"
    meaning = "these runs have" if high < 0 else "these runs do not show, so that neither verdict means anything"
    return f"- H7 and H8 are about the cause of the MLM's deficit, which {meaning}: its {found}."


def premise_of_main(main: dict) -> list[str]:
    """Return how the last layer's probe developed at the learning rate of the hypotheses, and whether it got worse."""
    found, damaged = [], []
    for model in (MLM, MLM_801010, MAE_LM):
        curve = {label: last_probes(main, model, label).mean() for label in runs_of(main, model)[0]["probe"]}
        best = max(curve, key=curve.get)
        end = final(runs_of(main, model)[0])
        found.append(f"{model} {curve[best]:.1f} after {best} updates, {curve[end]:.1f} after {end}")
        damaged += [model] if curve[end] < curve[best] - MARGIN else []
    lines = [f"- Last layer's probe at its best checkpoint and at the end, at this learning rate: {'; '.join(found)}."]
    if damaged:
        worse = f"The last layer of {' and of '.join(damaged)} gets worse in training"
        lines += [f"- **{worse}**, at a rate that was chosen by the loss of shorter runs. What a comparison with it"]
        lines += ["  shows may be this damage."]
    return lines


def at_the_other_rate(main: dict) -> list[str]:
    """Return MAE-LM less the MLM at MAE-LM's learning rate, if both were trained at it."""
    if not {MAE_LM_OWN_RATE, MLM_OTHER_RATE} <= set(models_of(main)):
        return []
    of = {"last layer's probe": last_probes, "last less best below": last_less_below, "rank": ranks}
    found = [f"{name} {_cell(get(main, MAE_LM_OWN_RATE) - get(main, MLM_OTHER_RATE))}" for name, get in of.items()]
    return ["", f"MAE-LM less MLM, both at MAE-LM's learning rate, by seeds: {', '.join(found)}."]


def _observations(unfinished: dict) -> list[str]:
    """Return the tables of models that lack seeds; no test and no figure is about them."""
    seeds = ", ".join(str(seed) for seed in sorted({run["seed"] for run in unfinished["runs"]}))
    note = f"Observations without a test, because these models lack seeds: seed {seeds}."
    return ["", "### Some seeds alone", "", note, "", _models_table(unfinished), "", _curves_table(unfinished)]


def rates(pilot: dict) -> str:
    """Return the best learning rates."""
    mlm, mae_lm = learning_rates(pilot)
    return f"Lowest loss: learning rate {mlm} for the {MLM}, {mae_lm} for {MAE_LM}."


def verdicts(hypotheses: list[Hypothesis]) -> str:
    """Return the table of hypotheses."""
    rows = []
    for one in hypotheses:
        low, high = one.interval
        seeds = ", ".join(f"{value:+.2f}" for value in one.values)
        rows.append(
            [
                *(one.name, one.claim, one.endpoint, one.predicted),
                f"{one.mean:+.2f} [{low:+.2f}, {high:+.2f}]",
                *(seeds, _p(one.p), _p(one.corrected), f"**{one.verdict}**"),
            ]
        )
    header = ["", "hypothesis", "endpoint", "predicted", "mean [95 %]", "seeds", "p", "p (Holm)", "verdict"]
    return markdown_table(header, rows)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _versions(stages: Mapping[str, dict]) -> list[str]:
    return [
        f"- {name}: commit {', '.join(map(str, stage['commits']))}, {'; '.join(stage['machine'])}, "
        + ", ".join(f"{package} {version}" for package, version in stage["versions"].items())
        for name, stage in stages.items()
    ]


def _cell(values: np.ndarray, digits: int = 1) -> str:
    return f"{values.mean():.{digits}f}" + (f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else "")


def _losses(stage: dict, model: str, label: str = "") -> np.ndarray:
    return np.array([run["loss"][label or final(run)]["loss"] for run in runs_of(stage, model)])


def _layers(stage: dict, model: str) -> np.ndarray:
    """Return the probe's accuracies, float[seeds, layers]."""
    return np.array([run["probe"][final(run)]["layers"] for run in runs_of(stage, model)])


def _models_table(stage: dict) -> str:
    """Return loss, probes and ranks of every model at the end of training."""
    rows = []
    for model in models_of(stage):
        title = f"{model} (layer {DEEP_MLM_LAYER} counts as the last)" if model == DEEP_MLM else model
        layers = " ".join(f"{mean:.1f}" for mean in _layers(stage, model).mean(0))
        first, *_ = runs_of(stage, model)
        random = first["probe"][final(first)]["random weights"][last_layer(model)]
        cells = [_cell(_losses(stage, model), 3), layers, _cell(last_probes(stage, model), 2)]
        for lowest in (0, 1):
            best = best_layer_below(stage, model, lowest)
            cells.append(f"{_cell(last_less_below(stage, model, lowest), 2)} (layer {best})")
        cells += [_cell(ranks(stage, model)), f"{random:.1f}"]
        rows.append([title, *cells])
    header = ["model", "loss", "probe, layers 0 to the last", "last layer"]
    header += ["last less best below", "the same without layer 0", "rank", "random weights"]
    return markdown_table(header, rows)


def _ranks_table(stage: dict) -> str:
    """Return the rank of real tokens by every measure."""
    measures = [
        (f"{name}{ending}", f"rank-{threshold}{ending.replace(' ', '-')}", measure)
        for ending in ("", " centred")
        for name, threshold, measure in (
            *((f"threshold {threshold}", threshold, "threshold") for threshold in THRESHOLDS),
            ("entropy", THRESHOLDS[0], "entropy"),
        )
    ]
    rows = [
        [model, *(_cell(ranks(stage, model, measure=measure, settings=name)) for _, name, measure in measures)]
        for model in models_of(stage)
    ]
    return markdown_table(["rank of real tokens", *(title for title, *_ in measures)], rows)


def _curves_table(stage: dict) -> str:
    """Return loss, last probe, rank and minimal pairs by number of updates."""
    rows = []
    for model in models_of(stage):
        for label in runs_of(stage, model)[0]["loss"]:
            pairs = [_cell(_pairs(stage, model, name, label)) for name in SUITES]
            cells = [
                _cell(_losses(stage, model, label), 3),
                _cell(last_probes(stage, model, label), 2),
                _cell(ranks(stage, model, label)),
                *pairs,
            ]
            rows.append([model, label, *cells])
    return markdown_table(["model", "updates", "loss", "last layer's probe", "rank", *SUITES.values()], rows)


def _pairs_table(stage: dict) -> str:
    """Return the accuracies on minimal pairs at the end of training; those of the controls are equal for all seeds."""
    first = stage["runs"][0]
    _, *controls = first["blimp"][final(first)]
    rows = [
        [
            *(model, title, _cell(_pairs(stage, model, name))),
            *(f"{_pairs(stage, model, name, scorer=control)[0]:.1f}" for control in controls),
        ]
        for model in models_of(stage)
        for name, title in SUITES.items()
    ]
    return markdown_table(["model", "minimal pairs", "accuracy", *controls], rows)


def _pairs(stage: dict, model: str, name: str, label: str = "", scorer: str = "model") -> np.ndarray:
    """Return accuracies on minimal pairs in per cent, float[seeds]: of the model, or of a control beside it."""
    return np.array([run[name][label or final(run)][scorer] for run in runs_of(stage, model)])


def _pilot_table(pilot: dict) -> str:
    """Return loss and ranks of every run; that of ``[MASK]`` where the encoder sees it in training."""
    rows = []
    for run in pilot["runs"]:
        measured = run[PRIMARY_RANK][final(run)]
        sees_masks = any((row["input"], row["tokens"]) == ("as_trained", "mask") for row in measured)
        mask = f"{rank_in(measured, 'threshold', 'as_trained', 'mask'):.0f}" if sees_masks else ""
        loss, real = run["loss"][final(run)]["loss"], rank_in(measured, "threshold")
        change = run["change"] + " (baseline)" * _is_baseline(run)
        rows.append([run["model"], change, f"{loss:.3f}", f"{real:.0f}", mask])
    return markdown_table(["model", "factor", "loss", "rank of real tokens", "rank of `[MASK]`"], rows)


def _plot_main(directory: Path, main: dict) -> None:
    models = models_of(main)
    probes = {model: Lines(np.arange(len(_layers(main, model)[0])), _layers(main, model)) for model in models}
    plot_panels(
        directory / "probe.png",
        "Frozen probe of the part of speech",
        Panel("end of training", LAYER, "accuracy (%)", probes),
    )
    labels = list(runs_of(main, models[0])[0]["loss"])
    tokens = np.array([int(label) for label in labels]) * main["runs"][0]["tokens_per_update"] / 1e6

    def curves(of) -> dict[str, Lines]:
        return {model: Lines(tokens, np.array([of(model, label) for label in labels]).T) for model in models}

    def pairs(name: str) -> dict[str, Lines]:
        titles = {"length": "the shorter sentence", "unigram": "the sum of the tokens' log-frequencies"}
        controls = {
            # The same for all models and seeds.
            title: Lines(tokens[[0, -1]], np.full((1, 2), _pairs(main, models[0], name, scorer=scorer)[0]), True)
            for scorer, title in titles.items()
        }
        return curves(lambda model, label: _pairs(main, model, name, label)) | controls

    millions = "million tokens of training"
    plot_panels(
        directory / "rank.png",
        "Real tokens in clean text, last layer",
        Panel("threshold rank (0.9)", millions, "rank", curves(lambda model, label: ranks(main, model, label))),
        Panel("entropy rank", millions, "rank", curves(lambda model, label: ranks(main, model, label, "entropy"))),
    )
    plot_panels(
        directory / "pairs.png",
        "Minimal pairs",
        *(Panel(title, millions, "accuracy (%)", pairs(name)) for name, title in SUITES.items()),
    )


def _plot_fractions(directory: Path, causal: dict) -> None:
    """Plot probe and rank against the fraction of ``[MASK]`` in the encoder; models without a decoder as points."""
    trained = models_of(causal)
    fractions = {fraction: model for fraction, model in FRACTIONS.items() if model in trained}
    x = np.array(list(fractions))

    def lines(of) -> dict[str, Lines]:
        found = {"with a decoder": Lines(x, np.array([of(causal, model) for model in fractions.values()]).T)}
        without = [model for model in (MLM, DEEP_MLM) if model in trained]
        return found | {model: Lines(np.array([1.0]), of(causal, model)[:, None]) for model in without}

    fraction = "fraction of [MASK] in the encoder"
    plot_panels(
        directory / "fractions.png",
        "The decoder or the [MASK]?",
        Panel("last layer", fraction, "probe, accuracy (%)", lines(last_probes)),
        Panel("last layer less the best one below", fraction, "points", lines(last_less_below)),
        Panel("real tokens in clean text", fraction, "threshold rank (0.9)", lines(ranks)),
    )


def _plot_factors(directory: Path, pilot: dict) -> None:
    """Plot loss and rank of every pilot run, one row each, with lines at the baselines."""
    from matplotlib.figure import Figure  # optional (extra "analysis")

    runs = sorted(pilot["runs"], key=_order, reverse=True)
    names = [f"{run['model']}; {run['change']}" for run in runs]
    colours = ["#0072B2" if run["model"] == MLM else "#D55E00" for run in runs]
    figure = Figure(figsize=(10, 1 + 0.4 * len(runs)), layout="constrained")
    figure.suptitle(f"Pilot: one factor changed at a time; dotted: learning rate {PILOT_LEARNING_RATE}")
    left, right = figure.subplots(1, 2, sharey=True)
    losses = [run["loss"][final(run)]["loss"] for run in runs]
    found = [rank_in(run[PRIMARY_RANK][final(run)], "threshold") for run in runs]
    left.set(title="loss on fixed masked positions (nats)")
    right.set(title="threshold rank of real tokens, last layer")
    for axes, values in ((left, losses), (right, found)):
        axes.scatter(values, names, c=colours)
        for run, value, colour in zip(runs, values, colours, strict=True):
            if _is_baseline(run):
                axes.axvline(value, color=colour, linestyle=":")
        axes.grid(alpha=0.25)
    figure.savefig(directory / "pilot.png", dpi=150)


def _order(run: dict) -> tuple:
    """Return the key to sort pilot runs by: model, then learning rates from low to high, then other factors."""
    _, is_rate, rate = run["change"].partition("learning rate ")
    return run["model"], not is_rate, float(rate or 0), run["change"]


def _is_baseline(run: dict) -> bool:
    return run["change"] == f"learning rate {PILOT_LEARNING_RATE}"

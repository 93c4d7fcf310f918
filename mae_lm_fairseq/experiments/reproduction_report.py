"""Report of the reproduction: tables, verdicts and figures, created from ``results.json`` alone."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mae_lm_fairseq.analysis.figures import LAYER, MASKED_LOSS
from mae_lm_fairseq.downstream.seeds import Summary, difference, summarise
from mae_lm_fairseq.experiments.reproduction import FRACTIONS, HEADLINES, MAE_LM, MLM, THREE_ML
from mae_lm_fairseq.experiments.reproduction_figures import Lines, Panel, plot_panels
from mae_lm_fairseq.experiments.scales import SCALES
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.markdown import markdown_table

FINETUNED = ("clean", "finetuned")
KINDS = {
    ("clean", "real"): "real tokens, no [MASK] in the text",
    ("as_trained", "real"): "real tokens, [MASK] in the text as in pretraining",
    ("forced", "real"): "real tokens, [MASK] forced into the encoder",
    ("as_trained", "mask"): "[MASK]",
    ("forced", "mask"): "[MASK], forced into the encoder",
    FINETUNED: "real tokens, no [MASK] in the text, after fine-tuning",
}

REPORT = """\
# Reproduction at scale `{scale}`

{notes}

{verdicts}

Mean ± standard deviation over the seeds of pretraining (fine-tuning has the same seed): {seeds}. Differences with
Welch's 95 % interval and p-value, not corrected for their number. No model had a recipe of its own. A p-value above
0.05 says that this scale cannot tell, not that there is no difference.

## Loss and fine-tuning

{quality}

- Loss: cross-entropy in nats of a masked token of the validation text, at the same positions for every model.
- Seconds: the number of updates times the median of what an update took, validation left out.
- Equal time: after as many seconds of training as the fastest of these models took in all, between checkpoints on a
  straight line. This favours the fastest: the learning rate of the others had not come to its end then, and a straight
  line lies above a loss that falls ever more slowly.
- Score: the best of a run's validations on the development set of {task}, in per cent, with one recipe for all. So it
  is a comparison of models, too high for any one of them. Of the {mlm} and of {mae_lm}, {curves} seeds were fine-tuned
  from every checkpoint, the others from the last.

Differences from the {mlm}, equal updates and equal time:

{differences}

![Quality against pretraining time](time.png)

## How much [MASK] the encoder sees (the paper's Figure 4)

{fractions}

![Quality against the fraction of [MASK] in the encoder](fractions.png)

## Effective rank (the paper's Figures 1 and 5)

The threshold rank of the states: how many directions hold 90 % of their sum of squares, of {width}. After fine-tuning:
of the last checkpoint, on the text of before.

{ranks}

![Rank against layer](ranks.png)

![Gap between text with and without [MASK], and rank before and after fine-tuning](gaps.png)

## Made by

```bash
{command}
```

On {machine}, {jobs} runs at a time, one thread each; {versions}. `results.json` beside this file has every number.
"""


NOTES = {
    "smoke": "This scale shows that the command works. Of the papers it says nothing.",
    "tiny": "At this size 3ML-self and MAE-LM are one network (docs/results/presets.md): what differs is the share "
    "that is masked, 50 % and 15 %.",
}


class Finding(NamedTuple):
    """Two sets of seeds, and whether they differ."""

    ours: Summary
    theirs: Summary
    p: float
    """NaN if neither set has any variance."""

    @property
    def is_clear(self) -> bool:
        return self.p < 0.05

    def __str__(self) -> str:
        return f"{difference(self.ours, self.theirs)}" + (self.p_in_words and f" ({self.p_in_words})")

    @property
    def p_in_words(self) -> str:
        """The p-value as text; empty if it is undefined."""
        return "" if np.isnan(self.p) else "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"


def write_report(out: Path, content: dict, command: str) -> None:
    """Write ``report.md`` and its figures.

    Args:
        out: output directory.
        content: content of ``results.json``.
        command: the command that created the results.
    """
    results = Results(content)
    _draw(out, results)
    report = REPORT.format(
        scale=content["scale"],
        notes=_notes(content["scale"]),
        verdicts="\n".join(f"- {verdict}" for verdict in verdicts(results)),
        seeds=", ".join(f"{len(seeds)} of {name}" for name, seeds in results.loss.items()),
        quality=_quality(results),
        differences=_differences(results),
        fractions=_fractions(results),
        ranks=_ranks(results),
        task=content["task"],
        mlm=MLM,
        mae_lm=MAE_LM,
        curves=len(results.at_equal_time(results.score, MLM)),
        width=results.width,
        command=command,
        machine=content["machine"],
        jobs=content["jobs"],
        versions=", ".join(f"{name} {number}" for name, number in content["versions"].items()),
    )
    write_text(out / "report.md", report)


class Results:
    """Values of ``results.json`` by variant, as lists over seeds; NaN for checkpoints without a score."""

    def __init__(self, content: dict):
        ranked = [run for run in content["pretraining"] if run["ranks"]]
        self.width, self.layers = ranked[0]["ranks"]["width"], ranked[0]["ranks"]["layers"]
        self.loss, self.seconds = defaultdict(list), defaultdict(list)
        self.rank = defaultdict(list)
        for run in content["pretraining"]:
            self.loss[run["variant"]].append([point["valid_loss"] for point in run["checkpoints"]])
            self.seconds[run["variant"]].append([point["seconds"] for point in run["checkpoints"]])
        for run in ranked:
            self._add_ranks(run["variant"], run["ranks"]["rows"])
        for run in content["finetuning"]:
            if "ranks" in run:
                self._add_ranks(run["variant"], [row | {"tokens": FINETUNED[1]} for row in run["ranks"]["rows"]])
        by_seed = defaultdict(dict)
        for run in content["finetuning"]:
            by_seed[run["variant"], run["seed"]][run["updates"]] = run["score"]
        self.score = defaultdict(list)
        for (variant, _), scores in by_seed.items():
            checkpoints = sorted({run["updates"] for run in content["finetuning"] if run["variant"] == variant})
            self.score[variant].append([scores.get(updates, np.nan) for updates in checkpoints])

    def _add_ranks(self, variant: str, rows: list[dict]):
        for kind in KINDS:
            of_kind = [row for row in rows if (row["input"], row["tokens"]) == kind]
            if of_kind:
                values = [np.nan] * (self.layers + 1)
                for row in of_kind:
                    values[row["layer"]] = row["threshold"]
                self.rank[variant, kind].append(values)

    def gap(self, variant: str, input: str) -> np.ndarray:
        """Return the rank of real tokens with an input minus the rank with clean text, [seeds, layers + 1]."""
        return np.array(self.rank[variant, (input, "real")]) - np.array(self.rank[variant, ("clean", "real")])

    def at_equal_time(self, values: dict[str, list], variant: str) -> list[float]:
        """Return a quantity at the total training time of the fastest variant, for each seed with all checkpoints.

        Values between checkpoints are interpolated linearly. All seeds of a variant do the same work, so their median
        times are used: those of a single run depend on what else the machine did.
        """
        end = min(np.median(_last(self.seconds[name])) for name in HEADLINES)
        seconds = np.median(self.seconds[variant], axis=0)
        return [float(np.interp(end, seconds, seed)) for seed in values[variant] if not np.isnan(seed).any()]


def finding(ours: Sequence[float], theirs: Sequence[float]) -> Finding:
    """Test whether two sets of seeds differ, with Welch's t-test."""
    from scipy.stats import ttest_ind_from_stats

    sides = summarise(list(ours)), summarise(list(theirs))
    if not any(side.std for side in sides):
        return Finding(*sides, np.nan)
    numbers = [number for side in sides for number in (side.mean, side.std, len(side.values))]
    return Finding(*sides, float(ttest_ind_from_stats(*numbers, equal_var=False).pvalue))


def above_zero(values: np.ndarray) -> Finding:
    """Test whether differences, one per seed, are nonzero, with Student's t-test."""
    return finding(values, np.zeros_like(values))


def _last(values: Sequence[Sequence[float]]) -> list[float]:
    return [seed[-1] for seed in values]


def verdicts(results: Results) -> list[str]:
    """Return the papers' claims with the results for each."""
    masks = np.array(results.rank[MLM, ("as_trained", "mask")])
    rise = masks[:, -1] - masks[:, 1]
    gap = results.gap(MLM, "as_trained")[:, -1]
    clean, finetuned = (
        [_last(results.rank[name, kind]) for name in (MAE_LM, MLM)] for kind in (("clean", "real"), FINETUNED)
    )
    last = {name: _last(results.score[name]) for name in results.score}
    return [
        f"**The rank of `[MASK]` rises through the layers of the MLM** (Lemma 2.1): from {masks[:, 1].mean():.1f} in "
        f"the first layer to {masks[:, -1].mean():.1f} in the last; {_verdict(above_zero(rise))}.",
        f"**Real tokens of the MLM have a higher rank with `[MASK]` around than without** (Figure 1): by "
        f"{_mean(gap, 2)} in the last layer; {_verdict(above_zero(gap))}.",
        f"**MAE-LM closes that gap** (Figure 5 a): {_closing(results, gap)}.",
        f"**Real tokens have a higher rank in MAE-LM than in the MLM** (Figure 5 a), clean text, last layer: "
        f"{_verdict(finding(*clean))}.",
        f"**And after fine-tuning** (Figure 5 b), the same text and layer: {_verdict(finding(*finetuned))}.",
        f"**MAE-LM is better after fine-tuning at equal updates** (Figure 3): "
        f"{_verdict(finding(last[MAE_LM], last[MLM]))}.",
        f"**3ML loses nothing at equal updates**, score: "
        f"{_verdict(finding(last[THREE_ML], last[MLM]), is_claimed_higher=False)}.",
        f"**Fine-tuning suffers when the encoder sees `[MASK]`** (Figure 4), none less all: "
        f"{_verdict(finding(last[MAE_LM], last[FRACTIONS[1.0]]))}.",
    ]


def _closing(results: Results, gap: np.ndarray) -> str:
    """Describe the gap that remains in MAE-LM, for both ways of encoding text with ``[MASK]``."""
    forced, omitted = (results.gap(MAE_LM, kind)[:, -1] for kind in ("forced", "as_trained"))
    if above_zero(gap).is_clear and gap.mean() > 0:
        verdict = f"the size of the MLM's less that of the former: {_verdict(finding(np.abs(gap), np.abs(forced)))}"
    else:
        verdict = "there is no clear gap in the MLM that could be closed"
    return (
        f"{_mean(forced, 2)} with `[MASK]` forced into its encoder, {_mean(omitted, 2)} with masked tokens left out as "
        f"in pretraining; {verdict}"
    )


def _verdict(found: Finding, is_claimed_higher: bool = True) -> str:
    """Return the difference, with a statement of whether it agrees with the paper."""
    mean = difference(found.ours, found.theirs).mean
    if not found.is_clear:
        words = "no difference that this scale can show"
    elif not is_claimed_higher:
        words = "higher" if mean > 0 else "lower"
    else:
        words = "shown" if mean > 0 else "**the opposite shows**"
    return f"{words}: {found}"


def _notes(scale: str) -> str:
    """Return the notes to read before the results of a scale."""
    size = SCALES[scale].size
    return "\n\n".join(dict.fromkeys(NOTES[name] for name in (scale, size) if name in NOTES))


def _quality(results: Results) -> str:
    rows = []
    for name in HEADLINES:
        seconds = np.median(_last(results.seconds[name]))
        rows.append(
            [
                name,
                f"{seconds:,.0f}",
                _mean(_last(results.loss[name]), 3),
                _mean(results.at_equal_time(results.loss, name), 3),
                _mean(_last(results.score[name]), 1),
                _mean(results.at_equal_time(results.score, name), 1),
            ]
        )
    header = ["", "seconds", "loss, equal updates", "loss, equal time", "score, equal updates", "score, equal time"]
    return markdown_table(header, rows)


def _differences(results: Results) -> str:
    rows = []
    for name in (MAE_LM, THREE_ML):
        for what, values, form in (("loss", results.loss, ".3f"), ("score", results.score, ".1f")):
            pairs = (
                (_last(values[name]), _last(values[MLM])),
                (results.at_equal_time(values, name), results.at_equal_time(values, MLM)),
            )
            rows.append([name, what, *(_interval(finding(*pair), form) for pair in pairs)])
    return markdown_table(["", "", "equal updates", "equal time"], rows)


def _interval(found: Finding, form: str) -> str:
    between = difference(found.ours, found.theirs)
    if between.low is None:
        return format(between.mean, "+" + form)
    words = f"{between.mean:+{form}} [{between.low:+{form}}, {between.high:+{form}}]"
    return words + (found.p_in_words and f", {found.p_in_words}")


def _fractions(results: Results) -> str:
    rows = [
        [f"{fraction:.0%}", _mean(_last(results.loss[name]), 3), _mean(_last(results.score[name]), 1)]
        for fraction, name in {0.0: MAE_LM, **FRACTIONS}.items()
    ]
    return markdown_table(["`[MASK]`s in the encoder", "loss", "score"], rows)


def _ranks(results: Results) -> str:
    rows = [
        [name, label, *(_mean(layer, 1) for layer in np.array(results.rank[name, kind]).T)]
        for name in (MLM, MAE_LM)
        for kind, label in KINDS.items()
        if results.rank[name, kind]
    ]
    layers = [f"layer {layer}" for layer in range(1, results.layers + 1)]
    return markdown_table(["", "states", "embeddings", *layers], rows)


def _mean(values: Sequence[float], digits: int) -> str:
    summary = summarise(list(values))
    spread = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    return f"{summary.mean:.{digits}f}{spread}"


def _draw(out: Path, results: Results) -> None:
    _draw_ranks(out / "ranks.png", results)
    _draw_gaps(out / "gaps.png", results)
    qualities = (("After fine-tuning", "score (%)", results.score), ("Validation text", MASKED_LOSS, results.loss))
    seconds = {name: np.array(results.seconds[name]) for name in HEADLINES}
    panels = (
        Panel(
            title,
            "seconds of pretraining",
            label,
            {name: Lines(seconds[name], np.array(values[name])) for name in seconds},
        )
        for title, label, values in qualities
    )
    plot_panels(out / "time.png", "Quality against pretraining time", *panels)
    panels = (
        Panel(title, "[MASK] tokens that the encoder sees (%)", label, {"MAE-LM": _by_fraction(values)})
        for title, label, values in qualities
    )
    plot_panels(out / "fractions.png", "Quality against the fraction of [MASK] in the encoder", *panels)


def _draw_ranks(path: Path, results: Results) -> None:
    layers = np.arange(results.layers + 1)
    panels = [
        Panel(
            name,
            LAYER,
            f"effective rank (of {results.width})",
            {
                label: Lines(layers, np.array(results.rank[name, kind]))
                for kind, label in KINDS.items()
                if kind != FINETUNED and results.rank[name, kind]
            },
        )
        for name in (MLM, MAE_LM)
    ]
    plot_panels(path, "Effective rank by layer", *panels, share_y=True, from_zero=True)


def _draw_gaps(path: Path, results: Results) -> None:
    layers = np.arange(results.layers + 1)
    gaps = {
        f"{name}, [MASK] {words}": Lines(layers, results.gap(name, kind))
        for name in (MLM, MAE_LM)
        for kind, words in (("as_trained", "as in pretraining"), ("forced", "forced into the encoder"))
        if results.rank[name, (kind, "real")]
    }
    stages = {
        f"{name}, {words} fine-tuning": Lines(layers, np.array(results.rank[name, kind]))
        for name in (MLM, MAE_LM)
        for kind, words in ((("clean", "real"), "before"), (FINETUNED, "after"))
    }
    gap = Panel("Rank with [MASK] in the text minus rank without", LAYER, "difference of effective ranks", gaps)
    clean = Panel("Rank without [MASK] in the text", LAYER, f"effective rank (of {results.width})", stages)
    plot_panels(path, "Effective rank of real tokens", gap, clean)


def _by_fraction(values: dict[str, list]) -> Lines:
    names = {0.0: MAE_LM, **FRACTIONS}
    by_seed = zip_longest(*(_last(values[name]) for name in names.values()), fillvalue=np.nan)
    return Lines(100 * np.array(list(names)), np.array(list(by_seed)))

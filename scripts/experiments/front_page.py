#!/usr/bin/env python3
"""Compute every number of docs/findings.md, and of README.md's section "What is known about the method".

A statement is the text around a number, as it stands on a page; tests/test_front_page.py looks for it there, and checks
that no other number stands on the page or in the section. All are computed from committed results. Run as a program, it
prints the statements by topic.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from experiments import headroom_findings, larger_study, reproduction, separation, three_ml
from experiments.analyse_main_sentence import GATED
from experiments.findings import (
    ALL,
    AMBIGUOUS,
    BERT,
    END,
    EVIDENCE,
    HIGH,
    LOW,
    MAE,
    MLM,
    RATES,
    RESULTS,
    SEEDS,
    WORDS,
    best_by_development_words,
    full_input,
    last_layer,
    layers,
    mean_interval,
    study,
)
from experiments.headroom import THREE_ML
from experiments.one_model import SIZES
from mae_lm_fairseq.cost.planned_run import PlannedRun

NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
QUANTILE = "exclusivity.type_quantile"
"""Fraction of the frequent words that lie less far outside than [MASK]."""
MIDDLE = slice(2, 4)
"""Middle layers of the network of four layers."""


def words_outside_which_mask_lies() -> int:
    """Return how many of the frequent words lie less far outside than [MASK] in middle layers.

    It is the fewest over seeds, layers, both rates, both MLMs that see [MASK], and the larger study.
    """
    quantiles = [larger_study.by_layer(MLM, "type_quantile")[:, 2:-1].min()]
    for model in (MLM, BERT):
        for rate in RATES:
            quantiles.append(layers(model, QUANTILE, rate)[:, MIDDLE].min())
    return round(WORDS * min(quantiles))


def gains_in_the_last_layer() -> dict[tuple[str, float], float]:
    """Return, for every model whose encoder sees [MASK] and every rate, the last layer's gain less the second's.

    The gain is that in directions: those of all tokens in masked text less those of real tokens in clean text.
    """
    gains = {}
    for model in (MLM, BERT, ALL):
        for rate in RATES:
            by_layer = full_input(model, rate).mean(0)
            gains[model, rate] = by_layer[-1] - by_layer[2]
    return gains


def setting() -> list[str]:
    """Return the rows of the table of studies."""
    return [
        f"| main study | {size_of_main_study()}, {text_of_main_study()} | {seeds_of_main_study()} | "
        f"{written(HIGH)} (*higher*), {written(LOW)} (*lower*) |",
        f"| shorter study | the same networks, {updates_of_shorter_study():,} updates | "
        f"{NUMBER_WORDS[len(reproduction.FIVE_SEEDS)]} seeds of two models, "
        f"{NUMBER_WORDS[len(reproduction.THREE_SEEDS)]} of the others | {written(LOW)} |",
        f"| larger study | {size_of_larger_study()} | {pairs_of_larger_study()} | {rates_of_larger_study()} |",
        f"| headroom study | the main study's networks, {headroom_findings.tokens_read()} | "
        f"{seeds_of_headroom_study()} | {written(headroom_findings.learning_rate())} |",
    ]


def setting_on_the_front_page() -> list[str]:
    """Return what README.md says about models, text and rates."""
    seeds = NUMBER_WORDS[seeds_by_rate()[HIGH]]
    return [
        f"{size_of_main_study()}, with {text_of_main_study()} and {seeds} seeds at the *higher* learning rate, "
        f"{written(HIGH)} (a *lower* one, {written(LOW)}, was also tried)",
        f"{pairs_of_larger_study()} of models with {size_of_larger_study()}",
        seeds_of_headroom_study(),
    ]


def size_of_main_study() -> str:
    """Return layers and width of the models of the main study."""
    network = PlannedRun("mae_lm_roberta_tiny").config
    return f"{NUMBER_WORDS[network.encoder_layers]} layers of width {network.encoder_embed_dim}"


def text_of_main_study() -> str:
    """Return how many tokens a model of the main study reads."""
    tokens = int(END) * study("evidence-2")[MLM, HIGH, 2]["seconds"][END]["tokens_per_update"]
    return f"{tokens / 1e6:.0f} million tokens"


def seeds_by_rate() -> dict[float, int]:
    """Return the number of seeds of the MLM in the main study by learning rate."""
    return {rate: sum(model == MLM and used == rate for model, used, _ in study("evidence-2")) for rate in RATES}


def seeds_of_main_study() -> str:
    """Return the numbers of seeds of the main study."""
    seeds = seeds_by_rate()
    return f"{NUMBER_WORDS[seeds[HIGH]]} seeds; {NUMBER_WORDS[seeds[LOW]]} seed at the lower rate"


def updates_of_shorter_study() -> int:
    """Return the number of updates of the shorter study."""
    return int(reproduction.last_checkpoint(reproduction.MLM, 1)["updates"])


def size_of_larger_study() -> str:
    """Return layers and width of the models of the larger study."""
    larger = SIZES["main"]
    return f"{NUMBER_WORDS[larger.layers]} layers of width {larger.dim}"


def pairs_of_larger_study() -> str:
    """Return the number of pairs of the larger study."""
    return f"{NUMBER_WORDS[larger_study.contrast('SST-2')['pairs']]} pairs"


def seeds_of_headroom_study() -> str:
    """Return the number of seeds of the headroom study."""
    return f"{NUMBER_WORDS[len(headroom_findings.measures_of(MLM))]} seeds of each method"


def rates_of_larger_study() -> str:
    """Return the learning rates of the larger study: of the two that were tried, each arm has the one of lower loss."""
    losses = larger_study.losses_by_rate()
    chosen = {}
    for arm in (MLM, MAE):
        rates = [rate for name, rate in losses if name == arm]
        chosen[arm] = min(rates, key=lambda rate, arm=arm: losses[arm, rate])
    return f"{written(chosen[MLM])} (MLM), {written(chosen[MAE])} (MAE-LM)"


def written(rate: float) -> str:
    """Return a learning rate as the pages write it, such as 2e-3."""
    return f"{rate:.0e}".replace("e-0", "e-")


def theorem_2_2() -> list[str]:
    """Return what is said about the place of [MASK]."""
    inside = 100 - layers(MLM, "exclusivity.mask_0.99")[:, 2:].mean() * 100
    return [
        f"{words_outside_which_mask_lies()} or more of the {WORDS} most frequent words",
        f"{inside:.0f} % of `[MASK]`'s energy",
    ]


def lemma_2_1() -> list[str]:
    """Return what is said about the rank of [MASK]."""
    rank = layers(MLM, "rank.mask_as_trained").mean(0)
    return [f"{rank[0]:.0f} main direction at the embeddings and {rank[-1]:.0f} in the last layer"]


def figure_1a() -> list[str]:
    """Return what is said about text with [MASK]."""
    gains = gains_in_the_last_layer()
    positive = sum(gain > 0 for gain in gains.values())
    return [
        f"a few of {PlannedRun('mae_lm_roberta_tiny').config.encoder_embed_dim}",
        f"{NUMBER_WORDS[positive]} of {NUMBER_WORDS[len(gains)]} combinations",
    ]


def figure_5a() -> list[str]:
    """Return what is said about the directions of real tokens."""
    real = {model: last_layer(model, "rank.real_clean").mean() for model in (MAE, MLM)}
    return [f"{real[MAE]:.0f} main directions in MAE-LM and {real[MLM]:.0f} in the MLM"]


def figure_4() -> list[str]:
    """Return what is said about [MASK] in the encoder."""
    runs = separation.read(RESULTS / "separation" / "results.json")
    tagging = separation.pairs(runs, separation.RESET, MAE, "UPOS, all layers trained")
    better = sum(difference > 0 for difference in tagging.values())
    probe = [*separation.pairs(runs, separation.RESET, MAE, separation.GAIN).values()]
    gain = gain_of_the_probe(ALL) - gain_of_the_probe(MAE)
    gain_again = gain_of_the_probe(ALL) - separation.values(runs, MAE, separation.GAIN)
    scores = reproduction.scores(reproduction.ALL) - reproduction.scores(reproduction.MAE)
    return [
        f"{NUMBER_WORDS[better]} of {NUMBER_WORDS[len(tagging)]} seeds",
        f"{mean_interval(probe, unit=' points')}",
        f"gains {gain.mean():.1f} points in a probe (planned: contradicted)",
        f"or {gain_again.mean():.1f} with MAE-LM trained again",
        f"loses {mean_interval(-scores, sign=False, unit=' points')}",
        f"where {NUMBER_WORDS[len(scores)]} seeds cannot tell",
    ]


def gain_of_the_probe(model: str) -> np.ndarray:
    """Return the contextual gain of a model of the second study by seed: last layer less embeddings, in points."""
    accuracy = layers(model, AMBIGUOUS)
    return accuracy[:, -1] - accuracy[:, 0]


def table_1() -> list[str]:
    """Return what is said about fine-tuning."""
    mean = {name: larger_study.contrast(name)["mean"] for name in ("SST-2", "CoLA", "STS-B", "pretraining loss")}
    rates = {rate for _, rate in larger_study.losses_by_rate()}
    return [
        f"gains {mean['SST-2']:.1f} points on SST-2",
        f"loses {-mean['CoLA']:.1f} on CoLA and {-mean['STS-B']:.1f} on STS-B",
        f"the first {NUMBER_WORDS[GATED]} MLMs scored low",
        f"{mean['pretraining loss']:.2f} nats higher",
        f"the better of only {NUMBER_WORDS[len(rates)]}",
    ]


def headroom() -> list[str]:
    """Return what is said about fine-tuning in the headroom study."""
    return [
        f"from {headroom_findings.SENTENCES} sentences",
        f"MAE-LM is behind the MLM {headroom_findings.deficit(MAE)}",
        headroom_findings.room(),
        f"3ML is behind {headroom_findings.deficit(THREE_ML)}",
        headroom_findings.cost_of_3ml(),
    ]


def cost_of_3ml() -> list[str]:
    """Return what is said about 3ML's compute."""
    cores = json.loads((RESULTS / "cpu-base.json").read_text(encoding="utf-8"))["machine"]["threads"]
    return [
        f"it needs {100 * three_ml.compute('base'):.0f} % of RoBERTa's",
        f"at base size and {100 * three_ml.compute('large'):.0f} % at large",
        f"takes {three_ml.step_on_two_cores():.2f} of the MLM's time on {NUMBER_WORDS[cores]} CPU cores",
        f"needs {three_ml.compute_at_tiny():.1f} times the compute",
    ]


def quality_of_3ml() -> list[str]:
    """Return what is said about 3ML's loss and scores."""
    losses = reproduction.losses(reproduction.THREE_ML) - reproduction.losses(reproduction.MLM)
    lower = NUMBER_WORDS[sum(losses < 0)]
    seeds = NUMBER_WORDS[len(losses)]
    return [f"lower in {lower} of {seeds} seeds", f"and {seeds} seeds cannot tell"]


def figures_3_and_5b() -> list[str]:
    """Return what is said about the two figures on fine-tuning."""
    return [f"{NUMBER_WORDS[len(reproduction.FIVE_SEEDS)]} pairs on STS-B cannot tell"]


def probe() -> list[str]:
    """Return what is said about the probe."""
    last = last_layer(MAE, AMBIGUOUS) - last_layer(MLM, AMBIGUOUS)
    best = best_by_development_words(MAE) - best_by_development_words(MLM)
    return [
        f"by {mean_interval(last, sign=False, unit=' points')} (planned: shown)",
        f"worse by {-best.mean():.1f} points",
        f"means of {NUMBER_WORDS[len(SEEDS)]} seeds with a band from the lowest to the highest",
        "the dashed line is one seed",
    ]


def adaptation() -> list[str]:
    """Return what is said about the adaptation of a sentence encoder."""
    models = json.loads((RESULTS / "released-encoder" / "docstrings.json").read_text(encoding="utf-8"))["models"]
    vectors = {name: 100 * row["retrieval"]["mean"]["ndcg"]["mean"] for name, row in models.items()}
    mlm = np.mean([vectors["MLM, seed 1"], vectors["MLM, seed 2"]])
    mae_lm = np.mean([vectors["MAE-LM, seed 1"], vectors["MAE-LM, seed 2"]])
    words = 100 * models["before"]["retrieval"]["bm25"]["ndcg"]["mean"]
    return [
        f"from {vectors['before']:.0f} to {mlm:.0f} (MLM) and {mae_lm:.0f} (MAE-LM)",
        f"where BM25 has {words:.0f}",
    ]


STATEMENTS: dict[str, Callable[[], list[str]]] = {
    "setting": setting,
    "Theorem 2.2": theorem_2_2,
    "Lemma 2.1": lemma_2_1,
    "Figure 1a": figure_1a,
    "Figure 5a": figure_5a,
    "Figure 4": figure_4,
    "Table 1": table_1,
    "headroom study": headroom,
    "3ML, compute": cost_of_3ml,
    "3ML, quality": quality_of_3ml,
    "Figures 3 and 5b": figures_3_and_5b,
    "probe": probe,
    "adaptation": adaptation,
}
"""Statements of docs/findings.md by topic."""
ON_THE_FRONT_PAGE: dict[str, Callable[[], list[str]]] = {
    "setting": setting_on_the_front_page,
    "Figure 5a": figure_5a,
    "Table 1": table_1,
    "headroom study": headroom,
    "3ML, compute": lambda: cost_of_3ml()[:2],
    "probe": probe,
}
"""Statements that README.md's section makes as well, or instead."""


def phrases() -> dict[str, list[str]]:
    """Return what the page of the second study says in the same words."""
    words = words_outside_which_mask_lies()
    _, combinations = figure_1a()
    return {EVIDENCE: [f"at least {words} of {WORDS} frequent words", combinations]}


def page(name: str) -> str:
    """Return a page on one line, without the targets of its links."""
    text = Path(RESULTS.parent.parent, name).read_text(encoding="utf-8")
    return " ".join(without_targets(text).split())


def section() -> str:
    """Return the section of README.md on one line, without the targets of its links."""
    text = Path(RESULTS.parent.parent, "README.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## What is known about the method\n")
    text, _, _ = rest.partition("\n## ")
    return " ".join(without_targets(text).split())


def without_targets(text: str) -> str:
    """Return a Markdown text without the targets of its links."""
    return re.sub(r"^\[[^]]+\]: .*$|(?<=\])\([^)]*\)", "", text, flags=re.MULTILINE)


if __name__ == "__main__":
    for topic, statements in STATEMENTS.items():
        print(f"{topic}:", *statements(), sep="\n  ")

"""Compute what the study headroom found and what its trainings cost, for its page and for docs/findings.md."""

import json
from functools import cache
from statistics import fmean
from typing import Any

from experiments import three_ml
from experiments.findings import MAE, RESULTS, listed, minus
from experiments.headroom import ARMS, BASELINE, RANDOM, THREE_ML, Results, at_chosen_rate, merged
from mae_lm_fairseq.utils.output import markdown_table

DIRECTORY = RESULTS / "headroom"
PAGE = "scripts/results/headroom/README.md"
PRESETS = {BASELINE: "mae_lm_roberta_tiny", MAE: "mae_lm_tiny", THREE_ML: "mae_lm_3ml_self_tiny"}
MASKED = {BASELINE: 0.15, MAE: 0.15, THREE_ML: 0.5}
ENTITIES = "WNUT-17, 500"
"""The task outside the rule."""
SENTENCES = 500
"""Number of sentences that a model is fine-tuned with."""
SEQUENCES = 32
"""Number of sequences of an update."""
END = "3800"
"""Number of updates of a training."""
UNDISTURBED_SEEDS = (2, 3)
"""Seeds of which every arm was trained with one thread, beside one other process of the study."""


@cache
def results() -> Results:
    """Return the runs of the main study."""
    return merged([committed(path.name) for path in sorted(DIRECTORY.glob("main-results-*.json"))])


@cache
def committed(name: str) -> Any:
    """Return the content of a file of the study."""
    return json.loads((DIRECTORY / name).read_text(encoding="utf-8"))


def verdicts() -> dict[str, Any]:
    """Return what the rule says of the main study."""
    return committed("verdicts.json")


def measures_of(arm: str) -> dict[int, dict[str, Any]]:
    """Return the measures of an arm's runs by seed, ascending."""
    runs = [run for run in results()["runs"] if run["model"] == arm]
    return {run["seed"]: run["measures"] for run in sorted(runs, key=lambda run: run["seed"])}


def learning_rate() -> float:
    """Return the learning rate of pretraining, which is the same for all arms."""
    (rate,) = {run["learning_rate"] for run in results()["runs"] if run["model"] in ARMS}
    return rate


def losses(arm: str) -> list[float]:
    """Return an arm's loss on held-out text with 15 % masked, in nats per predicted token, by seed."""
    return [measures["loss"][END]["loss"] for measures in measures_of(arm).values()]


def tokens_of_an_update() -> float:
    """Return the mean number of tokens of an update."""
    return fmean(measures["seconds"][END]["tokens_per_update"] for measures in measures_of(BASELINE).values())


def mean_length() -> int:
    """Return the mean length of the sequences in tokens."""
    return round(tokens_of_an_update() / SEQUENCES)


def relative_compute(arm: str) -> float:
    """Return the FLOPs of an arm's update by formula, relative to the MLM's, at the mean length of the sequences."""
    return three_ml.relative_compute(PRESETS[arm], MASKED[arm], three_ml.VOCABULARY_OF_STUDIES, mean_length())


def relative_seconds(arm: str) -> float:
    """Return the seconds of an arm's update, relative to the MLM's: mean of the undisturbed seeds."""
    of_arm, of_mlm = seconds_per_update(arm), seconds_per_update(BASELINE)
    return fmean(of_arm[seed] / of_mlm[seed] for seed in UNDISTURBED_SEEDS)


def seconds_per_update(arm: str) -> dict[int, float]:
    """Return the seconds of an arm's update by seed."""
    return {seed: measures["seconds"][END]["per_update"] for seed, measures in measures_of(arm).items()}


def hours() -> float:
    """Return the hours of all processes of the main study: trainings, and all that was measured of them."""
    seconds = 0.0
    for run in results()["runs"]:
        seconds += run["seconds"]["training"] + run["seconds"]["measuring"]
    return seconds / 3600


def costs() -> str:
    """Return the table of the arms' losses and of what an update costs, relative to the MLM's."""
    rows = []
    for arm in ARMS:
        by_seed = " ".join(f"{loss:.2f}" for loss in losses(arm))
        mean = f"{fmean(losses(arm)):.2f}"
        rows.append([arm, by_seed, mean, f"{relative_compute(arm):.2f}", f"{relative_seconds(arm):.2f}"])
    return markdown_table(["arm", "loss by seed", "mean", "compute of an update", "time of an update"], rows)


def room() -> str:
    """Return how far random weights are below the arms' mean on the tasks of the rule."""
    points = [verdicts()["headrooms"][task] for task in verdicts()["measures"]]
    return f"random weights score {listed(points)} points lower"


def deficit(arm: str) -> str:
    """Return how far an arm is behind the MLM on the tasks of the rule, parts of speech first."""
    points = [-task["points"] for task in verdicts()["arms"][arm]["at_the_chosen_rates"].values()]
    return f"by {points[0]:.1f} points on parts of speech and {points[1]:.1f} on dependency relations"


def loss_of_the_lead(arm: str) -> str:
    """Return which part of the MLM's lead over random weights an arm loses, in per cent."""
    parts = []
    for task, of_task in verdicts()["arms"][arm]["at_the_chosen_rates"].items():
        random, of_mlm = (mean_score(model, task) for model in (RANDOM, BASELINE))
        parts.append(-100 * of_task["points"] / (of_mlm - random))
    return f"loses {listed(parts, digits=0)} %"


def mean_score(model: str, task: str) -> float:
    """Return a model's mean score in the main study, at its own rate of fine-tuning."""
    return fmean(at_chosen_rate(results(), model, task).values())


def leads_at_the_lowest_rate(arm: str) -> list[float]:
    """Return how far an arm is ahead of the MLM at the lowest rate of fine-tuning, parts of speech first."""
    return [task["points"] for task in verdicts()["arms"][arm]["at_the_lowest_rate"].values()]


def lead_in_entities(arm: str) -> float:
    """Return how far an arm is ahead of the MLM on entities, which are outside the rule, in points."""
    return verdicts()["arms"][arm]["outside_the_rule"][ENTITIES]["points"]


def entities_of_the_mlm() -> str:
    """Return the range of the MLM's scores on entities."""
    scores = at_chosen_rate(results(), BASELINE, ENTITIES).values()
    return f"range from {min(scores):.1f} to {max(scores):.1f}"


def cost_of_3ml() -> str:
    """Return what an update of 3ML costs in this study."""
    compute, time = relative_compute(THREE_ML), relative_seconds(THREE_ML)
    return f"{compute:.1f} times the compute by formula, and {time:.1f} times the time"


def tokens_read() -> str:
    """Return how many tokens a model reads."""
    return f"{int(END) * tokens_of_an_update() / 1e6:.0f} million tokens"


def stage_t(task: str) -> list[float]:
    """Return the scores of the arms in stage T, with one seed of pretraining."""
    scores = []
    for arm in ARMS:
        (score,) = at_chosen_rate(committed("tasks-results.json"), arm, task).values()
        scores.append(score)
    return scores


def phrases() -> dict[str, list[str]]:
    """Return what the page of this study says."""
    arms = []
    for arm in (MAE, THREE_ML):
        arms += [deficit(arm), loss_of_the_lead(arm)]
    likely = max(one["contradicted"] for one in committed("simulation.json")["chosen"]["without_effect"].values())
    lower_bound = 100 * verdicts()["arms"][THREE_ML]["lower_bound"]
    ahead_in_loss = fmean(losses(BASELINE)) - fmean(losses(THREE_ML))
    of_speech, of_relations = leads_at_the_lowest_rate(MAE)
    mlm_on_stsb, *others_on_stsb = stage_t("STS-B")
    mlm_on_all_sentences, *others_on_all_sentences = stage_t("UPOS")
    mae_lm_behind, three_ml_behind = (mlm_on_all_sentences - score for score in others_on_all_sentences)
    return {
        PAGE: [
            *arms,
            room(),
            f"[{100 * likely:.1f} % of such studies]",
            minus(f"Its lower bound is {lower_bound:.0f} % of the headroom"),
            f"by {listed(leads_at_the_lowest_rate(THREE_ML))} points",
            f"by {of_speech:.1f} points on parts of speech, and its {of_relations:.1f} points on dependency relations",
            f"3ML is {lead_in_entities(THREE_ML):.1f} points ahead",
            entities_of_the_mlm(),
            cost_of_3ml(),
            f"3ML is {ahead_in_loss:.2f} nats ahead in loss",
            f"compute by formula at {mean_length()} tokens a sequence",
            f"about {hours():.0f} hours of single processes",
            f"{listed(others_on_stsb)} on STS-B, where the MLM had {mlm_on_stsb:.1f}",
            f"MAE-LM is {mae_lm_behind:.1f} and 3ML {three_ml_behind:.1f} points behind on parts of speech",
        ]
    }

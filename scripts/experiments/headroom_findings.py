"""Compute what the study headroom found and what its trainings cost, for its page and for docs/findings.md."""

import json
from functools import cache
from statistics import fmean
from typing import Any

from experiments.findings import RESULTS, listed
from experiments.headroom import ARMS, BASELINE, THREE_ML, Results, at_chosen_rate, merged
from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.cost.planner import flops_per_token
from mae_lm_fairseq.utils.output import markdown_table

DIRECTORY = RESULTS / "headroom"
PAGE = "scripts/results/headroom/README.md"
MAE_LM = "MAE-LM"
PRESETS = {BASELINE: "mae_lm_roberta_tiny", MAE_LM: "mae_lm_tiny", THREE_ML: "mae_lm_3ml_self_tiny"}
MASKED = {BASELINE: 0.15, MAE_LM: 0.15, THREE_ML: 0.5}
VOCABULARY = 8_000
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
    paths = sorted(DIRECTORY.glob("main-results-*.json"))
    return merged([json.loads(path.read_text(encoding="utf-8")) for path in paths])


@cache
def verdicts() -> dict[str, Any]:
    """Return what the rule says of the main study."""
    return json.loads((DIRECTORY / "verdicts.json").read_text(encoding="utf-8"))


def of_arm(arm: str) -> list[dict[str, Any]]:
    """Return the measures of an arm's runs, by ascending seed."""
    runs = [run for run in results()["runs"] if run["model"] == arm]
    return [run["measures"] for run in sorted(runs, key=lambda run: run["seed"])]


def learning_rate() -> float:
    """Return the learning rate of pretraining, which is the same for all arms."""
    (rate,) = {run["learning_rate"] for run in results()["runs"] if run["model"] in ARMS}
    return rate


def losses(arm: str) -> list[float]:
    """Return an arm's loss on held-out text with 15 % masked, in nats per predicted token, by seed."""
    return [measures["loss"][END]["loss"] for measures in of_arm(arm)]


def tokens_of_an_update() -> float:
    """Return the mean number of tokens of an update."""
    return fmean(measures["seconds"][END]["tokens_per_update"] for measures in of_arm(BASELINE))


def mean_length() -> int:
    """Return the mean length of the sequences in tokens."""
    return round(tokens_of_an_update() / SEQUENCES)


def relative_compute(arm: str) -> float:
    """Return the FLOPs of an arm's update by formula, relative to the MLM's, at the mean length of the sequences."""
    run = PlannedRun(PRESETS[arm], mask_prob=MASKED[arm], vocab_size=VOCABULARY, tokens_per_sample=mean_length())
    return flops_per_token(run).total / flops_per_token(run.roberta()).total


def relative_seconds(arm: str) -> float:
    """Return the seconds of an arm's update, relative to the MLM's: mean of the undisturbed seeds."""
    ratios = []
    for seed in UNDISTURBED_SEEDS:
        seconds = {}
        for run in results()["runs"]:
            if run["seed"] == seed and run["model"] in (arm, BASELINE):
                seconds[run["model"]] = run["measures"]["seconds"][END]["per_update"]
        ratios.append(seconds[arm] / seconds[BASELINE])
    return fmean(ratios)


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


def deficit_in_headrooms(arm: str) -> str:
    """Return the same as fractions of the headroom, in per cent."""
    fractions = [-100 * task["mean"] for task in verdicts()["arms"][arm]["at_the_chosen_rates"].values()]
    return f"{fractions[0]:.0f} and {fractions[1]:.0f} % of the headroom"


def lead_at_the_lowest_rate(arm: str) -> str:
    """Return how far an arm is ahead of the MLM at the lowest rate of fine-tuning."""
    return listed([task["points"] for task in verdicts()["arms"][arm]["at_the_lowest_rate"].values()])


def lead_in_entities(arm: str) -> float:
    """Return how far an arm is ahead of the MLM on entities, which are outside the rule, in points."""
    (entities,) = verdicts()["arms"][arm]["outside_the_rule"].values()
    return entities["points"]


def entities_of_the_mlm() -> str:
    """Return the range of the MLM's scores on entities."""
    scores = at_chosen_rate(results(), BASELINE, "WNUT-17, 500").values()
    return f"range from {min(scores):.1f} to {max(scores):.1f}"


def cost_of_3ml() -> str:
    """Return what an update of 3ML costs in this study."""
    compute, time = relative_compute(THREE_ML), relative_seconds(THREE_ML)
    return f"{compute:.1f} times the compute by formula, and {time:.1f} times the time"


def text() -> str:
    """Return how many tokens a model reads."""
    return f"{int(END) * tokens_of_an_update() / 1e6:.0f} million tokens"


def phrases() -> dict[str, list[str]]:
    """Return what the page of this study says."""
    arms = []
    for arm in (MAE_LM, THREE_ML):
        arms += [deficit(arm), deficit_in_headrooms(arm), lead_at_the_lowest_rate(arm)]
    setting = json.loads((DIRECTORY / "simulation.json").read_text(encoding="utf-8"))["chosen"]
    likely = max(one["contradicted"] for one in setting["without_effect"].values())
    ahead_in_loss = fmean(losses(BASELINE)) - fmean(losses(THREE_ML))
    return {
        PAGE: [
            *arms,
            room(),
            cost_of_3ml(),
            entities_of_the_mlm(),
            f"3ML is {lead_in_entities(THREE_ML):.1f} points ahead",
            f"[{100 * likely:.1f} % of such studies]",
            f"{ahead_in_loss:.2f} nats ahead in loss",
            f"compute by formula at {mean_length()} tokens a sequence",
            f"about {hours():.0f} hours of single processes",
        ]
    }

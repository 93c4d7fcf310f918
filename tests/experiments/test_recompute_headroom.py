"""The recomputation of headroom's tasks and verdicts: values by hand, and agreement with headroom.py."""

import json
import math

import numpy as np
import pytest

from experiments import headroom, recompute_headroom

ARMS = ("MLM", "MAE-LM", "3ML-self")
RANDOM = "random weights"
RATES = ("0.0001", "0.0003", "0.001")
# By measure: mean score of random weights and of pretrained models. Six candidates, of which the rule drops two.
ROOMS = {
    "UPOS, 500": (45.0, 80.0),
    "UPOS": (60.0, 88.0),
    "UPOS, 100": (40.0, 68.0),
    "STS-B": (12.0, 60.0),
    "WNUT-17": (5.0, 40.0),
    "RTE": (52.0, 58.0),
}
CHOSEN = ("UPOS, 500", "UPOS", "STS-B", "WNUT-17")

# By verdict: effects at the chosen rates and at the lowest rate by measure, and the deviation of a score, all as
# fractions of the headroom.
EFFECTS = {
    "supported": ((0.3, 0, 0, 0), (0, 0, 0, 0), 0.02),
    "contradicted": ((0, -0.3, 0, -0.3), (0.3, 0, 0, 0), 0.02),
    "mixed": ((0.3, 0, -0.3, 0), (0, 0, 0, 0), 0.02),
    "equivalent": ((0, 0, 0, 0), (0, 0, 0, -0.3), 0.02),
    "speed only": ((0, 0, 0, 0), (0.3, 0, 0.3, 0), 0.02),
    "cannot tell": ((0, 0, 0, 0), (0.3, 0, 0, 0), 0.2),
}


def run(generator, model, seed, measures, best_rate, means, noise):
    """Return a run whose held-out rows choose a rate, with these mean test scores by measure and rate."""
    of_measures = {"loss": {"3800": {"loss": 3.0}}}
    for measure in measures:
        metric = headroom.METRICS[headroom.task_of(measure)]
        random, pretrained = ROOMS[measure]
        values = {metric: 1.0, f"test_{metric}": 2.0}
        for rate, mean in zip(RATES, means[measure], strict=True):
            dev = 70.0 if rate == best_rate else 60.0
            values[f"{metric} at {rate}"] = dev + generator.normal()
            values[f"test_{metric} at {rate}"] = mean + noise * (pretrained - random) * generator.normal()
            values[f"loss at {rate}"] = generator.normal()
        of_measures[measure] = {"3800": values}
        if model != RANDOM:
            of_measures[measure] = {"950": dict.fromkeys(values, 0.0), "3800": values}
    return {"model": model, "seed": seed, "measures": of_measures}


def stage_t():
    generator = np.random.default_rng(1)
    runs = []
    for number, arm in enumerate(ARMS):
        means = {measure: (pretrained - 9, pretrained, pretrained - 1) for measure, (_, pretrained) in ROOMS.items()}
        runs.append(run(generator, arm, 0, ROOMS, RATES[number], means, 0.02))
    for seed in range(3):
        means = {measure: (random, random + 1, random - 1) for measure, (random, _) in ROOMS.items()}
        runs.append(run(generator, RANDOM, seed, ROOMS, RATES[1], means, 0.02))
    return {"runs": runs}


def main_study(verdict):
    """Return results that give MAE-LM this verdict, their runs in no order."""
    generator = np.random.default_rng(3)
    at_chosen, at_lowest, noise = EFFECTS[verdict]
    runs = []
    for seed in (3, 1, 5, 2, 4):
        for arm in (RANDOM, *ARMS):
            means = {}
            for measure, of_chosen, of_lowest in zip(CHOSEN, at_chosen, at_lowest, strict=True):
                random, pretrained = ROOMS[measure]
                points = pretrained - random if arm == "MAE-LM" else 0.0
                best = pretrained + of_chosen * points
                lowest = pretrained - 4 + of_lowest * points
                means[measure] = (lowest, best, best)
            best_rate = RATES[2] if arm == "MAE-LM" else RATES[1]
            runs.append(run(generator, arm, seed, CHOSEN, best_rate, means, noise))
    return {"runs": runs}


class Study:
    """The four files of a study, of which headroom.py writes two."""

    def __init__(self, folder, verdict="supported"):
        self.files = {name: folder / f"{name}.json" for name in ("stage_t", "tasks", "results", "verdicts")}
        self.write("stage_t", stage_t())
        self.write("results", main_study(verdict))
        options = headroom.HeadroomOptions(step="tasks", files=(self.files["stage_t"],), out=self.files["tasks"])
        headroom.main(options)
        self.write("verdicts", headroom.apply_rule(self.read("results"), headroom.read_tasks(self.read("tasks"))))

    def read(self, name):
        return json.loads(self.files[name].read_text())

    def write(self, name, content):
        self.files[name].write_text(json.dumps(content))

    def check_tasks(self):
        recompute_headroom.main(["tasks", str(self.files["stage_t"]), str(self.files["tasks"])])

    def check_verdicts(self):
        names = ("results", "tasks", "verdicts")
        recompute_headroom.main(["verdicts", *(str(self.files[name]) for name in names)])


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path)


def test_values_by_hand():
    """The statistics are those of the rule.

    With two degrees of freedom p of t is 1 - t / sqrt(2 + t^2), and the 95th percentile is 2.919986.
    """
    values = np.array([1.0, 2.0, 3.0])
    assert recompute_headroom.p_value(values) == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)
    assert recompute_headroom.p_value(np.array([0.3, 0.3])) == 1.0
    half = 2.919985580 / math.sqrt(3)
    assert recompute_headroom.interval_90(values) == pytest.approx([2 - half, 2 + half], abs=1e-8)
    assert recompute_headroom.holm({"a": 0.03, "b": 0.01, "c": 0.04, "d": 0.9}) == pytest.approx(
        {"a": 0.09, "b": 0.04, "c": 0.09, "d": 0.9}, abs=1e-12
    )
    assert recompute_headroom.sampling_deviation("RTE", 50.0) == pytest.approx(50 / math.sqrt(277), abs=1e-12)
    assert recompute_headroom.sampling_deviation("STS-B", 50.0) == pytest.approx(75 / math.sqrt(1500), abs=1e-12)


def test_the_chosen_rate_is_the_lowest_of_a_tie():
    by_rate = {
        1e-3: {0: (60.0, 1.0), 1: (62.0, 2.0)},
        3e-4: {0: (62.0, 3.0), 1: (60.0, 4.0)},
        1e-4: {0: (50.0, 5.0), 1: (51.0, 6.0)},
    }
    assert recompute_headroom.chosen_rate(by_rate) == 3e-4


def test_rounding_does_not_break_a_tie():
    """Both sums of right rows are 768, while the means of the percentages differ by 7e-15."""
    right_rows = {1e-4: (151, 152, 153, 154, 158), 1e-3: (150, 151, 154, 156, 157)}
    by_rate = {}
    for rate, rows in right_rows.items():
        by_rate[rate] = {seed: (100 * count / 249, 0.0) for seed, count in enumerate(rows)}
    assert recompute_headroom.chosen_rate(by_rate) == 1e-4


def test_at_most_two_measures_of_a_task_are_chosen():
    deviations = {"UPOS": 9, "UPOS, 500": 8, "UPOS, 100": 7, "RTE": 1, "SST-2": 3, "CoLA": 2}
    candidates = {measure: {"deviations": value} for measure, value in deviations.items()}
    assert recompute_headroom.choose(candidates) == ["UPOS", "UPOS, 500", "SST-2", "CoLA"]


def test_scores_are_read_at_the_latest_updates():
    measures = {
        "UPOS, 500": {
            "9000": {"accuracy at 0.0001": 1.0, "test_accuracy at 0.0001": 2.0},
            "10000": {"accuracy at 0.0001": 3.0, "test_accuracy at 0.0001": 4.0, "loss at 0.0001": 5.0},
        },
        "loss": {"10000": {"loss": 1.0}},
    }
    results = {"runs": [{"model": "MLM", "seed": 7, "measures": measures}]}
    assert recompute_headroom.scores_of(results) == {("MLM", "UPOS, 500"): {0.0001: {7: (3.0, 4.0)}}}


@pytest.mark.parametrize("verdict", EFFECTS)
def test_headroom_agrees(verdict, tmp_path, capsys):
    study = Study(tmp_path, verdict)
    assert study.read("tasks")["chosen"] != list(ROOMS)[:4]
    assert set(study.read("tasks")["chosen"]) == set(CHOSEN)
    assert study.read("verdicts")["MAE-LM"]["verdict"] == verdict
    capsys.readouterr()

    study.check_tasks()
    assert capsys.readouterr().out.endswith("every number agrees\n")
    study.check_verdicts()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "every number agrees"
    contrasts = [line for line in lines if "differs by at most" in line]
    assert len(contrasts) == 2 * 2 * len(CHOSEN)


def changed_numbers(value):
    """Yield a JSON value with one of its numbers changed by 1e-6, for each number."""
    if isinstance(value, float):
        yield value + 1e-6
    elif isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            for item in changed_numbers(value[key]):
                changed = value.copy()
                changed[key] = item
                yield changed


def test_each_changed_number_is_noticed(study, capsys):
    count = 0
    for content in changed_numbers(study.read("tasks")):
        study.write("tasks", content)
        with pytest.raises(SystemExit, match="differs"):
            study.check_tasks()
        count += 1
    assert count == 4 * len(ROOMS)

    study = Study(study.files["tasks"].parent)
    count = 0
    for content in changed_numbers(study.read("verdicts")):
        study.write("verdicts", content)
        with pytest.raises(SystemExit, match="differs"):
            study.check_verdicts()
        count += 1
    # Per arm the lower bound and, at both rates, five differences, a mean, an interval and p of each measure.
    assert count == 2 * (1 + 2 * len(CHOSEN) * 9)


def set_verdict(verdicts):
    verdicts["MAE-LM"]["verdict"] = "mixed"


def set_inferior(verdicts):
    verdicts["MAE-LM"]["not_inferior"] = not verdicts["MAE-LM"]["not_inferior"]


def drop_difference(verdicts):
    verdicts["3ML-self"]["at_the_lowest_rate"]["UPOS"]["differences"].pop()


def drop_measure(verdicts):
    del verdicts["3ML-self"]["at_the_lowest_rate"]["UPOS"]


def add_measure(verdicts):
    verdicts["MAE-LM"]["at_the_chosen_rates"]["RTE"] = {}


def drop_arm(verdicts):
    del verdicts["3ML-self"]


def add_arm(verdicts):
    verdicts["3ML"] = {}


def set_nan(verdicts):
    verdicts["MAE-LM"]["lower_bound"] = math.nan


@pytest.mark.parametrize(
    "change", [set_verdict, set_inferior, drop_difference, drop_measure, add_measure, drop_arm, add_arm, set_nan]
)
def test_a_changed_verdict_file_is_noticed(change, study):
    verdicts = study.read("verdicts")
    change(verdicts)
    study.write("verdicts", verdicts)
    with pytest.raises(SystemExit, match="differs"):
        study.check_verdicts()


def test_changed_tasks_are_noticed(study):
    tasks = study.read("tasks")
    study.write("tasks", {**tasks, "chosen": tasks["chosen"][::-1]})
    with pytest.raises(SystemExit, match="chosen"):
        study.check_tasks()
    study.write("tasks", {**tasks, "candidates": tasks["candidates"][1:]})
    with pytest.raises(SystemExit, match="differs"):
        study.check_tasks()


@pytest.mark.parametrize(
    ("models", "message"), [({"MAE-LM"}, "differ in seeds"), ({"MLM"}, "differ in seeds"), (set(ARMS), "differs")]
)
def test_a_dropped_seed_is_noticed(models, message, study):
    runs = study.read("results")["runs"]
    kept = [run for run in runs if run["seed"] != 2 or run["model"] not in models]
    assert len(kept) == len(runs) - len(models)
    study.write("results", {"runs": kept})
    with pytest.raises(SystemExit, match=message):
        study.check_verdicts()


def test_two_runs_of_a_seed_are_refused(study):
    """A results.json may have several pretraining rates of a model; a study has one."""
    runs = study.read("results")["runs"]
    study.write("results", {"runs": [*runs, runs[-1]]})
    with pytest.raises(SystemExit, match="two runs"):
        study.check_verdicts()


@pytest.mark.parametrize("name", ["results", "tasks", "verdicts"])
def test_files_that_cannot_be_read(name, study):
    for content in ("{", "[1, 2]", '{"runs": 3}', '{"candidates": [{}], "chosen": []}'):
        study.files[name].write_text(content)
        with pytest.raises(SystemExit) as error:
            study.check_verdicts()
        assert name == "verdicts" or str(study.files[name]) in str(error.value)
    study.files[name].unlink()
    with pytest.raises(SystemExit, match=rf"{name}\.json: missing"):
        study.check_verdicts()

"""The recomputation of headroom's tasks and verdicts: values by hand, and agreement with headroom.py."""

import json
import math

import numpy as np
import pytest

from experiments import headroom, recompute_headroom
from experiments.findings import RESULTS

ARMS = ("MLM", "MAE-LM", "3ML-self")
RANDOM = "random weights"
RATES = ("0.0001", "0.0003", "0.001")
# By measure: mean score of random weights and of pretrained models. Six candidates, of which the rule drops two: RTE
# has too few deviations, and UPOS has two larger measures than that of 100 rows.
ROOMS = {
    "UPOS, 500": (45.0, 80.0),
    "UPOS": (60.0, 88.0),
    "UPOS, 100": (40.0, 68.0),
    "STS-B": (12.0, 60.0),
    "WNUT-17": (5.0, 40.0),
    "RTE": (52.0, 58.0),
}
CHOSEN = ("UPOS, 500", "UPOS", "STS-B", "WNUT-17")

SETTING = {"measures": list(CHOSEN), "margin": 0.1}

# By verdict: effects at the chosen rates and at the lowest rate by measure, and the deviation of a score, all as
# fractions of the headroom.
EFFECTS = {
    "supported": ((0.3, 0, 0, 0), (0, 0, 0, 0), 0.02),
    "contradicted": ((0, -0.3, 0, -0.3), (0.3, 0, 0, 0), 0.02),
    "mixed": ((0.3, 0, -0.3, 0), (0, 0, 0, 0), 0.02),
    "equivalent": ((0, 0, 0, 0), (0.3, 0, 0, -0.3), 0.02),
    "speed only": ((0, 0, 0, 0), (0.3, 0, 0.3, 0), 0.02),
    "slower only": ((0, 0, 0, 0), (0, 0, 0, -0.3), 0.02),
    "cannot tell": ((0, 0, 0, 0), (0.3, 0, 0, 0), 0.2),
}


def run(generator, model, seed, measures, best_rate, means, noise):
    """Return a run whose held-out rows choose a rate, with these mean test scores by measure and rate."""
    of_measures = {"loss": {"3800": {"loss": 3.0}}}
    for measure in measures:
        metric = recompute_headroom.METRICS[recompute_headroom.task_of(measure)]
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
    generator = np.random.default_rng(3)
    runs = []
    for number, arm in enumerate(ARMS):
        means = {measure: (pretrained - 9, pretrained, pretrained - 1) for measure, (_, pretrained) in ROOMS.items()}
        runs.append(run(generator, arm, 0, ROOMS, RATES[number], means, 0.02))
    for seed in range(3):
        means = {measure: (random, random + 1, random - 1) for measure, (random, _) in ROOMS.items()}
        runs.append(run(generator, RANDOM, seed, ROOMS, RATES[1], means, 0.02))
    return {"runs": runs}


def main_study(effects, seeds=5, without_lead=(), model="MAE-LM"):
    """Return results with these effects of a model, the runs in no order.

    In the measures without a lead, random weights score nearly as well as the pretrained models.
    """
    generator = np.random.default_rng(3)
    at_chosen, at_lowest, noise = effects
    runs = []
    for seed in (3, 1, 5, 2, 4):
        if seed > seeds:
            continue
        for arm in (RANDOM, *ARMS):
            means = {}
            for measure, of_chosen, of_lowest in zip(CHOSEN, at_chosen, at_lowest, strict=True):
                random, pretrained = ROOMS[measure]
                points = pretrained - random if arm == model else 0.0
                best = pretrained + of_chosen * points
                lowest = pretrained - 4 + of_lowest * points
                if arm == RANDOM:
                    best = pretrained - 10 if measure in without_lead else random
                    lowest = best
                means[measure] = (lowest, best, best)
            best_rate = RATES[2] if arm == model else RATES[1]
            # Random weights have seeds of their own.
            runs.append(run(generator, arm, seed + 2 if arm == RANDOM else seed, CHOSEN, best_rate, means, noise))
    return {"runs": runs}


class Study:
    """The five files of a study, of which headroom.py writes two."""

    def __init__(self, folder, results=None, setting=SETTING):
        names = ("stage_t", "tasks", "simulation", "results", "verdicts")
        self.files = {name: folder / f"{name}.json" for name in names}
        self.write("stage_t", stage_t())
        self.write("simulation", {"chosen": setting})
        self.write("results", main_study(EFFECTS["supported"]) if results is None else results)
        self.headroom("tasks", ["stage_t"], "tasks")
        self.headroom("rule", ["tasks", "simulation", "results"], "verdicts")

    def headroom(self, step, names, out):
        files = tuple(self.files[name] for name in names)
        headroom.main(headroom.HeadroomOptions(step=step, files=files, out=self.files[out]))

    def read(self, name):
        return json.loads(self.files[name].read_text())

    def write(self, name, content):
        self.files[name].write_text(json.dumps(content))

    def check_tasks(self):
        self.recompute("tasks", "tasks", "stage_t")

    def check_verdicts(self):
        self.recompute("verdicts", "tasks", "simulation", "verdicts", "results")

    def recompute(self, step, *names):
        recompute_headroom.main([step, *(str(self.files[name]) for name in names)])


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
    assert recompute_headroom.sampling_deviation("UPOS", 80.0) == pytest.approx(40 / math.sqrt(25147), abs=1e-12)
    assert recompute_headroom.sampling_deviation("WNUT-17", 20.0) == pytest.approx(40 / math.sqrt(836), abs=1e-12)


def test_the_deviation_of_the_seeds_is_at_least_half_of_the_sampling():
    """Random scores of 10, 13 and 16 deviate by 3; the sampling part of RTE at 50 % is 50 / sqrt(277) = 3.0042."""
    sampling = 50 / math.sqrt(277)
    for random_scores, of_seeds in (((10.0, 13.0, 16.0), 3.0), ((12.0, 13.0, 14.0), sampling / 2)):
        scores = {
            (RANDOM, "RTE"): {1e-4: {seed: (60.0, score) for seed, score in enumerate(random_scores)}},
            ("MLM", "RTE"): {1e-4: {0: (60.0, 48.0)}},
            ("MAE-LM", "RTE"): {1e-4: {0: (60.0, 52.0)}},
        }
        tasks = recompute_headroom.recompute_tasks(scores)
        deviation = math.sqrt(of_seeds**2 + sampling**2)
        candidate = tasks["candidates"]["RTE"]
        assert candidate["deviation"] == pytest.approx(deviation, abs=1e-12)
        assert candidate["deviations"] == pytest.approx(37 / deviation, abs=1e-12)
        assert tasks["chosen"] == ["RTE"]


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
    deviations = {"UPOS": 19, "UPOS, 500": 18, "UPOS, 100": 17, "RTE": 11, "SST-2": 13, "CoLA": 12}
    candidates = {measure: {"deviations": value} for measure, value in deviations.items()}
    assert recompute_headroom.choose(candidates) == ["UPOS", "UPOS, 500", "SST-2", "CoLA"]


def test_measures_below_five_deviations_are_not_chosen():
    deviations = {"UPOS": 4.99, "RTE": 5.0, "SST-2": 5.01, "CoLA": -9.0}
    candidates = {measure: {"deviations": value} for measure, value in deviations.items()}
    assert recompute_headroom.choose(candidates) == ["SST-2", "RTE"]
    assert recompute_headroom.choose({"UPOS": {"deviations": 4.99}}) == []


def test_scores_are_read_at_the_latest_updates():
    measures = {
        "UPOS, 500": {
            "9000": {"accuracy at 0.0001": 1.0, "test_accuracy at 0.0001": 2.0},
            "10000": {"accuracy at 0.0001": 3.0, "test_accuracy at 0.0001": 4.0, "loss at 0.0001": 5.0},
        },
        "loss": {"10000": {"loss": 1.0}},
    }
    runs = [{"model": "MLM", "seed": 7, "measures": measures}]
    assert recompute_headroom.scores_of(runs) == {("MLM", "UPOS, 500"): {0.0001: {7: (3.0, 4.0)}}}


def hand_scores():
    """Return scores whose headrooms are 40 (RTE), 20 (SST-2) and 10 (CoLA), and whose rates begin below the lowest one.

    3e-4 is the chosen rate of the arms, and 3e-5 that of random weights.
    """
    mlm = {"RTE": 90.0, "SST-2": 70.0, "CoLA": 30.0}
    # Of each model, the mean of its differences from the MLM is 0 at 3e-4.
    by_seed = {"RTE": (-2.0, -1.0, 0.0, 1.0, 2.0), "SST-2": (1.0, 0.0, 0.0, 0.0, -1.0), "CoLA": (0.0,) * 5}
    random = {"RTE": 50.0, "SST-2": 50.0, "CoLA": 20.0}
    scores = {}
    for measure in mlm:
        for arm in ARMS:
            by_rate = {3e-5: {}, 1e-4: {}, 3e-4: {}}
            for number, difference in enumerate(by_seed[measure]):
                points = 0.0 if arm == "MLM" else difference
                lowest = 0.0 if arm == "MLM" else 4 + difference / 2
                by_rate[3e-5][number + 1] = (10.0, 5.0 if arm == "MLM" else 99.0)
                by_rate[1e-4][number + 1] = (20.0, mlm[measure] - 10 + lowest)
                by_rate[3e-4][number + 1] = (30.0, mlm[measure] + points)
            scores[arm, measure] = by_rate
        scores[RANDOM, measure] = {
            3e-5: {3: (30.0, random[measure] - 1), 4: (30.0, random[measure] + 1)},
            1e-4: {3: (20.0, 99.0), 4: (20.0, 99.0)},
        }
    return scores


def test_verdicts_by_hand():
    """The headroom of CoLA is below half of 20.1 points, and that of SST-2 is half of 40.

    With four degrees of freedom, the 95th percentile of t is 2.131847. The differences of RTE are -0.05, -0.025, 0,
    0.025 and 0.05, those of SST-2 0.05, 0, 0, 0 and -0.05. Their means by seed are 0, -0.0125, 0, 0.0125 and 0.
    """
    setting = {"measures": ["SST-2", "CoLA", "RTE"], "margin": 0.1}
    of_stage_t = {"RTE": 30.0, "UPOS": 9.0, "SST-2": 40.0, "CoLA": 20.1}
    verdicts = recompute_headroom.recompute_verdicts(hand_scores(), of_stage_t, setting)
    assert verdicts["headrooms"] == pytest.approx({"SST-2": 20.0, "CoLA": 10.0, "RTE": 40.0}, abs=1e-12)
    assert verdicts["measures"] == ["SST-2", "RTE"]
    assert set(verdicts["arms"]) == {"MAE-LM", "3ML-self"}

    arm = verdicts["arms"]["3ML-self"]
    keys = {"verdict", "is_within_margin", "at_the_chosen_rates", "at_the_lowest_rate", "outside_the_rule"}
    assert set(verdicts["arms"]["MAE-LM"]) == keys
    assert arm["is_within_margin"] is True
    assert arm["verdict"] == verdicts["arms"]["MAE-LM"]["verdict"] == "speed only"

    assert set(arm["outside_the_rule"]) == {"CoLA"}
    assert arm["outside_the_rule"]["CoLA"]["differences"] == [0.0] * 5
    at_chosen = arm["at_the_chosen_rates"]
    assert set(at_chosen) == {"SST-2", "RTE"}
    assert at_chosen["RTE"]["differences"] == pytest.approx([-0.05, -0.025, 0, 0.025, 0.05], abs=1e-12)
    half = 2.131846786 * 0.025 * math.sqrt(2.5 / 5)
    assert at_chosen["RTE"]["interval_90"] == pytest.approx([-half, half], abs=1e-9)
    assert at_chosen["RTE"]["points"] == pytest.approx(0, abs=1e-12)
    assert at_chosen["SST-2"]["p_holm"] == pytest.approx(1, abs=1e-9)

    at_lowest = arm["at_the_lowest_rate"]
    assert at_lowest["RTE"]["points"] == pytest.approx(4, abs=1e-12)
    assert at_lowest["RTE"]["mean"] == pytest.approx(0.1, abs=1e-12)
    assert at_lowest["SST-2"]["mean"] == pytest.approx(0.2, abs=1e-12)
    assert at_lowest["SST-2"]["differences"] == pytest.approx([0.225, 0.2, 0.2, 0.2, 0.175], abs=1e-12)

    bound = -2.131846786 * 0.0125 * math.sqrt(0.5 / 5)
    assert arm["lower_bound"] == pytest.approx(bound, abs=1e-9)
    assert arm["not_inferior"] is True


def test_no_setting_uses_all_chosen_measures_without_equivalence():
    of_stage_t = {"RTE": 30.0, "CoLA": 20.0, "SST-2": 40.0}
    verdicts = recompute_headroom.recompute_verdicts(hand_scores(), of_stage_t, None)
    assert verdicts["measures"] == ["RTE", "CoLA", "SST-2"]
    assert verdicts["arms"]["3ML-self"]["verdict"] == "cannot tell"
    assert verdicts["arms"]["3ML-self"]["lower_bound"] < 0
    assert verdicts["arms"]["3ML-self"]["not_inferior"] is None


def test_one_measure_gives_no_verdict():
    of_stage_t = {"RTE": 30.0, "CoLA": 20.1, "SST-2": 40.1}
    verdicts = recompute_headroom.recompute_verdicts(
        hand_scores(), of_stage_t, {**SETTING, "measures": ["CoLA", "RTE"]}
    )
    assert set(verdicts["headrooms"]) == {"CoLA", "RTE", "SST-2"}
    assert verdicts["measures"] == ["RTE"]
    arm = verdicts["arms"]["3ML-self"]
    assert set(arm["at_the_chosen_rates"]) == {"RTE"}
    assert (arm["verdict"], arm["lower_bound"], arm["not_inferior"]) == (None, None, None)
    assert arm["is_within_margin"] is None

    # No measure of stage T has five deviations.
    verdicts = recompute_headroom.recompute_verdicts(hand_scores(), {}, None)
    assert verdicts["measures"] == []
    arm = verdicts["arms"]["MAE-LM"]
    assert set(arm.pop("outside_the_rule")) == {"CoLA", "RTE", "SST-2"}
    assert arm == {"verdict": None, "is_within_margin": None, "at_the_chosen_rates": {}, "at_the_lowest_rate": {}}


def table(*contrasts):
    """Return a table of contrasts (mean, half of the interval, p)."""
    of_measures = {}
    for number, (mean, half, p_holm) in enumerate(contrasts):
        contrast = {"mean": mean, "interval_90": [mean - half, mean + half], "p_holm": p_holm}
        of_measures[f"measure {number}"] = contrast
    return of_measures


@pytest.mark.parametrize(
    ("at_chosen", "at_lowest", "margin", "expected"),
    [
        # Mean, half of the interval, p.
        ([(0.3, 0.1, 0.01), (-0.3, 0.1, 0.05)], [(0, 1, 1), (0, 1, 1)], None, "supported"),
        ([(-0.01, 0.001, 0.04), (0, 1, 1)], [(0, 1, 1), (0, 1, 1)], 0.1, "contradicted"),
        ([(-0.3, 0.1, 0.01), (0.3, 0.1, 0.01)], [(0, 1, 1), (0, 1, 1)], 0.1, "mixed"),
        ([(0, 0.09, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.05), (-0.3, 0.1, 0.05)], 0.1, "equivalent"),
        ([(0, 0.09, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.01), (-0.3, 0.1, 0.01)], 0.1, "equivalent"),
        ([(0, 0.09, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.01), (-0.3, 0.1, 0.06)], 0.1, "speed only"),
        ([(0, 0.09, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.06), (-0.3, 0.1, 0.01)], 0.1, "slower only"),
        ([(0, 0.11, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.01), (0, 1, 1)], 0.1, "cannot tell"),
        ([(0, 0.11, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.01), (0, 1, 1)], 0.15, "speed only"),
        ([(0, 0.09, 1), (0, 0.05, 1)], [(0.3, 0.1, 0.01), (0, 1, 1)], None, "cannot tell"),
        ([(0.3, 0.1, 0.01)], [(0.3, 0.1, 0.01)], 0.1, None),
        ([], [], 0.1, None),
    ],
)
def test_verdict_by_hand(at_chosen, at_lowest, margin, expected):
    assert recompute_headroom.verdict(table(*at_chosen), table(*at_lowest), margin) == expected


@pytest.mark.parametrize(
    ("verdict", "bound", "margin", "expected"),
    [
        ("supported", -0.09, 0.1, True),
        ("cannot tell", -0.11, 0.1, False),
        ("cannot tell", -0.11, 0.15, True),
        ("slower only", -0.1, 0.1, False),
        ("supported", 0.2, None, None),
        ("contradicted", 0.2, 0.1, None),
        ("mixed", 0.2, 0.1, None),
        (None, None, 0.1, None),
    ],
)
def test_not_inferior_by_hand(verdict, bound, margin, expected):
    assert recompute_headroom.not_inferior(verdict, bound, margin) is expected


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ((2, 3, 4), "gap"),
        ((1, 2, 4), "gap"),
        ((0, 1, 2), "gap"),
        ((1, 2, 3, 4, 5, 6), "more than 5"),
        ((1,), "one seed"),
    ],
)
def test_other_seeds_are_refused(seeds, message):
    scores = hand_scores()
    for (model, _), by_rate in scores.items():
        for rate, by_seed in by_rate.items():
            if model != RANDOM:
                by_rate[rate] = dict.fromkeys(seeds, by_seed[1])
    with pytest.raises(SystemExit, match=message):
        recompute_headroom.recompute_verdicts(scores, {"RTE": 30.0, "SST-2": 40.0}, None)


def test_results_without_the_lowest_rate_are_refused():
    scores = hand_scores()
    for by_rate in scores.values():
        del by_rate[1e-4]
    with pytest.raises(SystemExit, match=r"no scores at the rate 0\.0001"):
        recompute_headroom.recompute_verdicts(scores, {"RTE": 30.0, "SST-2": 40.0}, None)


def test_a_setting_with_a_measure_that_is_not_chosen_is_refused(study):
    study.write("simulation", {"chosen": {**SETTING, "measures": ["UPOS", "RTE"]}})
    with pytest.raises(SystemExit, match="RTE is not a chosen measure"):
        study.check_verdicts()


@pytest.mark.parametrize("verdict", EFFECTS)
def test_headroom_agrees(verdict, tmp_path, capsys):
    study = Study(tmp_path, main_study(EFFECTS[verdict]))
    assert study.read("tasks")["chosen"] != list(ROOMS)[:4]
    assert set(study.read("tasks")["chosen"]) == set(CHOSEN)
    assert study.read("verdicts")["arms"]["MAE-LM"]["verdict"] == verdict
    capsys.readouterr()

    study.check_tasks()
    assert capsys.readouterr().out.endswith("every number agrees\n")
    study.check_verdicts()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "every number agrees"
    contrasts = [line for line in lines if "differs by at most" in line]
    assert len(contrasts) == len(CHOSEN) + 2 * 2 * len(CHOSEN)


def test_headroom_agrees_outside_the_rule_and_with_results_in_parts(tmp_path, capsys):
    results = main_study(EFFECTS["mixed"])
    study = Study(tmp_path, results, SETTING | {"measures": ["UPOS", "STS-B"]})
    whole = study.read("verdicts")
    outside = whole["arms"]["MAE-LM"]["outside_the_rule"]
    assert set(outside) == {"UPOS, 500", "WNUT-17"}
    # The effect of one of three arms raises the headroom by a tenth. A mean of five differences deviates by 0.013.
    assert outside["UPOS, 500"]["mean"] == pytest.approx(0.3 / 1.1, abs=0.03)
    study.check_verdicts()

    runs = results["runs"]
    parts = ([run for run in runs if run["seed"] < 3], [run for run in runs if run["seed"] >= 3])
    for number, part in enumerate(parts):
        study.files[f"part {number}"] = tmp_path / f"part-{number}.json"
        study.write(f"part {number}", {"runs": part})
    study.headroom("rule", ["tasks", "simulation", "part 0", "part 1"], "verdicts")
    assert study.read("verdicts") == whole
    capsys.readouterr()
    study.recompute("verdicts", "tasks", "simulation", "verdicts", "part 0", "part 1")
    assert capsys.readouterr().out.endswith("every number agrees\n")


WIDE = {"measures": ["STS-B", "UPOS", "WNUT-17"], "margin": 0.2}


# By case: the verdict of an effect, seeds, measures without a lead, setting; verdict and "not inferior" of 3ML.
@pytest.mark.parametrize(
    ("effect", "seeds", "without_lead", "setting", "expected", "not_inferior"),
    [
        ("equivalent", 5, (), SETTING, "equivalent", True),
        ("supported", 5, (), SETTING, "supported", True),
        ("contradicted", 5, (), SETTING, "contradicted", None),
        ("mixed", 5, (), SETTING, "mixed", None),
        ("supported", 5, (), None, "supported", None),
        ("equivalent", 5, (), None, "cannot tell", None),
        ("slower only", 4, (), SETTING, "cannot tell", None),
        ("slower only", 5, (), WIDE, "slower only", True),
        ("slower only", 5, ("WNUT-17",), SETTING, "equivalent", True),
        ("supported", 5, ("UPOS, 500",), SETTING, "equivalent", True),
        ("supported", 5, ("UPOS", "STS-B", "WNUT-17"), SETTING, None, None),
        ("supported", 5, CHOSEN, None, None, None),
    ],
)
def test_headroom_agrees_in_other_settings(
    effect, seeds, without_lead, setting, expected, not_inferior, tmp_path, capsys
):
    results = main_study(EFFECTS[effect], seeds, without_lead, "3ML-self")
    study = Study(tmp_path, results, setting)
    capsys.readouterr()
    study.check_verdicts()
    assert capsys.readouterr().out.endswith("every number agrees\n")
    verdicts = study.read("verdicts")
    assert set(verdicts["measures"]) == set(CHOSEN if setting is None else setting["measures"]) - set(without_lead)
    assert verdicts["arms"]["3ML-self"]["verdict"] == expected
    assert verdicts["arms"]["3ML-self"]["not_inferior"] is not_inferior


def test_headroom_agrees_with_a_rate_below_the_lowest(tmp_path, capsys):
    """A rate that extends the edge does not become the lowest rate of the rule."""
    results = main_study(EFFECTS["speed only"])
    for run in results["runs"]:
        values = run["measures"]["STS-B"]["3800"]
        values["spearman at 3e-05"] = 10.0
        values["test_spearman at 3e-05"] = 10.0 + run["seed"]
    study = Study(tmp_path, results)
    capsys.readouterr()
    study.check_verdicts()
    assert capsys.readouterr().out.endswith("every number agrees\n")
    assert study.read("verdicts")["arms"]["MAE-LM"]["at_the_lowest_rate"]["STS-B"]["mean"] > 0.2


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


def noticed_changes(study, name, check):
    """Assert that each changed number of a file is noticed, and return how many there are."""
    count = 0
    for content in changed_numbers(study.read(name)):
        study.write(name, content)
        with pytest.raises(SystemExit, match="differs"):
            check()
        count += 1
    return count


def test_each_changed_number_of_the_tasks_is_noticed(study):
    assert noticed_changes(study, "tasks", study.check_tasks) == 4 * len(ROOMS)


def test_each_changed_number_of_the_verdicts_is_noticed(study):
    count = noticed_changes(study, "verdicts", study.check_verdicts)
    # The headrooms; per arm, at both rates, five differences, a mean, an interval, p and points of each measure; the
    # lower bound of 3ML.
    assert count == len(CHOSEN) + 2 * 2 * len(CHOSEN) * 10 + 1


def set_verdict(verdicts):
    verdicts["arms"]["MAE-LM"]["verdict"] = "mixed"


def set_inferior(verdicts):
    verdicts["arms"]["3ML-self"]["not_inferior"] = not verdicts["arms"]["3ML-self"]["not_inferior"]


def drop_difference(verdicts):
    verdicts["arms"]["3ML-self"]["at_the_lowest_rate"]["UPOS"]["differences"].pop()


def drop_measure(verdicts):
    del verdicts["arms"]["3ML-self"]["at_the_lowest_rate"]["UPOS"]


def add_measure(verdicts):
    verdicts["arms"]["MAE-LM"]["at_the_chosen_rates"]["RTE"] = {}


def drop_arm(verdicts):
    del verdicts["arms"]["3ML-self"]


def add_arm(verdicts):
    verdicts["arms"]["3ML"] = {}


def add_bound(verdicts):
    verdicts["arms"]["MAE-LM"]["lower_bound"] = 0.0


def swap_used_measures(verdicts):
    verdicts["measures"] = verdicts["measures"][::-1]


def drop_used_measure(verdicts):
    verdicts["measures"].pop()


def drop_headroom(verdicts):
    del verdicts["headrooms"]["UPOS"]


def set_nan(verdicts):
    verdicts["arms"]["3ML-self"]["lower_bound"] = math.nan


@pytest.mark.parametrize(
    "change",
    [
        set_verdict,
        set_inferior,
        drop_difference,
        drop_measure,
        add_measure,
        drop_arm,
        add_arm,
        add_bound,
        swap_used_measures,
        drop_used_measure,
        drop_headroom,
        set_nan,
    ],
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
    ("models", "seed", "message"),
    [
        ({"MAE-LM"}, 2, "differ in seeds"),
        ({"MLM"}, 5, "differ in seeds"),
        (set(ARMS), 2, "without a gap"),
        (set(ARMS), 5, "committed file differs"),
        ({RANDOM}, 3, "committed file differs"),
    ],
)
def test_a_dropped_seed_is_noticed(models, seed, message, study):
    runs = study.read("results")["runs"]
    kept = [run for run in runs if run["seed"] != seed or run["model"] not in models]
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


@pytest.mark.parametrize("name", ["results", "tasks", "simulation", "verdicts"])
def test_files_that_cannot_be_read(name, study):
    for content in ("{", "[1, 2]", '{"runs": 3}', '{"candidates": [{}], "chosen": []}'):
        study.files[name].write_text(content)
        with pytest.raises(SystemExit) as error:
            study.check_verdicts()
        assert name == "verdicts" or str(study.files[name]) in str(error.value)
    study.files[name].unlink()
    with pytest.raises(SystemExit, match=rf"{name}\.json: missing"):
        study.check_verdicts()


def test_the_committed_tasks_are_recomputed():
    files = (RESULTS / "headroom" / name for name in ("tasks.json", "tasks-results.json", "relations-results.json"))
    deviations = recompute_headroom.check_tasks(*files)
    assert max(deviations.values()) < 1e-9


def test_the_committed_verdicts_are_recomputed():
    folder = RESULTS / "headroom"
    files = (folder / name for name in ("tasks.json", "simulation.json", "verdicts.json"))
    deviations = recompute_headroom.check_verdicts(*files, *sorted(folder.glob("main-results-*.json")))
    assert max(deviations.values()) < 1e-9

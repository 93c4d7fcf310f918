"""The rule of the study headroom: tasks, verdicts and their frequencies without an effect."""

import json
import tomllib

import numpy as np
import pytest

from experiments import (
    headroom,
    headroom_figure,
    headroom_findings,
    headroom_tables,
    prepare_headroom,
    recompute_headroom,
)
from experiments.findings import RESULTS
from experiments.headroom import (
    Headroom,
    apply_rule,
    choose,
    edges,
    find_setting,
    headroom_of,
    lower_bound,
    simulate,
    verdict,
)
from experiments.headroom_findings import committed
from tests.support.refusals import refused

NOTHING = {"a": [0.01, -0.01, 0.02, -0.02, 0.0], "b": [0.0, 0.01, -0.01, 0.01, 0.0]}
BETTER = {"a": [0.3, 0.31, 0.29, 0.3, 0.32], "b": NOTHING["b"]}
WORSE = {"a": NOTHING["a"], "b": [-0.3, -0.31, -0.29, -0.3, -0.32]}
NOISE = {"a": [0.5, -0.4, 0.1, -0.2, 0.05], "b": NOTHING["b"]}
SETTING = {"measures": ["UPOS"], "margin": 0.1}
PAGE = (RESULTS / "headroom/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("best", "lowest", "margin", "expected"),
    [
        (BETTER, NOTHING, 0.1, "supported"),
        (BETTER, NOTHING, None, "supported"),
        (WORSE, BETTER, 0.1, "contradicted"),
        ({"a": BETTER["a"], "b": WORSE["b"]}, NOTHING, 0.1, "mixed"),
        (NOTHING, NOTHING, 0.1, "equivalent"),
        (NOTHING, {"a": BETTER["a"], "b": WORSE["b"]}, 0.1, "equivalent"),
        (NOTHING, BETTER, 0.1, "speed only"),
        (NOTHING, WORSE, 0.1, "slower only"),
        (NOTHING, BETTER, None, "cannot tell"),
        (NOTHING, NOTHING, 0.01, "cannot tell"),
        (NOISE, BETTER, 0.1, "cannot tell"),
    ],
)
def test_verdicts(best, lowest, margin, expected):
    assert verdict(best, lowest, margin) == expected


def test_the_lower_bound_is_of_the_mean_over_measures():
    balanced = {"a": [0.3] * 5, "b": [-0.3, -0.31, -0.29, -0.3, -0.3]}
    assert -0.01 < lower_bound(balanced) < 0
    assert lower_bound(WORSE) < -0.1


def test_eligible_measures_are_chosen_and_at_most_two_sizes_of_a_task():
    rooms = {"UPOS": 9, "UPOS, 500": 8, "UPOS, 50": 7, "CoLA": 4.9, "RTE": 1, "SST-2": 5}
    candidates = [Headroom(name, 50.0, 50.0 + room, 1.0) for name, room in rooms.items()]
    assert [chosen.measure for chosen in choose(candidates)] == ["UPOS", "UPOS, 500", "SST-2"]


def made_up(scores):
    """Return results in which the higher of two rates is the better one on held-out rows, given scores by model.

    Args:
        scores: model -> seed -> score at the lower rate, score at the higher rate.
    """
    runs = []
    for model, by_seed in scores.items():
        for seed, (lower, higher) in by_seed.items():
            values = {"accuracy at 0.0001": 50, "accuracy at 0.001": 60}
            values |= {"test_accuracy at 0.0001": lower, "test_accuracy at 0.001": higher}
            runs.append({"model": model, "seed": seed, "measures": {"UPOS": {"10": values}}})
    return {"runs": runs}


def test_headroom_is_that_of_the_rates_that_held_out_rows_choose():
    of_random = {seed: (0, 50 + seed) for seed in range(3)}
    results = made_up({"MLM": {0: (90, 66)}, "3ML-self": {0: (90, 74)}, headroom.RANDOM: of_random})
    room = headroom_of(results, "UPOS")
    assert (room.pretrained, room.random) == (70, 51)
    assert room.deviation == pytest.approx((1 + 100**2 * 0.7 * 0.3 / 25_147) ** 0.5, rel=1e-12)
    assert {edge["rate"] for edge in edges(results)} == {"0.001"}


def test_seeds_that_agree_by_chance_do_not_make_a_large_headroom():
    of_random = dict.fromkeys(range(3), (0, 50))
    room = headroom_of(made_up({"MLM": {0: (90, 70)}, headroom.RANDOM: of_random}), "UPOS")
    sampling = 100 * (0.7 * 0.3 / 25_147) ** 0.5
    assert room.deviation == pytest.approx(sampling * 1.25**0.5, rel=1e-12)


def test_the_simulation_counts_what_the_rule_says(monkeypatch):
    """A headroom of ten deviations cannot show equivalence with this margin; one of forty does."""
    monkeypatch.setattr(headroom, "SIMULATED", 300)

    def frequencies(deviations, effect=0.0, correlation=0.0):
        tasks = [Headroom(name, 0.0, deviations, 1.0) for name in "abcd"]
        return simulate(tasks, 0.1, effect, correlation, np.random.default_rng(1))

    few, many = frequencies(10), frequencies(40)
    assert few.get("equivalent", 0) < 0.1  # measured: 0.00 and 0.99
    assert many["equivalent"] + many["speed only"] > 0.6
    for counted in (few, many):
        without_effect = sum(counted.get(name, 0) for name in ("supported", "contradicted", "mixed"))
        assert without_effect < 0.1  # 0.05, with a standard error of 0.013
        assert sum(value for name, value in counted.items() if name != "not inferior") == pytest.approx(1)
    assert frequencies(40, effect=1.0)["supported"] == 1
    # The mean over measures varies more if they agree.
    assert frequencies(10, correlation=0.5)["not inferior"] < few["not inferior"] - 0.1


@pytest.mark.parametrize(
    ("deviations", "measures", "margin"),
    [((60, 50, 40, 30), "abcd", 0.1), ((60, 50, 40, 6), "abc", 0.1), ((20, 18, 17, 16), "abcd", 0.15), ((5, 5), "", 0)],
)
def test_the_narrowest_margin_with_which_arms_are_found_equivalent(deviations, measures, margin, monkeypatch):
    monkeypatch.setattr(headroom, "SIMULATED", 100)
    tasks = [Headroom(name, 0.0, room, 1.0) for name, room in zip("abcd", deviations, strict=False)]
    found = find_setting(tasks)
    chosen = found["chosen"]
    if not measures:
        assert chosen is None
        assert len(found["tried"]) == 3
    else:
        assert (chosen["measures"], chosen["margin"]) == ([*measures], margin)
        assert json.loads(json.dumps(found)) == found


def main_results(seeds, gain=0.0):
    """Return results of a measure in the main study; 3ML-self gains some points, and random weights are at 50."""
    generator = np.random.default_rng(1)
    scores = {}
    for model in headroom_figure.COLOURS:
        better = gain if model == "3ML-self" else 0.0
        scores[model] = {}
        for seed in seeds:
            score = 70 + better + 0.1 * generator.random()
            scores[model][seed] = (score - 10, score)
    scores[headroom.RANDOM] = {seed + 2: (40, 50) for seed in sorted(seeds)}
    return made_up(scores)


def two_measures(results):
    """Return results in which a second measure has the values of the first one."""
    for run in results["runs"]:
        run["measures"]["UPOS, 500"] = run["measures"]["UPOS"]
    return results


TASKS = [Headroom("UPOS", 50.0, 70.0, 1.0), Headroom("UPOS, 500", 50.0, 70.0, 1.0)]
BOTH = {"measures": ["UPOS", "UPOS, 500"], "margin": 0.1}


@pytest.mark.parametrize(
    ("gain", "setting", "seeds", "arm_verdict", "is_within_margin", "not_inferior"),
    [
        (0.0, BOTH, 5, "equivalent", True, True),
        (0.0, BOTH, 4, "cannot tell", None, None),
        (0.0, None, 5, "cannot tell", None, None),
        (0.9, BOTH, 5, "supported", True, True),
        (5.0, BOTH, 5, "supported", False, True),
        (-5.0, BOTH, 5, "contradicted", False, None),
        (0.0, SETTING, 5, None, None, None),
    ],
)
def test_what_the_rule_writes(gain, setting, seeds, arm_verdict, is_within_margin, not_inferior):
    results = two_measures(main_results([*range(1, seeds + 1)][::-1], gain))
    written = json.loads(json.dumps(apply_rule(results, TASKS, setting)))
    arm = written["arms"]["3ML-self"]
    assert (arm["verdict"], arm["not_inferior"]) == (arm_verdict, not_inferior)
    assert arm["is_within_margin"] is is_within_margin
    scores = {
        (run["model"], run["seed"]): run["measures"]["UPOS"]["10"]["test_accuracy at 0.001"] for run in results["runs"]
    }
    room = np.mean([scores[model, seed] for model in headroom_figure.COLOURS for seed in range(1, seeds + 1)]) - 50
    assert written["headrooms"]["UPOS"] == pytest.approx(room, rel=1e-12)
    points = [scores["3ML-self", seed] - scores["MLM", seed] for seed in range(1, seeds + 1)]
    statistics = arm["at_the_chosen_rates"]["UPOS"]
    assert statistics["differences"] == pytest.approx(np.array(points) / room, rel=1e-9)
    assert statistics["points"] == pytest.approx(np.mean(points), rel=1e-9)
    assert "not_inferior" not in written["arms"]["MAE-LM"]


def test_a_measure_whose_headroom_has_shrunk_leaves_the_rule():
    tasks = [Headroom("UPOS", 50.0, 95.0, 1.0), Headroom("UPOS, 500", 50.0, 70.0, 1.0)]
    written = apply_rule(two_measures(main_results([1, 2, 3, 4, 5])), tasks, BOTH)
    assert written["measures"] == ["UPOS, 500"]
    assert written["arms"]["MAE-LM"]["verdict"] is None


@pytest.mark.parametrize(
    ("of_mlm", "named"), [([1, 2, 4], "MLM.*complete"), ([1, 2, 3, 3], "seed"), ([2, 3, 4], "MLM")]
)
def test_no_seed_is_paired_with_another_one(of_mlm, named):
    others = [run for run in main_results([1, 2, 3])["runs"] if run["model"] != "MLM"]
    runs = []
    for seed in of_mlm:
        runs += [run for run in main_results([seed])["runs"] if run["model"] == "MLM"]
    with refused(named):
        apply_rule({"runs": [*others, *runs]}, TASKS[:1], SETTING)


def test_a_measure_of_the_rule_that_the_results_lack_is_named():
    with refused("no UPOS, 500"):
        apply_rule(main_results([1, 2, 3, 4, 5]), TASKS, BOTH)


@pytest.mark.parametrize(("step", "number"), [("tasks", 0), ("simulation", 2), ("rule", 2)])
def test_files_that_a_step_lacks_or_does_not_read_are_refused(step, number, tmp_path):
    files = []
    for name in range(number):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text("{}")
    with refused(f"{step}: {number} files"):
        headroom.main(headroom.HeadroomOptions(step=step, files=tuple(files), out=tmp_path / "out.json"))


def test_relations_have_no_subtype_and_rare_ones_are_no_labels():
    def sentence(*relations):
        rows = ["# a comment", "1-2\tof it" + 8 * "\t_"]
        rows += [f"{number}\tword" + 5 * "\t_" + f"\t{relation}\t_\t_" for number, relation in enumerate(relations, 1)]
        return rows

    train = [sentence("nmod:poss", "case")] * 50 + [sentence("dep", "nmod")] * 49
    labelled, (tested,) = prepare_headroom.with_main_relations(train, [sentence("dep", "case:other")])
    assert labelled[0] == sentence("nmod", "case")
    assert labelled[-1] == sentence("_", "nmod")
    assert tested == sentence("_", "case")


def test_of_equal_rates_the_lowest_is_chosen():
    """The sums of these rows are equal; their means are not, in floating point."""
    right_rows = {"0.0001": (151, 152, 153, 154, 158), "0.0003": (150, 151, 154, 156, 157)}
    runs = []
    for seed in range(5):
        values = {f"accuracy at {rate}": 100 * rows[seed] / 249 for rate, rows in right_rows.items()}
        runs.append({"model": "MLM", "seed": seed, "measures": {"RTE": {"10": values}}})
    assert headroom.chosen_rate({"runs": runs}, "MLM", "RTE") == "0.0001"


@pytest.mark.parametrize(
    ("on_held_out_rows", "at_edge"),
    [
        ((60, 50, 40), "0.0001"),
        ((60, 50, 60), "0.0001"),
        ((50, 60, 40), None),
        ((50, 60, 60), None),
        ((60, 60, 60), None),
    ],
)
def test_a_rate_that_ties_with_an_inner_one_is_not_at_an_edge(on_held_out_rows, at_edge):
    rates = zip(("0.0001", "0.0003", "0.001"), on_held_out_rows, strict=True)
    values = {f"accuracy at {rate}": score for rate, score in rates}
    results = {"runs": [{"model": "MLM", "seed": 1, "measures": {"RTE": {"10": values}}}]}
    assert [edge["rate"] for edge in edges(results)] == ([at_edge] if at_edge else [])


def test_the_figure_shows_every_seed_of_every_model():
    results = two_measures(main_results([1, 2, 3, 4, 5], gain=1.0))
    verdicts = apply_rule(results, TASKS, BOTH)
    drawn = headroom_figure.figure(results, verdicts, BOTH["margin"])
    points = [[line for line in axes.lines if line.get_marker() == "o"] for axes in drawn.axes]
    assert [[len(line.get_ydata()) for line in lines] for lines in points] == [[5] * 3, [5] * 3, [5] * 2, [5] * 2]
    of_mlm, _, of_3ml = (line.get_ydata() for line in points[0])
    expected = 100 * (of_3ml - of_mlm) / verdicts["headrooms"]["UPOS"]
    np.testing.assert_allclose(points[2][1].get_ydata(), expected, rtol=1e-9)


def test_the_tables_show_every_seed_and_every_difference():
    results = two_measures(main_results([1, 2, 3, 4, 5], gain=1.0))
    verdicts = apply_rule(results, TASKS, BOTH)
    parts = [{"runs": results["runs"][::2]}, {"runs": results["runs"][1::2]}]
    scores, differences, outside, by_rate = (table.splitlines() for table in headroom_tables.of_rule(verdicts, *parts))
    assert len(scores) == len(by_rate) == 2 + 2 * 4
    assert "| UPOS | random weights | 40.0 | 50.0 |" in by_rate
    assert len(differences) == 2 + 2 * 2
    assert len(outside) == 2
    of_3ml = [run["measures"]["UPOS"]["10"]["test_accuracy at 0.001"] for run in results["runs"][10:15]]
    by_seed = " ".join(f"{score:.1f}" for score in of_3ml)
    assert f"| UPOS | 3ML-self | 0.001 | {by_seed} | {np.mean(of_3ml):.1f} |" in scores
    assert "| UPOS | random weights | 0.001 | 50.0 50.0 50.0 50.0 50.0 | 50.0 |" in scores
    best = verdicts["arms"]["3ML-self"]["at_the_chosen_rates"]["UPOS"]
    assert any(
        line.startswith(f"| 3ML-self | UPOS | +{best['points']:.1f} | +{100 * best['mean']:.1f} %")
        for line in differences
    )


def test_tables_and_figure_show_a_measure_outside_the_rule():
    results = two_measures(main_results([1, 2, 3, 4, 5], gain=1.0))
    verdicts = apply_rule(results, TASKS, SETTING)
    _, differences, outside, _ = (table.splitlines() for table in headroom_tables.of_rule(verdicts, results))
    assert [line.split(" | ")[1] for line in differences[2:]] == ["UPOS", "UPOS"]
    assert [line.split(" | ")[1] for line in outside[2:]] == ["UPOS, 500", "UPOS, 500"]
    drawn = headroom_figure.figure(results, verdicts, SETTING["margin"])
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["UPOS", "UPOS, 500\n(outside the rule)", "", ""]


def without(results, model, seed):
    """Remove a run."""
    results["runs"] = [run for run in results["runs"] if (run["model"], run["seed"]) != (model, seed)]


def without_a_measure(results):
    """Remove a measure of a run."""
    del results["runs"][-1]["measures"]["UPOS, 500"]


def without_a_rate(results):
    """Remove a learning rate of fine-tuning from the first run."""
    for values in results["runs"][0]["measures"]["UPOS"].values():
        del values["accuracy at 0.001"], values["test_accuracy at 0.001"]


@pytest.mark.parametrize(
    ("remove", "named"),
    [
        (lambda results: without(results, headroom.RANDOM, 5), r"random weights has the seeds \[3, 4, 6, 7\]"),
        (lambda results: without(results, "MAE-LM", 5), r"MAE-LM has the seeds \[1, 2, 3, 4\]"),
        (without_a_measure, "UPOS, 500: random weights has"),
        (without_a_rate, "learning rates of fine-tuning"),
    ],
)
def test_what_is_missing_in_the_results_is_named(remove, named):
    results = json.loads(json.dumps(two_measures(main_results([1, 2, 3, 4, 5]))))
    remove(results)
    with refused(named):
        apply_rule(results, TASKS, BOTH)


def test_the_tables_of_tasks_and_simulation():
    asdicts = [{"measure": "UPOS", "random": 50.0, "pretrained": 70.0, "deviation": 1.0, "deviations": 20.0}]
    asdicts += [{"measure": "CoLA", "random": 0.0, "pretrained": 3.0, "deviation": 3.0, "deviations": 1.0}]
    (candidates,) = headroom_tables.of_tasks({"candidates": asdicts[::-1], "chosen": ["UPOS"]})
    assert candidates.splitlines()[2:] == [
        "| UPOS | 50.0 | 70.0 | 20.0 | 20.0 | yes |",
        "| CoLA | 0.0 | 3.0 | 3.0 | 1.0 | no |",
    ]

    without_effect = {"0": {"equivalent": 0.5, "speed only": 0.25, "not inferior": 0.9}, "0.5": {"equivalent": 0.6}}
    setting = {"measures": ["UPOS"], "margin": 0.1, "without_effect": without_effect}
    with_effect = setting | {"with_effect": {"0.05": {"supported": 1.0}}}
    settings, frequencies = headroom_tables.of_simulation({"tried": [setting], "chosen": with_effect})
    assert settings.splitlines()[2:] == ["| 10 % | UPOS | 60.0 % | 0.0 % |"]
    lines = frequencies.splitlines()
    assert "| verdict | no effect, correlation 0 | no effect, correlation 0.5 | effect of 5 % |" in lines
    assert "| supported | 0.0 % | 0.0 % | 100.0 % |" in lines
    assert "| not inferior | 90.0 % | 0.0 % | 0.0 % |" in lines
    assert len(headroom_tables.of_simulation({"tried": [setting], "chosen": None})) == 1


def test_the_page_has_the_losses_of_stage_r_and_every_best_rate_is_in_the_interior():
    losses = {}
    for run in committed("rates.json")["runs"]:
        losses[run["model"], run["learning_rate"]] = run["measures"]["loss"]["3800"]["loss"]
    for rate, name in ((5e-4, "5e-4"), (1e-3, "1e-3"), (2e-3, "**2e-3**"), (4e-3, "4e-3")):
        cells = [f"{losses[arm, rate]:.2f}" for arm in headroom_figure.COLOURS]
        assert f"| {name} | {' | '.join(cells)} |" in PAGE
    best = {arm: losses[arm, 2e-3] for arm in headroom_figure.COLOURS}
    for (arm, rate), loss in losses.items():
        assert loss >= best[arm], (arm, rate)
    assert f"MAE-LM is {best['MAE-LM'] - best['MLM']:.2f} nats behind" in PAGE
    assert f"3ML {best['MLM'] - best['3ML-self']:.2f} nats ahead" in PAGE


def test_the_page_states_how_much_text_a_training_reads():
    runs = committed("rates.json")["runs"]
    tokens = {3800 * run["measures"]["seconds"]["3800"]["tokens_per_update"] for run in runs}
    assert len(tokens) == 1
    stated = f"{tokens.pop() / 1e6:.1f} million tokens"
    assert f"reads {stated}" in PAGE
    assert f"{stated} in 3,800 updates" in (RESULTS / "headroom/plan.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("step", "name"), [("tasks", "tasks.json"), ("simulation", "simulation-1.json"), ("simulation", "simulation.json")]
)
def test_the_page_has_the_tables_of_the_committed_results(step, name):
    for table in headroom_tables.TABLES[step](committed(name)):
        assert table in PAGE


def test_the_page_has_the_tables_of_the_main_study():
    tables = headroom_tables.of_rule(headroom_findings.verdicts(), headroom_findings.results())
    for table in (*tables, headroom_findings.costs()):
        assert table in PAGE


def test_the_committed_verdicts_follow_from_the_main_study():
    tasks = headroom.read_tasks(committed("tasks.json"))
    written = apply_rule(headroom_findings.results(), tasks, committed("simulation.json")["chosen"])
    deviations = recompute_headroom.compare(json.loads(json.dumps(written)), committed("verdicts.json"))
    assert max(deviations.values()) < 1e-12  # another processor may round differently


@pytest.mark.parametrize("arm", headroom.ARMS[1:])
def test_every_seed_is_behind_on_both_tasks_of_the_rule(arm):
    of_arm = headroom_findings.verdicts()["arms"][arm]
    assert of_arm["verdict"] == "contradicted"
    assert [*of_arm["at_the_chosen_rates"]] == ["UPOS, 500", "DEPREL, 500"]
    for of_task in of_arm["at_the_chosen_rates"].values():
        assert len(of_task["differences"]) == 5
        assert max(of_task["differences"]) < 0
        assert of_task["p_holm"] < 0.001


def test_which_differences_at_the_lowest_rate_and_on_entities_are_not_chance():
    p_values = {}
    for arm, of_arm in headroom_findings.verdicts()["arms"].items():
        for place in ("at_the_lowest_rate", "outside_the_rule"):
            for task, of_task in of_arm[place].items():
                p_values[arm, task] = of_task["p_holm"]
    chance = {pair for pair, p_value in p_values.items() if p_value >= 0.05}
    assert chance == {("MAE-LM", "DEPREL, 500"), ("MAE-LM", "WNUT-17, 500")}
    assert len(p_values) == 6


@pytest.mark.parametrize("model", headroom.ARMS)
def test_no_score_on_entities_reaches_10(model):
    scores = headroom.at_chosen_rate(headroom_findings.results(), model, headroom_findings.ENTITIES)
    assert max(scores.values()) < 10


def test_only_random_weights_have_a_best_rate_at_an_edge():
    at_edges = edges(headroom_findings.results())
    assert at_edges == committed("main-edges.json")
    assert {(edge["model"], edge["rate"]) for edge in at_edges} == {(headroom.RANDOM, "0.003")}
    assert {edge["measure"] for edge in at_edges} == {"UPOS, 500", "DEPREL, 500"}


def test_what_a_sceptic_says_of_stage_t():
    of_mlm, *of_others = headroom_findings.stage_t("UPOS, 500")
    assert max(of_others) < of_mlm
    for task in ("WNUT-17, 500", "SST-2, 500", "STS-B"):
        of_mlm, *of_others = headroom_findings.stage_t(task)
        assert min(of_others) > of_mlm


def test_losses_of_seed_0_agree_with_stage_r():
    losses = {}
    for run in committed("rates.json")["runs"]:
        losses[run["model"], run["learning_rate"]] = run["measures"]["loss"]["3800"]["loss"]
    pretrained = [run for run in committed("relations-results.json")["runs"] if run["model"] != headroom.RANDOM]
    assert len(pretrained) == 3
    for run in pretrained:
        loss = run["measures"]["loss"]["3800"]["loss"]
        assert loss == pytest.approx(losses[run["model"], 2e-3], abs=0.001)


def plan(name):
    """Return a plan of the study."""
    return tomllib.loads((RESULTS / "headroom" / name).read_text(encoding="utf-8"))


def test_the_plan_of_the_main_study_is_that_of_the_page():
    main, stage_t = plan("main.toml"), plan("relations.toml")
    assert main["looks"] == [len(headroom.SEEDS)]
    for table in ("data", "train", "options"):
        assert main[table] == stage_t[table]
    for model, of_stage_t in zip(main["model"], stage_t["model"], strict=True):
        seeds = headroom.SEEDS_OF_RANDOM if model["name"] == headroom.RANDOM else headroom.SEEDS
        assert model == of_stage_t | {"seeds": [*seeds]}

    tasks, simulation = committed("tasks.json"), committed("simulation.json")
    of_stage_t = {measure["name"]: measure for measure in plan("tasks.toml")["measure"] + stage_t["measure"][2:]}
    finetuned = {measure["name"]: measure for measure in main["measure"][2:]}
    assert set(finetuned) == set(tasks["chosen"]) - {"UPOS"}
    assert set(simulation["chosen"]["measures"]) <= set(finetuned)
    for name, measure in finetuned.items():
        assert measure == of_stage_t[name] | {"seeds": 2}
        assert headroom.LOWEST_RATE in map(str, measure["learning_rates"])


def test_the_parts_of_the_main_study_are_of_its_plan_and_no_seed_is_on_the_plateau():
    main = plan("main.toml")
    seeds = {model["name"]: model["seeds"] for model in main["model"]}
    finetuned = {measure["name"] for measure in main["measure"][2:]}
    results = headroom_findings.results()
    runs = [(run["model"], run["seed"]) for run in results["runs"]]
    assert len(set(runs)) == len(runs)
    for run in results["runs"]:
        assert run["seed"] in seeds[run["model"]]
        assert finetuned <= set(run["measures"])
        assert run["model"] == headroom.RANDOM or run["measures"]["loss"]["3800"]["loss"] < 6.0
    for measure in finetuned:
        assert headroom.rates_of(results, measure) == ["0.0001", "0.0003", "0.001", "0.003"]


def test_the_committed_tasks_follow_from_stage_t():
    results = headroom.merged([committed("tasks-results.json"), committed("relations-results.json")])
    tasks = committed("tasks.json")
    candidates = [headroom_of(results, measure) for measure in headroom.measures_of(results)]
    assert [candidate.measure for candidate in choose(candidates)] == tasks["chosen"]
    for candidate, written in zip(candidates, tasks["candidates"], strict=True):
        assert candidate.measure == written["measure"]
        assert candidate.deviations == pytest.approx(written["deviations"], rel=1e-12)


def test_only_random_weights_have_their_best_rate_of_relations_at_an_edge():
    (edge,) = edges(committed("relations-results.json"))
    assert (edge["model"], edge["rate"]) == (headroom.RANDOM, "0.003")


def test_the_arms_that_were_pretrained_again_have_the_losses_of_stage_r():
    losses = {}
    for run in committed("rates.json")["runs"]:
        if run["learning_rate"] == 2e-3:
            losses[run["model"]] = run["measures"]["loss"]["3800"]["loss"]
    for run in committed("relations-results.json")["runs"]:
        if run["model"] != headroom.RANDOM:
            # The page has two digits; other processors round differently.
            assert run["measures"]["loss"]["3800"]["loss"] == pytest.approx(losses[run["model"]], abs=0.005)


def test_the_second_simulation_chooses_two_tasks_with_the_narrowest_margin():
    chosen = committed("simulation.json")["chosen"]
    assert (chosen["measures"], chosen["margin"]) == (["UPOS, 500", "DEPREL, 500"], 0.1)
    assert all(map(headroom.is_enough, chosen["without_effect"].values()))
    assert "a margin of a tenth of the headroom" in PAGE


def test_no_setting_of_the_first_simulation_finds_arms_equivalent_often_enough():
    simulation = committed("simulation-1.json")
    assert simulation["chosen"] is None
    assert [one["margin"] for one in simulation["tried"]] == [0.1, 0.1, 0.15, 0.15, 0.2, 0.2]
    for setting in simulation["tried"]:
        assert not all(map(headroom.is_enough, setting["without_effect"].values()))

"""The evidence study: its runs, tests of hypotheses and report."""

import json
import lzma
import random
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from mae_lm_fairseq.experiments.evidence import measurements, report, study
from mae_lm_fairseq.experiments.evidence.arms import (
    ALL_MASKS,
    DEEP_MLM,
    HALF_MASKS,
    MAE_LM,
    MAE_LM_OWN_RATE,
    MLM,
    MLM_801010,
    main_arms,
    pilot_arms,
)
from mae_lm_fairseq.experiments.evidence.hypotheses import Hypothesis, corrected, deficits, outcomes, p_value
from mae_lm_fairseq.experiments.evidence.report import write_report
from mae_lm_fairseq.experiments.evidence.settings import BRANCH, EXTENTS, Setup
from mae_lm_fairseq.experiments.evidence.study import best_learning_rate, causal
from mae_lm_fairseq.utils.errors import UserError
from tests.support import ROOT
from tests.support.glue import sentence
from tests.support.tagging import sentences, write_conllu

CHECKPOINTS = ("475", "950", "7600", BRANCH)


def hypothesis(name="H1", predicted=1, values=(1.0, 1.1, 0.9), **figures):
    return Hypothesis(name, "claim", "endpoint", predicted, tuple(values), **figures)


def test_holms_correction():
    """By hand, for nine hypotheses: 9 * 0.002, 8 * 0.003, 7 * 0.0305, also for 0.031, whose own product is lower."""
    found = corrected([hypothesis(f"H{number}", p=p) for number, p in enumerate([0.003, 0.031, 0.0305, 0.002])])
    assert [one.corrected for one in found] == pytest.approx([0.024, 0.2135, 0.2135, 0.018])
    assert corrected([hypothesis(p=0.7)])[0].corrected == 1


def test_zeros_show_nothing_and_leave_the_other_hypotheses_alone():
    zeros = hypothesis("H1", p=p_value([0.0, 0.0, 0.0], -1), values=[0.0, 0.0, 0.0])
    first, second = corrected([zeros, hypothesis("H2", p=0.001)])
    assert (first.verdict, second.corrected, second.verdict) == ("not shown", pytest.approx(0.009), "shown")


def test_equivalence_needs_both_sides():
    near, far = [0.1, -0.1, 0.05, 0.0], [0.6, 0.5, 0.55, 0.65]
    assert p_value(near, 0) == pytest.approx(ttest_1samp(near, 0.5, alternative="less").pvalue)
    assert p_value(near, 0) < 0.01
    assert p_value(far, 0) > 0.9
    assert p_value([-value for value in far], 0) == pytest.approx(p_value(far, 0))
    assert p_value(far, 1) == pytest.approx(ttest_1samp(far, 0).pvalue)


@pytest.mark.parametrize(
    ("predicted", "values", "corrected", "verdict"),
    [
        (1, (1.0, 1.1, 0.9), 0.01, "shown"),
        (-1, (1.0, 1.1, 0.9), 0.01, "contradicted"),
        (1, (1.0, 1.1, 0.9), 0.06, "not shown"),
        (0, (0.1, 0.0, -0.1), 0.01, "shown"),
        (0, (1.0, 1.1, 0.9), 0.99, "contradicted"),
        (0, (-3.0, 3.0, 0.9), 0.4, "not shown"),
    ],
)
def test_verdicts(predicted, values, corrected, verdict):
    assert hypothesis(predicted=predicted, values=values, corrected=corrected).verdict == verdict


def test_the_pilot_changes_one_factor_at_a_time():
    arms = pilot_arms()
    assert len(arms) == len({arm.directory for arm in arms}) == 11
    base = {arm.model: arm.options for arm in arms[:2]}
    for arm in arms[2:]:
        differing = {
            name for name in {**base[arm.model], **arm.options} if base[arm.model].get(name) != arm.options.get(name)
        }
        assert len({name.replace("--attention-", "--") for name in differing}) == 1


def test_mae_lm_is_run_at_its_own_rate_if_that_differs():
    assert [arm.model for arm in main_arms("1e-3", "1e-3")] == [MLM, MLM_801010, MAE_LM]
    assert [arm.model for arm in main_arms("1e-3", "5e-4")][-1] == MAE_LM_OWN_RATE


def run_of(model, seed, generator, labels=("3040",), layers=4, change=""):
    """Return made-up results of a training, with the best layer below the last one for MLMs."""
    deficit = 0 if "MAE" in model else 2
    found = {"model": model, "change": change, "seed": seed, "core_hours": 0.5, "tokens_per_update": 3340.0}
    for name in ("loss", "blimp", "zorro", "probe", "probe-dev"):
        found[name] = {}
    for label in labels:
        noise = generator.normal(0, 0.05, 3)
        accuracies = [70.0, 80.0, 84.0, 85.0 + noise[0], 85.0 - deficit + noise[1], *[90.0] * (layers - 4)]
        found["loss"][label] = {"loss": 4.5 + noise[2]}
        for name in ("probe", "probe-dev"):
            found[name][label] = {"layers": accuracies, "random weights": [60.0] * len(accuracies)}
        for name in ("blimp", "zorro"):
            found[name][label] = {"model": 60 + noise[2], "random weights": 50.0, "length": 52.0}
    rows = [
        {"layer": layer, "input": kind, "tokens": tokens, "threshold": 40.0 + layer, "entropy": 50.0 + seed}
        for layer in range(layers + 1)
        for kind, tokens in (("clean", "real"), ("as_trained", "real"), ("as_trained", "mask"))
    ]
    names = [f"rank-{threshold}{ending}" for threshold in (0.8, 0.9, 0.95) for ending in ("", "-centred")]
    return found | {name: dict.fromkeys(labels, rows) for name in names}


@pytest.fixture
def stages():
    generator = np.random.default_rng(1)
    described = {"versions": {"torch": "2"}, "commits": ["abc"], "machine": "CPU", "files": {"text": "1"}}
    extent = {"extent": {"short": 3040, "long": 7600}}
    causal = [MLM, MAE_LM, HALF_MASKS, ALL_MASKS, DEEP_MLM]
    return {
        "pilot": described
        | {
            "stage": "pilot",
            **extent,
            "runs": [run_of(arm.model, 1, generator, change=arm.change) for arm in pilot_arms()],
        },
        "causal": described
        | {
            "stage": "causal",
            **extent,
            "runs": [
                run_of(model, seed, generator, layers=6 if model == DEEP_MLM else 4)
                for model in causal
                for seed in (2, 1, 3, 4)
            ],
        },
        "main": described
        | {
            "stage": "main",
            **extent,
            "runs": [
                run_of(model, seed, generator, CHECKPOINTS)
                for model in (MLM, MLM_801010, MAE_LM)
                for seed in range(1, 6)
            ],
        },
    }


def test_the_best_layer_is_chosen_on_the_development_file(stages):
    main = stages["main"]
    expected = [run["probe"]["7600"]["layers"][4] - run["probe"]["7600"]["layers"][3] for run in main["runs"][:5]]
    assert deficits(main, MLM) == pytest.approx(expected)
    for run in main["runs"][:5]:
        run["probe-dev"]["7600"]["layers"] = [0.0, 99.0, 0.0, 0.0, 0.0]
    assert deficits(main, MLM) == pytest.approx([run["probe"]["7600"]["layers"][4] - 80 for run in main["runs"][:5]])


def test_layers_above_the_others_encoders_do_not_count(stages):
    assert (deficits(stages["causal"], DEEP_MLM) < -1).all()


def test_hypotheses_of_made_up_results(stages):
    found = {one.name: one.verdict for one in outcomes(stages["causal"], stages["main"])}
    assert found == {
        **{"H1": "shown", "H2": "shown", "H3": "shown", "H4": "shown", "H5": "shown", "H6": "not shown"},
        **{"H7": "not shown", "H8": "contradicted", "H9": "not shown"},
    }


def test_report_of_all_stages(stages, tmp_path):
    write_report(tmp_path, stages)
    text = (tmp_path / "report.md").read_text()
    assert text.count("**shown**") == 5
    assert "| H8 | " in text
    for name in ("probe", "rank", "pairs", "fractions", "pilot"):
        assert f"({name}.png)" in text
        assert (tmp_path / f"{name}.png").stat().st_size > 0


def test_report_of_a_part_of_the_study(stages, tmp_path):
    write_report(tmp_path, {"pilot": stages["pilot"]})
    assert "Hypotheses" not in (tmp_path / "report.md").read_text()


def test_seeds_that_cannot_be_paired_are_refused(stages):
    del stages["main"]["runs"][7]
    with pytest.raises(
        UserError, match=r"stage main: the runs of MLM, 80/10/10 have other seeds than \[1, 2, 3, 4, 5\]"
    ):
        outcomes(None, stages["main"])


def test_stages_of_other_files_are_refused(stages, tmp_path):
    stages["causal"]["files"] = {"text": "2"}
    with pytest.raises(UserError, match="the stages pilot and causal differ in files"):
        write_report(tmp_path, stages)


def test_best_learning_rate_ignores_other_factors(stages):
    pilot = stages["pilot"]
    for run, loss in zip(pilot["runs"], range(len(pilot["runs"]), 0, -1), strict=True):
        run["loss"]["3040"]["loss"] = loss
    # The order is 1e-3, 5e-4, 2e-3 for both models, then the other factors, whose losses are lower here.
    assert best_learning_rate(pilot, MLM) == best_learning_rate(pilot, MAE_LM) == "2e-3"


def run_script(*words):
    sys.argv = ["study.py", *map(str, words)]
    runpy.run_path(str(ROOT / "scripts" / "study.py"), run_name="__main__")


def test_a_stage_needs_the_pilot(tmp_path):
    setup = Setup(tmp_path, None, "smoke", 1)
    with pytest.raises(UserError, match=r"pilot\.json does not exist; run the stage pilot first"):
        causal(setup)


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match="the stage pilot needs --data-bin"):
        run_script("pilot", "--out", tmp_path)
    with pytest.raises(SystemExit, match="has no results of a stage"):
        run_script("report", "--out", tmp_path)


@pytest.fixture
def inputs(mae_lm, tmp_path):
    """Files for the smoke study, as options."""
    generator = random.Random(1)
    for name, count in (("train", 1500), ("valid", 300)):
        lines = (sentence(generator) + "\n" * generator.choice([1, 1, 2]) for _ in range(count))
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    words = ["--train", tmp_path / "train.txt", "--valid", tmp_path / "valid.txt", "--vocab-size", 80]
    mae_lm("prepare", *words, "--destdir", tmp_path / "data-bin")
    (tmp_path / "ewt").mkdir()
    for part in ("train", "dev", "test"):
        write_conllu(tmp_path / "plain", sentences(40))
        (tmp_path / "ewt" / f"{part}.conllu.xz").write_bytes(lzma.compress((tmp_path / "plain").read_bytes()))
    for name in ("blimp", "zorro"):
        (tmp_path / "pairs" / name).mkdir(parents=True)
    (tmp_path / "pairs" / "zorro" / "agreement-a.txt").write_text("dog the dog\nthe dog\n")
    pair = {"sentence_good": "the dog", "sentence_bad": "dog the", "field": "syntax", "UID": "a"}
    (tmp_path / "pairs" / "blimp" / "a.jsonl").write_text(json.dumps(pair) + "\n")
    paths = {"data-bin": "data-bin", "text": "valid.txt", "probe": "ewt", "pairs": "pairs"}
    options = [word for name, path in paths.items() for word in (f"--{name}", path)]
    return [*options, "--out", "study", "--size", "smoke"]


@pytest.mark.slow  # trains and measures 18 small models, minutes
def test_the_whole_study(inputs, tmp_path, monkeypatch):
    """With one learning rate in the pilot and one setting of ranks, to save time."""
    monkeypatch.setattr(study, "pilot_arms", lambda: pilot_arms()[:2])
    for module in (measurements, report):
        monkeypatch.setattr(module, "THRESHOLDS", (0.9,))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    for stage in ("pilot", "causal", "main"):
        run_script(stage, *inputs)
    run_script("report", "--out", "study")
    main = json.loads(Path("study/main.json").read_text())
    labels = [*map(str, EXTENTS["smoke"].checkpoints), BRANCH]
    assert all([*run["loss"]] == [*run["blimp"]] == [*run["probe"]] == labels for run in main["runs"])
    # The branch has a model of its own.
    assert all(run["loss"][BRANCH] != run["loss"]["16"] for run in main["runs"])
    text = Path("study/main.json").read_text() + Path("study/report.md").read_text()
    assert main["runs"][0]["commands"].keys() >= {
        "training",
        "branch",
        "loss",
        "rank-0.9",
        "probe",
        "probe-dev",
        "blimp",
    }
    assert "| H9 | " in text
    assert str(tmp_path) not in text
    assert sys.prefix not in text

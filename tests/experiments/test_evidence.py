"""The evidence study: its runs, tests of hypotheses and report."""

import itertools
import json
import lzma
import random
import re
import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from mae_lm_fairseq.experiments.evidence import measurements, report, study
from mae_lm_fairseq.experiments.evidence.arms import (
    ALL_MASKS,
    CAUSAL,
    DEEP_MLM,
    FURTHER_CAUSAL,
    MAE_LM,
    MAE_LM_OWN_RATE,
    MLM,
    MLM_801010,
    MLM_OTHER_RATE,
    branch_arms,
    main_arms,
    pilot_arms,
)
from mae_lm_fairseq.experiments.evidence.hypotheses import (
    EQUIVALENT,
    GREATER,
    LESS,
    NOT_WORSE,
    Hypothesis,
    best_layer_below,
    corrected,
    last_less_below,
    outcomes,
    p_value,
)
from mae_lm_fairseq.experiments.evidence.report import write_report
from mae_lm_fairseq.experiments.evidence.settings import EXTENTS, Files, Setup
from mae_lm_fairseq.experiments.evidence.study import best_learning_rate, causal, further
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_json
from tests.support import ROOT
from tests.support.glue import sentence
from tests.support.tagging import sentences, write_conllu

CHECKPOINTS = ("475", "950", "7600")
MADE_UP = {MLM: (-2.0, 40), MLM_801010: (-1.0, 60), MAE_LM: (0.4, 30), ALL_MASKS: (-0.5, 50), DEEP_MLM: (-2.0, 40)}
MADE_UP |= {MAE_LM_OWN_RATE: (0.0, 30), MLM_OTHER_RATE: (-1.0, 80)}
"""The probe's last layer less the one below, and rank, of made-up results by model."""


def hypothesis(name="H1", predicted=GREATER, values=(1.0, 1.1, 0.9), **figures):
    return Hypothesis(name, "claim", "endpoint", predicted, tuple(values), **figures)


def test_holms_correction():
    """By hand, for nine hypotheses: 9 * 0.002, 8 * 0.003, 7 * 0.0305, also for 0.031, whose own product is lower."""
    found = corrected([hypothesis(f"H{number}", p=p) for number, p in enumerate([0.003, 0.031, 0.0305, 0.002])])
    assert [one.corrected for one in found] == pytest.approx([0.024, 0.2135, 0.2135, 0.018])
    assert corrected([hypothesis(p=0.7)])[0].corrected == 1


@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("predicted", [LESS, GREATER, EQUIVALENT, NOT_WORSE])
def test_values_without_variance_show_nothing_and_leave_the_other_hypotheses_alone(predicted, value):
    equal = hypothesis("H1", predicted, p=p_value([value] * 3, predicted), values=[value] * 3)
    first, second = corrected([equal, hypothesis("H2", p=0.001)])
    assert first.p == first.corrected == 1
    assert (second.corrected, second.verdict) == (pytest.approx(0.009), "shown")


def test_p_values():
    near, far = [0.1, -0.1, 0.05, 0.0], [0.6, 0.5, 0.55, 0.65]
    mirrored = [-value for value in far]
    assert p_value(near, EQUIVALENT) == pytest.approx(ttest_1samp(near, 0.5, alternative="less").pvalue)
    assert p_value(near, EQUIVALENT) < 0.01
    assert p_value(far, EQUIVALENT) > 0.9
    assert p_value(mirrored, EQUIVALENT) == pytest.approx(p_value(far, EQUIVALENT))
    assert p_value(far, NOT_WORSE) == pytest.approx(ttest_1samp(far, -0.5, alternative="greater").pvalue)
    assert p_value(far, NOT_WORSE) < 0.001
    assert p_value(mirrored, NOT_WORSE) > 0.9
    assert p_value(far, GREATER) == p_value(far, LESS) == pytest.approx(ttest_1samp(far, 0).pvalue)


@pytest.mark.parametrize(
    ("predicted", "values", "corrected", "verdict"),
    [
        (GREATER, (1.0, 1.1, 0.9), 0.01, "shown"),
        (LESS, (1.0, 1.1, 0.9), 0.01, "contradicted"),
        (GREATER, (1.0, 1.1, 0.9), 0.06, "not shown"),
        (LESS, (-1.0, -1.1, -0.9), 0.01, "shown"),
        (EQUIVALENT, (0.1, 0.0, -0.1), 0.01, "shown"),
        (EQUIVALENT, (1.0, 1.1, 0.9), 0.99, "contradicted"),
        (EQUIVALENT, (-1.0, -1.1, -0.9), 0.99, "contradicted"),
        (EQUIVALENT, (-3.0, 3.0, 0.9), 0.4, "not shown"),
        (NOT_WORSE, (1.0, 1.1, 0.9), 0.01, "shown"),
        (NOT_WORSE, (1.0, 1.1, 0.9), 0.06, "not shown"),
        (NOT_WORSE, (-1.0, -1.1, -0.9), 0.99, "contradicted"),
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
    assert [arm.model for arm in main_arms("1e-3", "5e-4")][3:] == [MAE_LM_OWN_RATE, MLM_OTHER_RATE]


def run_of(model, seed, generator, labels=("3040",), layers=4, change=""):
    """Return made-up results of a training: those of :data:`MADE_UP` with noise."""
    deficit, rank = MADE_UP.get(model, (0.0, 40))
    found = {"model": model, "change": change, "seed": seed, "core_hours": 0.5, "tokens_per_update": 3340.0}
    for name in ("loss", "blimp", "zorro", "probe"):
        found[name] = {}
    for label in labels:
        noise = generator.normal(0, 0.05, 3)
        accuracies = [70.0, 80.0, 84.0, 85.0 + noise[0], 85.0 + deficit + noise[1], *[90.0] * (layers - 4)]
        found["loss"][label] = {"loss": 4.5 + noise[2]}
        names = ("layers", "layers, development file", "random weights")
        found["probe"][label] = dict(zip(names, (accuracies, [*accuracies], [60.0] * len(accuracies)), strict=True))
        for name in ("blimp", "zorro"):
            found[name][label] = {"model": 60 + noise[2], "random weights": 50.0, "unigram": 54.0, "length": 52.0}
    last = rank + int(generator.integers(3))
    rows = [
        {"layer": layer, "input": kind, "tokens": tokens, "threshold": last, "entropy": 50.0 + seed}
        for layer in range(layers + 1)
        for kind, tokens in (("clean", "real"), ("as_trained", "real"), ("as_trained", "mask"))
    ]
    names = [f"rank-{threshold}{ending}" for threshold in (0.8, 0.9, 0.95) for ending in ("", "-centred")]
    return found | {name: dict.fromkeys(labels, rows) for name in names}


@pytest.fixture
def stages():
    generator = np.random.default_rng(1)
    described = {"versions": {"torch": "2"}, "commits": ["abc"], "machine": ["CPU"], "files": {"text": "1"}}
    extent = {"extent": {"short": 3040, "long": 7600}}
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
            "runs": [run_of(model, seed, generator) for model in CAUSAL for seed in (2, 1, 3, 4)],
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
        "further": described
        | {
            "stage": "further",
            **extent,
            "runs": [
                *(
                    run_of(model, seed, generator, layers=6 if model == DEEP_MLM else 4)
                    for model in FURTHER_CAUSAL
                    for seed in range(1, 5)
                ),
                *(run_of(arm.model, seed, generator, ("3800",)) for arm in branch_arms("1e-3") for seed in range(1, 6)),
            ],
        },
    }


def test_the_best_layer_below_is_chosen_on_the_development_file(stages):
    main = stages["main"]
    probes = [run["probe"]["7600"] for run in main["runs"][:5]]
    assert last_less_below(main, MLM) == pytest.approx([probe["layers"][4] - probe["layers"][3] for probe in probes])
    for probe in probes:
        probe["layers, development file"] = [0.0, 90.0, 0.0, 0.0, 99.0]
    assert last_less_below(main, MLM) == pytest.approx([probe["layers"][4] - 80 for probe in probes])


def test_layers_above_the_others_encoders_do_not_count(stages):
    runs = [run for run in stages["further"]["runs"] if run["model"] in FURTHER_CAUSAL]
    assert (last_less_below(stages["further"] | {"runs": runs}, DEEP_MLM) < -1).all()


def test_hypotheses_of_made_up_results(stages):
    found = {one.name: (one.verdict, round(one.mean)) for one in outcomes(stages["causal"], stages["main"])}
    assert found == {
        **{"H1": ("shown", -2), "H2": ("shown", -1), "H3": ("shown", 0), "H4": ("shown", 2), "H5": ("shown", 1)},
        **{"H6": ("contradicted", -10), "H7": ("shown", 1), "H8": ("contradicted", 2), "H9": ("contradicted", -20)},
    }


def test_report_of_all_stages(stages, tmp_path):
    write_report(tmp_path, stages)
    text = (tmp_path / "report.md").read_text()
    assert text.count("**shown**") == 6
    assert "| H8 | " in text
    assert "deficit, which these runs have" in text
    assert text.index("MLM, 6 layers (layer 4 counts as the last)") < text.index("MAE-LM, decay at half way")
    assert "| MLM | learning rate 1e-3 (baseline) |" in text
    assert "| model | minimal pairs | accuracy | random weights | unigram | length |" in text
    assert "| MAE-LM | Zorro | 60.0 ± 0.1 | 50.0 | 54.0 | 52.0 |" in text
    for name in ("probe", "rank", "pairs", "fractions", "pilot"):
        assert f"({name}.png)" in text
        assert (tmp_path / f"{name}.png").stat().st_size > 0


@pytest.mark.parametrize("names", [["pilot"], ["causal"], ["pilot", "causal", "main"]])
def test_report_of_a_part_of_the_study(stages, tmp_path, names):
    write_report(tmp_path, {name: stages[name] for name in names})
    text = (tmp_path / "report.md").read_text()
    assert ("Hypotheses" in text) == (names != ["pilot"])
    assert "decay at half way" not in text


def test_a_deficit_that_is_not_there_has_no_cause(stages, tmp_path):
    for run in stages["causal"]["runs"]:
        run["probe"]["3040"]["layers"][4] += 3
    write_report(tmp_path, {"causal": stages["causal"]})
    assert "these runs do not show, so that neither verdict means anything" in (tmp_path / "report.md").read_text()


def test_layers_to_choose_from(stages):
    main = stages["main"]
    for run in main["runs"][:5]:
        run["probe"]["7600"]["layers, development file"] = [90.0, 80.0, 0.0, 0.0, 99.0]
    assert [best_layer_below(main, MLM, lowest) for lowest in (0, 1)] == [0, 1]
    with_embeddings, without = (last_less_below(main, MLM, lowest).mean() for lowest in (0, 1))
    assert with_embeddings - without == pytest.approx(80.0 - 70.0)


def test_an_mlm_that_training_damages_is_named(stages, tmp_path):
    write_report(tmp_path, {"main": stages["main"]})
    text = (tmp_path / "report.md").read_text()
    assert "MLM, 80/10/10 84.0 after " in text
    assert "gets worse" not in text
    for run in stages["main"]["runs"][:5]:
        run["probe"]["950"]["layers"][-1] = 88.0
    write_report(tmp_path, {"main": stages["main"]})
    text = (tmp_path / "report.md").read_text()
    assert "MLM 88.0 after 950 updates, 83.0 after 7600" in text
    assert "**The last layer of MLM gets worse in training**" in text


def test_models_without_all_seeds_are_observations(stages, tmp_path):
    generator = np.random.default_rng(2)
    others = [(MAE_LM_OWN_RATE, 5), (MLM_OTHER_RATE, 4)]
    runs = [run_of(model, seed, generator, CHECKPOINTS) for model, seeds in others for seed in range(1, 1 + seeds)]
    main = stages["main"] | {"runs": stages["main"]["runs"] + runs}
    write_report(tmp_path, {"main": main})
    text = (tmp_path / "report.md").read_text()
    complete, observed = text.split("### Some seeds alone")
    assert "because these models lack seeds: seed 1, 2, 3, 4." in observed
    assert "| MLM, at MAE-LM's learning rate | " in observed
    assert "| MLM, at MAE-LM's learning rate | " not in complete
    assert "| MAE-LM, at its own learning rate | " in complete
    assert "less MLM, both at" not in text

    del main["runs"][15:18]  # MAE-LM of seeds 1 to 3
    write_report(tmp_path, {"main": main})
    complete, observed = (tmp_path / "report.md").read_text().split("### Some seeds alone")
    assert "because these models lack seeds: seed 4." in observed
    assert "| MAE-LM, at its own learning rate | " not in complete
    assert "| MAE-LM, at its own learning rate | " in observed

    main["runs"] = stages["main"]["runs"] + runs
    main["runs"].append(run_of(MLM_OTHER_RATE, 5, generator, CHECKPOINTS))
    write_report(tmp_path, {"main": main})
    text = (tmp_path / "report.md").read_text()
    assert "Some seeds alone" not in text
    assert "MAE-LM less MLM, both at MAE-LM's learning rate, by seeds: last layer's probe 1.0 ± " in text
    assert re.search(r", rank -(49|50|51)\.\d ± ", text)


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


def made_up_results(runs, jobs):
    """Stand in for ``run_all``: write made-up results. The pilot's loss falls with the learning rate up to 4e-3."""
    for run in runs:
        command = list(run.command)
        checkpoints = run.result.parent / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        if run.result.stem == "training":
            for updates in (*EXTENTS["full"].checkpoints, EXTENTS["full"].branch[0]):
                (checkpoints / f"checkpoint_1_{updates}.pt").touch()
            result = {"seconds_per_update": 2.0, "tokens_per_update": 3340.0}
        else:
            given = command[command.index("--labels") + 1 :]
            labels = [*itertools.takewhile(lambda word: not word.startswith("--"), given)]
            model = "MAE-LM" if run.name.startswith("MAE-LM") else "MLM"
            result = run_of(model, 1, np.random.default_rng(1), labels)[run.result.stem]
            rates = [word for word in run.name.replace(",", "").split() if word in ("5e-4", "1e-3", "2e-3", "4e-3")]
            if run.result.stem == "loss" and rates:
                result = {label: {"loss": 5 - float(rates[0])} for label in labels}
        write_json(run.result, {"name": run.name, "command": command, "seconds": 7.2, "result": result})


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A study whose runs have made-up results."""
    for name in ("text", "train", "dev", "test"):
        (tmp_path / name).write_text(name)
    for name in ("data-bin", "blimp", "zorro"):
        (tmp_path / name).mkdir()
    parts = ("data-bin", "text", "train", "dev", "test", "blimp", "zorro")
    monkeypatch.setattr(study, "run_all", made_up_results)
    return Setup(tmp_path / "out", Files(*(tmp_path / part for part in parts)), "full", 2)


def test_stages_hold_what_their_runs_found(setup, tmp_path):
    for stage in (study.pilot, causal, study.main_runs, further):
        stage(setup)
    found = {
        name: json.loads((setup.out / f"{name}.json").read_text()) for name in ("pilot", "causal", "main", "further")
    }
    assert study.learning_rates(found["pilot"]) == ("4e-3", "4e-3")
    assert len(found["pilot"]["runs"]) == 11 + 2
    assert [run["seed"] for run in found["causal"]["runs"]] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    run = found["main"]["runs"][0]
    assert [*run["commands"]] == [
        "training",
        "loss",
        *(name for name in run if name.startswith("rank")),
        "probe",
        "blimp",
        "zorro",
    ]
    assert "--lr 4e-3" in run["commands"]["training"]
    assert [*run["blimp"]] == ["475", "950", "1900", "3800", "7600"]
    # Seconds per update and of ten measurements; a branch has 3,800 - 2,850 updates.
    assert run["core_hours"] == pytest.approx((2 * 7600 + 10 * 7.2) / 3600, abs=5e-4)
    assert found["further"]["runs"][0]["core_hours"] == pytest.approx((2 * 950 + 10 * 7.2) / 3600, abs=5e-4)
    write_report(tmp_path, found)


def test_a_stage_goes_on_from_its_results_alone(setup, tmp_path, monkeypatch):
    study.pilot(setup)
    started = []

    def two_chunks(runs, jobs):
        if len(started) == 4:
            raise KeyboardInterrupt
        started.append([run.name for run in runs])
        made_up_results(runs, jobs)

    monkeypatch.setattr(study, "run_all", two_chunks)
    with pytest.raises(KeyboardInterrupt):
        causal(setup)
    part = json.loads((setup.out / "causal.part.json").read_text())
    assert [(run["model"], run["seed"]) for run in part["runs"]] == [(m, 1) for m in CAUSAL] + [(MLM, 2)]

    elsewhere = replace(setup, out=tmp_path / "elsewhere")
    elsewhere.out.mkdir()
    for name in ("pilot.json", "causal.part.json"):
        shutil.copy(setup.out / name, elsewhere.out)
    monkeypatch.setattr(study, "run_all", made_up_results)
    causal(elsewhere)
    assert not (elsewhere.out / "causal" / "MLM-seed1").exists()
    causal(setup)
    assert json.loads((elsewhere.out / "causal.json").read_text())["runs"][:4] == part["runs"]
    runs = [json.loads((out / "causal.json").read_text())["runs"] for out in (setup.out, elsewhere.out)]
    assert [[(run["model"], run["seed"]) for run in of] for of in runs] == [
        [(m, s) for s in range(1, 5) for m in CAUSAL]
    ] * 2
    assert not [*setup.out.glob("*.part.json"), *elsewhere.out.glob("*.part.json")]

    # Neither a start without anything to run nor an old file changes a finished stage.
    finished = (elsewhere.out / "causal.json").read_text()
    write_json(elsewhere.out / "causal.part.json", part)
    monkeypatch.setattr(study, "commit", lambda: "a later one")
    causal(elsewhere)
    assert (elsewhere.out / "causal.json").read_text() == finished


@pytest.mark.parametrize("name", ["extent", "files", "versions", "options"])
def test_results_of_another_study_are_not_completed(setup, name):
    study.pilot(setup)
    causal(setup)
    found = json.loads((setup.out / "causal.json").read_text())
    changed = {MLM: {"--lr": "1"}} if name == "options" else {"other": "1"}
    write_json(setup.out / "causal.part.json", found | {name: changed})
    with pytest.raises(UserError, match=f"causal and this one differ in {name}"):
        causal(setup)


def test_only_the_main_runs_are_in_float32(setup):
    for stage in (study.pilot, causal, study.main_runs, further):
        stage(setup)
    for stage in ("pilot", "causal", "main", "further"):
        of_stage = json.loads((setup.out / f"{stage}.json").read_text())
        for run in of_stage["runs"]:
            is_of_main = stage == "main" or run["model"].endswith("half way")
            assert ("--autocast bf16" in run["commands"]["training"]) != is_of_main
            assert run["machine"] in of_stage["machine"]


def run_script(*words):
    sys.argv = ["study.py", *map(str, words)]
    runpy.run_path(str(ROOT / "scripts" / "study.py"), run_name="__main__")


def test_a_stage_needs_the_pilot(tmp_path):
    setup = Setup(tmp_path, None, "smoke", 1)
    with pytest.raises(UserError, match=r"pilot\.json does not exist; run the stage pilot first"):
        causal(setup)
    with pytest.raises(UserError, match=r"causal\.json does not exist; run the stage causal first"):
        further(setup)
    write_json(tmp_path / "causal.json", {})
    with pytest.raises(UserError, match=r"main\.json does not exist; run the stage main first"):
        further(setup)


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit, match="the stage pilot needs --data-bin"):
        run_script("pilot", "--out", tmp_path)
    with pytest.raises(SystemExit, match="has no results of a stage"):
        run_script("report", "--out", tmp_path)


def test_damaged_files_are_refused_before_the_first_training(tmp_path):
    for name in ("data-bin", "blimp", "zorro"):
        (tmp_path / name).mkdir()
    write_conllu(tmp_path / "conllu", sentences(2))
    (tmp_path / "blimp" / "a.jsonl").write_text("{")
    files = Files(tmp_path / "data-bin", *[tmp_path / "conllu"] * 4, tmp_path / "blimp", tmp_path / "zorro")
    with pytest.raises(UserError, match=r"a\.jsonl: line 1 is not a JSON object"):
        files.check()
    with pytest.raises(UserError, match=r"nothing does not exist"):
        replace(files, text=tmp_path / "nothing").check()


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
    for stage in ("pilot", "causal", "main", "further"):
        run_script(stage, *inputs)
    run_script("report", "--out", "study")
    main, more = (json.loads(Path(f"study/{stage}.json").read_text()) for stage in ("main", "further"))
    labels = [*map(str, EXTENTS["smoke"].checkpoints)]
    assert all([*run["loss"]] == [*run["blimp"]] == [*run["probe"]] == labels for run in main["runs"])
    branches = [run for run in more["runs"] if run["model"] not in FURTHER_CAUSAL]
    assert [[*run["loss"]] for run in branches] == [["16"]] * 6
    # The branch has a model of its own.
    for run, branch in zip(main["runs"], branches, strict=True):
        assert run["loss"]["16"] != branch["loss"]["16"]
    text = Path("study/main.json").read_text() + Path("study/report.md").read_text()
    assert main["runs"][0]["commands"].keys() >= {"training", "loss", "rank-0.9", "probe", "blimp"}
    assert "| H9 | " in text
    assert str(tmp_path) not in text
    assert sys.prefix not in text

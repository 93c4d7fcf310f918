"""Studies end to end: training, measuring, resuming after kills, extending."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from mae_lm_fairseq.commands import study
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from mae_lm_fairseq.measures.seconds import Seconds
from mae_lm_fairseq.statistics.effective_rank import ranks
from mae_lm_fairseq.statistics.exclusivity import THRESHOLDS
from mae_lm_fairseq.study.engine import begin, needed_runs, run_study
from mae_lm_fairseq.study.history import Version, changes, read_history
from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.study.rates import needed_trainings
from mae_lm_fairseq.study.runs import train_options, training_runs
from mae_lm_fairseq.study.speed import measured_speeds
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.trained.file_checks import compared_files
from mae_lm_fairseq.training.command import arguments
from mae_lm_fairseq.training.keys import values_of_words
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_record
from mae_lm_fairseq.utils.workers import available_cores
from tests.support.processes import fairseq_train, fork, kill_with_children, runs_in_children, wait_for
from tests.support.tagging import sentences, write_conllu, write_texts

PLAN = """
title = "Two models"

[data]
data_bin = "data-bin"
text = "valid.txt"
probe_train = "train.conllu"
probe_test = "test.conllu"

[train]
updates = 6
warmup = 2

[options]
tokens-per-sample = 32
batch-size = 4
update-freq = 1
num-workers = 0
encoder-layers = 2
encoder-embed-dim = 16
encoder-ffn-embed-dim = 32
lr = 1e-2

[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
seeds = 2

[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
options = { decoder-layers = 1 }
seeds = 2

[[measure]]
kind = "loss"
tokens = 500

[[measure]]
kind = "rank"
tokens = 500
at = "last"

[[measure]]
kind = "probe"
at = "last"

[[contrast]]
name = "P"
of = "probe.accuracy"
model = "MAE-LM"
less = "MLM"
predicted = "positive"
primary = true
"""

ONE_MODEL = PLAN[: PLAN.index('[[model]]\nname = "MAE-LM"')].replace("seeds = 2", "seeds = 1")
"""The beginning of the plan, up to the first model, with one seed."""
MEASURES = PLAN[PLAN.index("[[measure]]") : PLAN.index("[[contrast]]")]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def few_imports():
    with runs_in_children():
        yield


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Create the files of a plan: the current directory of a user."""
    directory = tmp_path_factory.mktemp("study")
    write_texts(directory)
    write_conllu(directory / "train.conllu", sentences(30, 3))
    write_conllu(directory / "test.conllu", sentences(30, 4))
    texts = [(str(directory / f"{name}.txt"),) for name in ("train", "valid")]
    data, rates = directory / "data-bin", {"character_coverage": 1.0, "max_unk_rate": 1.0}
    preparation.prepare(preparation.PreparationOptions(*texts, data, vocab_size=90, **rates, workers=1))
    return directory


@pytest.fixture
def here(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture(scope="module")
def finished(directory):
    """Return the directory of a finished study."""
    return finish(directory, "plan.toml", PLAN, "finished")


def finish(directory: Path, name: str, plan: str, out: str) -> Path:
    """Write a plan into the directory of its files, run it there, and return its output directory."""
    (directory / name).write_text(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        study.main(study.Options(plan=name, out=Path(out), jobs=2))
    return directory / out


def results(out: Path) -> dict:
    """Return the results of a study without times."""
    content = read_record(out / "results.json")
    for run in content["runs"]:
        del run["seconds"]
        run["commands"] = [re.sub(r" --(save|keep)-dir \S+", "", command) for command in run["commands"]]
    return content


def test_a_study_has_everything_that_its_plan_says(finished):
    content = results(finished)
    assert [(run["model"], run["seed"]) for run in content["runs"]] == [
        ("MLM", 1),
        ("MAE-LM", 1),
        ("MLM", 2),
        ("MAE-LM", 2),
    ]
    for run in content["runs"]:
        checkpoints = {name: [*values] for name, values in run["measures"].items()}
        assert checkpoints == {"loss": ["6"], "rank": ["6"], "probe": ["6"]}
        assert len(run["measures"]["rank"]["6"]["real_clean"]) == 3  # embeddings and two layers
        assert [command.split()[:3] for command in run["commands"]] == [["python", "-m", "fairseq_cli.train"]]
    report = (finished / "report.md").read_text()
    assert "| P | last of probe.accuracy, MAE-LM less MLM | positive |" in report
    assert {path.name for path in finished.glob("*.png")} == {
        "rank.png",
        "probe.png",
        "contrasts.png",
    }  # the loss has one point


def test_ranks_can_be_computed_from_the_kept_moments(finished):
    content = results(finished)
    [path] = finished.glob("runs/MLM-seed1-*/rank-6-*.safetensors")
    moments = safetensors.numpy.load_file(path)
    measured = content["runs"][0]["measures"]["rank"]["6"]

    def ranks_of(layer: int, *tokens: str) -> dict:
        products = sum(moments[f"{name}.{layer}.products"].astype(float) for name in tokens)
        return ranks(torch.tensor(np.linalg.eigvalsh(products)))

    for layer in range(3):
        clean = ranks_of(layer, "real_clean")
        assert float(clean["threshold"]) == measured["real_clean"][layer]
        # Products are kept in float32, which has 7 digits.
        assert float(clean["entropy"]) == pytest.approx(measured["entropy_real_clean"][layer], rel=1e-3)
        both = ranks_of(layer, "real_as_trained", "mask_as_trained")
        assert float(both["threshold"]) == measured["all_as_trained"][layer]


def start(here: Path, out: str, *options: str) -> subprocess.Popen:
    (here / "plan.toml").write_text(PLAN)
    command = [sys.executable, "-m", "mae_lm_fairseq", "study", "plan.toml", "--out", out, "--jobs", "2", *options]
    return subprocess.Popen(command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def remove_part(out: Path) -> None:
    """Remove the last training, and all results."""
    [last] = out.glob("runs/MAE-LM-seed2-*")
    shutil.rmtree(last)
    (out / "results.json").unlink()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_killed_study_resumes_with_the_same_results(finished, here, number):
    out = here / f"killed-{number:d}"
    shutil.copytree(finished, out)
    remove_part(out)
    killed = fork(study.main, study.Options(plan="plan.toml", out=out, jobs=2))
    wait_for(lambda: [*out.glob("runs/MAE-LM-seed2-*/checkpoints/checkpoint_last.pt")])
    os.kill(killed.pid, number)
    killed.join()
    assert killed.exitcode == (-number if number is signal.SIGKILL else 128 + number)
    run_study(parse_plan(PLAN, "plan.toml"), out, jobs=2)
    assert results(out) == results(finished)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_study_that_is_killed_at_random_moments_resumes_with_the_same_results(finished, here, seed):
    generator, out = random.Random(seed), f"random-{seed}"
    for _ in range(generator.randint(1, 3)):
        process = start(here, out)
        time.sleep(generator.uniform(1, 25))
        process.send_signal(generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1]))
        process.wait(600)
    last = start(here, out)
    assert last.wait(600) == 0, last.stderr.read()
    assert results(here / out) == results(finished)


class TestPlanThatChanged:
    """A changed plan makes new runs beside the old ones, and an unchanged one finds all of its own."""

    @pytest.fixture
    def missing(self, finished, here, tmp_path):
        """Return a function that begins the finished study again with replacements, and returns what is to be run."""
        shutil.copytree(finished, tmp_path / "out")

        def missing(*replacements: str) -> tuple[set[str], set[str]]:
            text = PLAN
            for old, new in zip(replacements[::2], replacements[1::2], strict=True):
                assert old in text
                text = text.replace(old, new)
            runs = needed_runs(begin(parse_plan(text, "plan.toml"), tmp_path / "out", 1))
            lacking = [run for run in runs if not run.result.exists()]
            trained = {run.result.parent.name.rpartition("-")[0] for run in lacking if run.command}
            return trained, {run.name for run in lacking if not run.command and run.needs.exists()}

        return missing

    @pytest.mark.parametrize(
        ("old", "new", "trained"),
        [
            ("lr = 1e-2", "log-interval = 3\nlr = 0.01", set()),
            ('kind = "loss"', 'kind = "loss"\nname = "another name"', set()),
            ("updates = 6", "updates = 8", {"MLM-seed1", "MLM-seed2", "MAE-LM-seed1", "MAE-LM-seed2"}),
            ("seeds = 2", "seeds = [3, 1]", {"MLM-seed3", "MAE-LM-seed3"}),
            ("decoder-layers = 1", "decoder-layers = 2", {"MAE-LM-seed1", "MAE-LM-seed2"}),
        ],
    )
    def test_what_a_training_depends_on_trains_anew(self, missing, old, new, trained):
        assert missing(old, new) == (trained, set())
        assert missing() == (set(), set())  # the old runs are still there

    def test_what_a_measure_depends_on_measures_again(self, missing):
        names = {f"{model}, seed {seed}, after 6 updates" for model in ("MLM", "MAE-LM") for seed in (1, 2)}
        assert missing("tokens = 500", "tokens = 400") == (set(), names)
        assert missing('probe_train = "train.conllu"', 'probe_train = "test.conllu"') == (set(), names)

    def test_changed_data_trains_anew(self, missing, here):
        with open(here / "data-bin" / "dict.txt", "a") as file:
            file.write("another 1\n")
        try:
            assert len(missing()[0]) == 4
        finally:
            text = (here / "data-bin" / "dict.txt").read_text()
            (here / "data-bin" / "dict.txt").write_text(text.removesuffix("another 1\n"))
        assert missing() == (set(), set())

    def test_every_version_of_the_plan_is_kept_with_its_date(self, missing, tmp_path):
        began = date.today()  # midnight may pass while the test runs
        for _ in range(2):
            missing("seeds = 2", "seeds = 3")
        missing()
        record = json.loads((tmp_path / "out" / "plan.json").read_text())
        assert record["threads"] == max(
            1, min(available_cores() // 2, torch.get_num_threads())
        )  # chosen at the beginning
        assert [version["plan"] for version in record["versions"]] == [
            PLAN,
            PLAN.replace("seeds = 2", "seeds = 3"),
            PLAN,
        ]
        dates = [date.fromisoformat(version["date"]) for version in record["versions"]]
        assert began <= dates[0] <= dates[1] <= dates[2] <= date.today()
        stated = [change.lines for change in changes(read_history(tmp_path / "out" / "plan.json").versions)]
        assert [[line for line in lines if not line.startswith(" ")] for lines in stated] == [
            ["-seeds = 2", "+seeds = 3"] * 2,
            ["-seeds = 3", "+seeds = 2"] * 2,
        ]

    def test_a_changed_plan_is_run_and_reported(self, finished, here):
        """The report has the values of the current plan, and says what was changed."""
        shutil.copytree(finished, here / "changed")
        changed = ONE_MODEL + MEASURES.replace("tokens = 500", "tokens = 400", 1)
        [now] = run_study(parse_plan(changed, "plan.toml"), Path("changed"), 2).runs
        then = results(finished)["runs"][0]
        assert now.measures["rank"] == then["measures"]["rank"]
        assert now.measures["loss"] != then["measures"]["loss"]
        assert "-tokens = 500\n+tokens = 400\n" in (here / "changed" / "report.md").read_text()
        run_study(parse_plan(PLAN, "plan.toml"), Path("changed"), 1)
        assert results(here / "changed")["runs"] == results(finished)["runs"]

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("plan.json", lambda content: content.clear()),
            ("plan.json", lambda content: content.update(threads="2")),
            ("plan.json", lambda content: content["versions"][0].pop("files")),
            ("plan.json", lambda content: content["versions"][0].update(files=["valid.txt"])),
            ("plan.json", lambda content: content["versions"][0].update(plan=None)),
            ("plan.json", lambda content: content["looks"][0].pop("question")),
            ("plan.json", lambda content: content.update(looks=[3])),
            *(("training-6.json", methodcaller("pop", key)) for key in ("seconds", "result", "command")),
        ],
    )
    def test_a_damaged_record_is_named(self, missing, tmp_path, name, change):
        """As in earlier versions, it has no hash."""
        path = next((tmp_path / "out").rglob(name))
        content = read_record(path)
        path.write_text(json.dumps(content))
        missing()
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=name):
            missing()

    @pytest.mark.parametrize("name", ["plan.json", "training-6.json"])
    def test_other_content_than_was_written_is_named(self, missing, tmp_path, name):
        path = next((tmp_path / "out").rglob(name))
        path.write_text(path.read_text().replace("1", "2", 1))
        with pytest.raises(UserError, match=rf"{name} is damaged"):
            missing()

    def test_moments_have_hashes(self, missing, tmp_path):
        paths = [*(tmp_path / "out" / "runs").rglob("*.safetensors")]
        assert len(paths) == 4
        assert not [problem for _, problem in compared_files(tmp_path / "out") if problem]
        content = paths[0].read_bytes()
        paths[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        [problem] = [problem for _, problem in compared_files(tmp_path / "out") if problem]
        assert problem.startswith(f"{paths[0]} is damaged")


WITH_CHECKPOINT = ONE_MODEL.replace("warmup = 2", "warmup = 2\ncheckpoints = [4]")
WITH_CHECKPOINT += '[[measure]]\nkind = "loss"\ntokens = 500\n'
"""A plan of one training that is measured after updates 4 and 6."""


@pytest.fixture(scope="module")
def at_once(directory):
    """Return the directory of a finished study by this plan."""
    return finish(directory, "checkpoint.toml", WITH_CHECKPOINT, "at-once")


def test_a_training_is_one_process(at_once):
    [run] = results(at_once)["runs"]
    [command] = run["commands"]
    assert "--max-update 6" in command
    assert command.endswith("--keep-at 4,6")
    assert [*run["measures"]["loss"]] == ["4", "6"]
    [folder] = (at_once / "runs").iterdir()
    names = {path.name for path in folder.rglob("*") if path.suffix != ".log"}
    assert {"models", "4.pt", "6.pt", "training-6.json"} < names
    [next_step] = re.findall(r"next: mae-lm bundle (\S+)", (folder / "training-6.log").read_text())
    assert Path(next_step).name == "6.pt"
    assert (at_once.parent / next_step).exists()
    assert len(names) == 6  # and a file of each measurement


def test_a_checkpoint_that_is_added_later_is_trained_again_and_equal(finished, at_once, here):
    """Kept while training goes on, or trained once to the end and again to update 4: the models are equal."""
    shutil.copytree(finished, here / "later")
    [result] = run_study(parse_plan(WITH_CHECKPOINT, "plan.toml"), Path("later"), 2).runs
    assert [re.search(r"--keep-at (\S+)", command)[1] for command in result.commands] == ["4", "6"]
    assert result.measures == results(at_once)["runs"][0]["measures"]
    assert not list((here / "later").rglob("checkpoints*"))


EQUAL_SECONDS = (
    PLAN.replace("warmup = 2", 'warmup = 2\ncheckpoints = [3]\nequal = "seconds"')
    .replace("seeds = 2", "seeds = 1")
    .replace("decoder-layers = 1", "decoder-layers = 1, update-freq = 3")
    .partition('[[measure]]\nkind = "rank"')[0]
)


def test_speed_is_measured_without_saving_and_in_both_orders(here):
    plan = parse_plan(EQUAL_SECONDS, "plan.toml")
    costs = measured_speeds(begin(plan, Path("timed"), 1))
    written = {path.name: path for path in Path("timed/speed/runs").rglob("*") if path.is_file()}
    assert {*written} == {"training-20.json", "training-20.log"}  # nothing is saved in the measured time
    measured = [(read_record(path), path) for path in Path("timed/speed/runs").glob("*/training-20.json")]
    measured.sort(key=lambda file: file[1].stat().st_mtime)
    names = [path.parent.name.partition("-seed")[0] for _, path in measured]
    assert names == ["MLM", "MAE-LM", "MAE-LM", "MLM"]  # a machine that slows down favours none
    speeds = [content["result"]["per_update"] for content, _ in measured]
    assert costs == pytest.approx({"MLM": (speeds[0] + speeds[3]) / 2, "MAE-LM": (speeds[1] + speeds[2]) / 2})
    assert measured_speeds(begin(plan, Path("timed"), 1)) == costs  # the recorded speed holds


@pytest.mark.parametrize(("slower", "last", "before"), [(2.0, 3, 2), (50.0, 1, 1)])
def test_trainings_of_equal_seconds(here, monkeypatch, slower, last, before):
    """A slower model makes fewer updates, at least one; the last checkpoints are compared."""
    costs = {"MLM": 0.5, "MAE-LM": 0.5 * slower}
    monkeypatch.setattr("mae_lm_fairseq.study.engine.measured_speeds", lambda workspace: costs)
    plan = parse_plan(EQUAL_SECONDS, "plan.toml")
    out = Path(f"seconds-{last}")
    file = run_study(plan, out, 2)
    assert file.costs == costs
    report = (out / "report.md").read_text()
    assert f"MLM 0.5; MAE-LM {0.5 * slower:g}." in report
    assert f"After 6 (MLM) or {last} (MAE-LM) updates:" in report
    updates = {"MLM": 6, "MAE-LM": last}
    rows = [row.split(",") for row in (out / "results.csv").read_text().splitlines()]
    assert {(row[0], row[3]) for row in rows if row[-1] == "6"} == {(name, str(last)) for name, last in updates.items()}

    for result in file.runs:
        folder, end = out / "runs" / result.directory, updates[result.model]
        checkpoints = {before, last} if result.model == "MAE-LM" else {3, 6}
        assert {path.name for path in folder.glob("models/*")} == {f"{number}.pt" for number in checkpoints}
        assert [*result.measures["loss"]] == ["3", "6"]  # the checkpoints of the plan
        [record] = folder.glob(f"measures-{end}-*.json")
        assert result.measures["loss"]["6"] in read_record(record)["result"]["measures"].values()
        cost = result.measures["cost"]["6"]
        assert (cost["updates"], cost["tokens"]) == (end, end * 32 * 4 * (3 if result.model == "MAE-LM" else 1))
        assert cost["flops"] > 0
        # fairseq times updates from the second one on.
        assert cost["seconds"] is None if end == 1 else 0 < cost["seconds"] < 60


def test_a_study_that_is_killed_with_a_kept_model_loses_nothing(at_once, here):
    """Killed when a model is kept, when the training has ended, and when the first measurement has."""
    killed = here / "kept"
    for written in ("models/4.pt", "training-6.json", "measures-*.json"):
        process = fork(study.main, study.Options(plan="checkpoint.toml", out=killed, jobs=2))
        wait_for(lambda name=written: [*killed.glob(f"runs/*/{name}")])
        kill_with_children(process)
    run_study(parse_plan(WITH_CHECKPOINT, "checkpoint.toml"), killed, 2)
    assert results(killed) == results(at_once)
    assert not list(killed.rglob("checkpoints*"))


def test_a_training_that_an_earlier_version_began_goes_on(at_once, here):
    """The earlier version ended at each checkpoint and measured there; its models may be gone."""
    plan = parse_plan(WITH_CHECKPOINT, "checkpoint.toml")
    workspace = begin(plan, here / "earlier", 2)
    training = workspace.training(plan.models[0], None, 1)
    words = arguments(here / "data-bin", train_options(plan, training, 4, training.folder / "checkpoints"))
    assert fairseq_train(*words, threads=workspace.threads).returncode == 0
    last = training.folder / "checkpoints" / "checkpoint_last.pt"
    state = torch.load(last, weights_only=False)
    state["extra_state"]["previous_training_time"] = 1000.0
    torch.save(state, last)
    measures = {workspace.key(plan.measures[0], plan.models[0]): {"loss": 9.0}}
    result = {"commit": None, "machine": "a", "versions": {}, "seconds": 1.0, "measures": measures}
    training.result(4).write_text(json.dumps({"command": ["train"], "seconds": 3.0, "result": result}))
    [run] = run_study(plan, here / "earlier", 2).runs
    losses = results(at_once)["runs"][0]["measures"]["loss"]
    assert run.measures["loss"] == {"4": {"loss": 9.0}, "6": losses["6"]}
    assert len(run.commands) == 2
    assert run.seconds["training"] > 1000  # also of the process before
    assert "checkpoint_last.pt (epoch 1 @ 4 updates)" in training.result(6).with_suffix(".log").read_text()


def test_what_of_a_changed_list_of_checkpoints_is_trained_again(here, tmp_path):
    """A training that was saved after update 5 cannot keep update 4, unless that is kept, or has been measured."""
    plan = parse_plan(WITH_CHECKPOINT, "plan.toml")
    workspace = begin(plan, tmp_path, 1)
    training = workspace.training(plan.models[0], None, 1)
    last = training.folder / "checkpoints" / "checkpoint_last.pt"

    def planned() -> list[tuple[str, str]]:
        """Return the directory for resuming of each training, and what it keeps."""
        commands = [run.command for run in training_runs(workspace, training)]
        options = [values_of_words(command) for command in commands]
        return [(Path(*values["save-dir"]).name, *values["keep-at"]) for values in options]

    in_one = [("checkpoints", "4,6")]
    again = [("checkpoints-4", "4"), ("checkpoints", "6")]
    last.parent.mkdir(parents=True)
    for saved_after, expected in ((4, in_one), (5, again)):
        torch.save({"optimizer_history": [{"num_updates": saved_after}]}, last)
        assert planned() == expected
    training.models.mkdir()
    training.checkpoint(4).touch()
    assert planned() == in_one
    (training.folder / "checkpoints-4").mkdir()  # killed before its result was written
    assert planned() == again

    (training.folder / "checkpoints-4").rmdir()
    training.checkpoint(4).unlink()
    made_by = {"commit": None, "machine": "a machine", "versions": {}, "seconds": 0.0, "measures": {}}
    measured = training.folder / "measures-4-key.json"
    measured.write_text(json.dumps({"command": [], "seconds": 1.0, "result": made_by}))
    assert planned() == [("checkpoints", "6")]


def test_seconds_of_fewer_updates_than_the_log_interval_are_unknown(tmp_path):
    (tmp_path / "log").touch()
    trained = ModelToMeasure(label="seconds", path=tmp_path / "4.pt", data=Data(tmp_path), log=tmp_path / "log")
    assert Seconds().measure(trained) == {"per_update": None, "tokens_per_update": None}


def test_seconds_are_those_of_the_updates_since_the_checkpoint_before(tmp_path):
    record = 'x | INFO | train_inner | {{"wpb": "{}", "wps": "10", "num_updates": "{}"}}\n'
    (tmp_path / "log").write_text("".join(record.format(10 * update, update) for update in range(1, 7)))
    data = Data(tmp_path)
    trained = ModelToMeasure(label="a", path=tmp_path, data=data, log=tmp_path / "log", timed=range(3, 6))
    assert Seconds().measure(trained) == {"per_update": 4, "tokens_per_update": 40}


RATES = """
[rates]
lowest = "loss.loss"
halve = "probe.accuracy"
by = 0.5
"""


class TestRuleForLearningRates:
    @pytest.fixture
    def plan(self):
        text = PLAN.replace("lr = 1e-2\n", RATES).replace("seeds = 2", "seeds = 3\nlearning_rates = [1e-3, 2e-3]", 1)
        text = text.replace("warmup = 2", "warmup = 2\ncheckpoints = [4]")
        text = text.replace('kind = "probe"\nat = "last"', 'kind = "probe"')
        return parse_plan(text, "plan.toml")

    @pytest.fixture
    def workspace(self, plan, here, tmp_path):
        return begin(plan, tmp_path, 1)

    def measure(self, workspace, rate: float, seed: int, loss: float, *probe: float) -> None:
        """Write the results of a training: the loss, and the probe's last layer at each checkpoint."""
        model = workspace.plan.model("MLM")
        training = workspace.training(model, rate, seed)
        training.folder.mkdir(parents=True)
        keys = {measure.name: workspace.key(measure, model) for measure in workspace.plan.measures}
        for updates, last in zip((4, 6), probe, strict=True):
            measures = {keys["loss"]: {"loss": loss}, keys["probe"]: {"accuracy": [0.0, last]}}
            made_by = {"commit": None, "machine": "a machine", "versions": {}, "seconds": 0.0}
            content = {"command": [], "seconds": 1.0, "result": made_by | {"measures": measures}}
            training.result(updates).write_text(json.dumps(content))

    def trainings(self, workspace) -> list[tuple[float, int]]:
        trainings = [training for training in needed_trainings(workspace) if training.model.name == "MLM"]
        return [(training.learning_rate, training.seed) for training in trainings]

    def test_the_lower_loss_of_the_first_seed_chooses(self, workspace):
        pilot = [(1e-3, 1), (2e-3, 1)]
        assert self.trainings(workspace) == pilot
        self.measure(workspace, 1e-3, 1, 3.0, 80, 80)
        assert self.trainings(workspace) == pilot
        self.measure(workspace, 2e-3, 1, 2.9, 80, 80)
        assert self.trainings(workspace) == [*pilot, (2e-3, 2), (2e-3, 3)]

    def test_a_rate_that_diverges_can_be_removed(self, plan, workspace, tmp_path):
        self.measure(workspace, 1e-3, 1, 3.0, 80, 80)
        left = parse_plan(plan.document.text.replace("[1e-3, 2e-3]", "[1e-3]"), "plan.toml")
        assert self.trainings(begin(left, tmp_path, 1)) == [(1e-3, 1), (1e-3, 2), (1e-3, 3)]

    def test_damage_of_the_first_seed_halves_the_rate_of_all(self, workspace):
        self.measure(workspace, 1e-3, 1, 3.0, 80, 80)
        self.measure(workspace, 2e-3, 1, 2.9, 80.6, 80)
        halved = [(1e-3, 1), (1e-3, 2), (1e-3, 3)]
        assert sorted(self.trainings(workspace)) == [*halved, (2e-3, 1)]

    def test_a_value_that_the_measure_lacks_is_named(self, plan, here, tmp_path):
        """The values of a measure may depend on its files."""
        text = plan.document.text.replace('halve = "probe.accuracy"', 'halve = "probe.dev_accuracy"')
        workspace = begin(parse_plan(text, "plan.toml"), tmp_path, 1)
        for rate in (1e-3, 2e-3):
            self.measure(workspace, rate, 1, 3.0, 80, 80)
        with pytest.raises(UserError, match=r"^plan\.toml: .*probe\.dev_accuracy"):
            needed_trainings(workspace)

    def test_damage_is_checked_again_with_all_seeds(self, workspace):
        self.measure(workspace, 1e-3, 1, 3.0, 80, 80)
        self.measure(workspace, 2e-3, 1, 2.9, 80.4, 80)
        self.measure(workspace, 2e-3, 2, 2.9, 82, 80)
        assert (1e-3, 2) not in self.trainings(workspace)  # seed 3 is missing
        self.measure(workspace, 2e-3, 3, 2.9, 82, 80)
        assert {(1e-3, 2), (1e-3, 3)} < set(self.trainings(workspace))
        assert {(2e-3, 2), (2e-3, 3)} < set(self.trainings(workspace))  # are reported, too


KINDS = """
[[measure]]
kind = "loss"
name = "of text"
tokens = 500

[[measure]]
kind = "exclusivity"
at = "last"
tokens = 500

[[measure]]
kind = "minimal-pairs"
at = "last"

[[measure]]
kind = "seconds"
at = "last"

[[measure]]
kind = "loss"
at = "last"
on = "valid"

[[measure]]
kind = "retrieval"
at = "last"
questions = "asked.tsv"
passages = "asked.tsv"

[[measure]]
kind = "probe"
at = "last"
name = "control"
random_weights = true

[[measure]]
kind = "tagging"
at = "last"
train = "train.conllu"
dev = "test.conllu"
max_updates = 2
"""


def test_every_kind_of_measure_and_a_start(finished, here):
    """The kinds that the other tests do not have. After 0 updates, values are those of the start's last update."""
    pairs = [" ".join(word for word, _ in sentence) for sentence in sentences(8, 5)]
    asked = "".join(f"{number}\t{line}\t{number}\n" for number, line in enumerate(pairs))
    (here / "asked.tsv").write_text(f"_id\ttext\tcorpus-id\n{asked}")
    (here / "pairs").mkdir()
    (here / "pairs" / "agreement.txt").write_text("\n".join(pairs) + "\n")

    [start] = finished.glob("runs/MLM-seed1-*/models/6.pt")
    plan = ONE_MODEL.replace("seeds = 1", f'start = "{start}"').replace("warmup = 2", "warmup = 2\ncheckpoints = [0]")
    plan = parse_plan(plan.replace("[train]", 'pairs = "pairs"\n[train]') + KINDS, "plan.toml")
    [result] = run_study(plan, Path("kinds")).runs
    at_start, at_end = (result.measures["of text"][updates] for updates in ("0", "6"))
    assert at_start == results(finished)["runs"][0]["measures"]["loss"]["6"]
    assert at_end["loss"] < at_start["loss"]

    measured = {name: by_updates["6"] for name, by_updates in result.measures.items()}
    for planned in plan.measures:
        values, measure = measured[planned.name], planned.measure
        assert measure.values is None or {*values} <= {*measure.value_names()}
        for name, value in values.items():
            assert isinstance(value, list) == measure.value(name).by_layer
    assert len(measured["exclusivity"][f"exclusivity_{THRESHOLDS[0]}"]) == 3
    assert 0 <= measured["minimal-pairs"]["accuracy"] <= 100
    assert measured["retrieval"]["mean_recall"] == 100  # each line is asked for in its own words
    assert 0 < measured["seconds"]["per_update"] < 60
    assert measured["loss"]["loss"] > 0
    assert len(measured["control"]["accuracy"]) == 3
    assert 0 <= measured["tagging"]["accuracy"] <= 100


FINE_TUNING = """
[[model]]
name = "random"
arch = "mae_lm_tiny"
random = true

[[measure]]
kind = "classification"
train = "train.tsv"
dev = "dev.tsv"
test = "test.tsv"
text = "text"
label = "label"
limit = 8
learning_rates = [1e-3, 3e-3]
max_updates = 2

[[measure]]
kind = "tagging"
train = "train.conllu"
dev = "test.conllu"
test = "test.conllu"
limit = 20
max_updates = 2
learning_rates = [1e-3]

[[measure]]
kind = "seconds"
"""


def test_fine_tuning_scores_every_rate_beside_random_weights(here):
    """Models with random weights are fine-tuned as trained ones are, without a training of their own."""
    rows = [" ".join(word for word, _ in sentence) for sentence in sentences(24, 6)]
    for name, part in (("train", rows[:12]), ("dev", rows[12:18]), ("test", rows[18:])):
        lines = "".join(f"{line}\t{len(line) % 2}\n" for line in part)
        (here / f"{name}.tsv").write_text(f"text\tlabel\n{lines}", encoding="utf-8")
    file = run_study(parse_plan(ONE_MODEL + FINE_TUNING, "plan.toml"), Path("scored"))
    assert [result.model for result in file.runs] == ["MLM", "random"]
    metrics = {"accuracy", "f1", "matthews", "score"}
    tested = {"test_accuracy", "test_f1", "test_matthews"}
    for result in file.runs:
        values = result.measures["classification"]["6"]
        of_rates = {f"{name} at {rate}" for name in metrics | tested for rate in ("0.001", "0.003")}
        assert {*values} == metrics | tested | of_rates
        chosen = max((0.001, 0.003), key=lambda rate: values[f"score at {rate}"])
        assert values["test_accuracy"] == values[f"test_accuracy at {chosen}"]
        tagging = result.measures["tagging"]["6"]
        assert tagging["test_accuracy"] == tagging["accuracy"]  # of the same file
        [part] = Path("scored/runs", result.directory).glob("classification-6-*/train-8.jsonl")
        texts = [json.loads(line)["text"] for line in part.read_text().splitlines()]
        assert texts == [rows[number * 12 // 8] for number in range(8)]
    assert not [*Path("scored/runs").glob("random-*/checkpoints")]


@pytest.mark.parametrize(("jobs", "threads"), [(1, 3), (2, 3), (4, 2), (16, 1)])
def test_threads_are_a_share_of_the_cores_of_this_process(monkeypatch, tmp_path, jobs, threads):
    """At most as many as OMP_NUM_THREADS, which torch reads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr("mae_lm_fairseq.study.engine.fingerprints", lambda plan: {})
    assert begin(parse_plan(PLAN, "plan.toml"), tmp_path, jobs).threads == threads
    assert begin(parse_plan(PLAN, "plan.toml"), tmp_path, 1).threads == threads  # recorded


def test_a_change_says_of_what_model_and_file_it_is():
    plan = '[[model]]\nname = "A"\nseeds = 2\n' + "\n" * 9 + '[[model]]\nname = "B"\nseeds = 2\n# a comment'
    before = Version("2026-01-01", plan, {"a.txt": "1", "--user-dir mine/d.py": "1"})
    after = Version("2026-01-02", plan.replace('"B"\nseeds = 2', '"B"\nseeds = 1'), before.files)
    edited = replace(after, files={"a.txt": "1", "--user-dir mine/d.py": "2"})
    [first, second] = changes([before, after, edited])
    assert first.lines == (" [[model]]", ' name = "B"', "-seeds = 2", "+seeds = 1")
    changed = [line for line in second.lines if line[0] != " "]
    assert changed == ["-sha256 of --user-dir mine/d.py: 1", "+sha256 of --user-dir mine/d.py: 2"]
    assert not changes([before, replace(before, plan=plan.replace("comment", "remark"))])


def test_a_record_without_the_files_of_code_is_not_a_change(monkeypatch, tmp_path):
    """As earlier versions wrote it."""
    files = {"--user-dir mine": "1"}
    monkeypatch.setattr("mae_lm_fairseq.study.engine.fingerprints", lambda plan: dict(files))
    plan = parse_plan(PLAN, "plan.toml")
    begin(plan, tmp_path, 1)
    files["--user-dir mine/d.py"] = "2"
    begin(plan, tmp_path, 1)
    assert len(read_history(tmp_path / "plan.json").versions) == 1

import json
import math
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from mae_lm_fairseq.analysis.cost import plan
from mae_lm_fairseq.analysis.planned_run import Run
from mae_lm_fairseq.commands import reproduce as command
from mae_lm_fairseq.downstream.glue.files import read_split
from mae_lm_fairseq.downstream.glue.tasks import TASKS
from mae_lm_fairseq.experiments import reproduction
from mae_lm_fairseq.experiments.reproduction import (
    FRACTIONS,
    MAE_LM,
    MLM,
    NEIGHBOURS,
    SCALES,
    THREE_ML,
    checkpoint_updates,
    trained,
    write_neighbours,
)
from mae_lm_fairseq.experiments.reproduction_report import FINETUNED, KINDS, Results, finding, verdicts, write_report
from mae_lm_fairseq.utils.errors import Interrupted, UserError
from tests.support import ROOT

LAYERS = 2
PRETRAINED = [kind for kind in KINDS if kind != FINETUNED]
SEEN = {
    MLM: [kind for kind in PRETRAINED if kind[0] != "forced"],
    MAE_LM: [kind for kind in PRETRAINED if kind != ("as_trained", "mask")],
}


def ranks(variant, seed, gap):
    """Return synthetic ranks.

    Real tokens have 20 in clean text and ``gap`` more otherwise; [MASK] tokens have 2, 7 and 12 through the layers.
    """

    def value(kind, layer):
        if kind[1] == "mask":
            return 2 + 5 * layer + 0.1 * seed * (layer == LAYERS)
        return 20 + gap * (1 + 0.1 * seed) * (kind[0] != "clean") + 0.1 * seed

    rows = [
        {"layer": layer, "input": kind[0], "tokens": kind[1], "threshold": value(kind, layer)}
        for kind in SEEN[variant]
        for layer in range(LAYERS + 1)
    ]
    return {"width": 32, "layers": LAYERS, "tokens": 100, "rows": rows}


@pytest.fixture
def content():
    """Return results that agree with the papers, except that 3ML makes no difference."""
    pretraining, finetuning = [], []
    slowness = {MLM: 1.0, MAE_LM: 2.0, THREE_ML: 0.5}
    quality = {MLM: 70.0, MAE_LM: 80.0, THREE_ML: 70.0, FRACTIONS[0.5]: 75.0, FRACTIONS[1.0]: 70.0}
    for variant, score in quality.items():
        for seed in (1, 2, 3):
            points = [
                {"updates": 10 * stop, "seconds": 10 * stop * slowness.get(variant, 2.0), "valid_loss": 6 - stop}
                for stop in (1, 2)
            ]
            ranked = ranks(variant, seed, gap=5 * (variant == MLM)) if variant in SEEN else None
            pretraining.append({"variant": variant, "seed": seed, "checkpoints": points, "ranks": ranked})
            for stop in (1, 2) if variant in slowness else (2,):
                run = {"variant": variant, "seed": seed, "updates": 10 * stop, "score": score * stop / 2 + 0.1 * seed}
                if stop == 2 and variant in (MLM, MAE_LM):
                    clean = [row for row in ranks(variant, seed, gap=0)["rows"] if row["input"] == "clean"]
                    run["ranks"] = {"rows": [dict(row, threshold=score - row["threshold"]) for row in clean]}
                finetuning.append(run)
    return {
        "scale": "smoke",
        "task": "RTE",
        "machine": "a computer, 2 cores",
        "jobs": 2,
        "versions": {"torch": "2.13"},
        "pretraining": pretraining,
        "finetuning": finetuning,
    }


def test_verdicts_follow_from_the_numbers(content):
    found = verdicts(Results(content))
    shown = ["shown" in verdict for verdict in found]
    # The fourth finding compares ranks on clean text, which are equal; the last but one is about 3ML.
    assert shown == [True, True, True, False, True, True, False, True]
    assert "from 7.0 in the first layer to 12.2 in the last" in found[0]
    assert "0.00 ± 0.00 with `[MASK]` forced into its encoder, 0.00 ± 0.00 with masked tokens left out" in found[2]
    assert "shown: +10.0" in found[4]
    assert "shown: +10.0" in found[5]
    opposite = [dict(run, score=-run["score"]) for run in content["finetuning"]]
    assert "the opposite shows" in verdicts(Results({**content, "finetuning": opposite}))[5]


@pytest.mark.parametrize(("mlm", "mae_lm", "words"), [(5, -9, "the opposite shows"), (0, 0, "no clear gap")])
def test_a_gap_is_closed_only_where_there_is_one_and_it_gets_smaller(content, mlm, mae_lm, words):
    for run in content["pretraining"]:
        if run["ranks"]:
            run["ranks"] = ranks(run["variant"], run["seed"], gap=mlm if run["variant"] == MLM else mae_lm)
    assert words in verdicts(Results(content))[2]


def test_dry_run_prints_the_cost_of_all_pretraining_runs(monkeypatch, capsys):
    """Checked against the plans of ``mae-lm plan``: 20 updates of 32 sequences of 64 tokens in tiny's recipe."""
    command.main(["--scale", "smoke", "--dry-run"])
    text = capsys.readouterr().out
    first = "Pretraining: 20 updates of 2,048 tokens for each of 10 runs; 0 million tokens per run, "
    assert text.startswith(first)
    run = Run("mae_lm_tiny", vocab_size=1500, tokens_per_sample=64, update_freq=1, tokens=20 * 2048, devices=1)
    hours = []
    for title, fraction in ((MAE_LM, 0.0), *((title, fraction) for fraction, title in FRACTIONS.items())):
        planned = plan(replace(run, mask_in_encoder=fraction))
        row = next(line for line in text.splitlines() if line.startswith(f"| {title} | 2 | "))
        assert f" | {planned.hours:.2g} | {2 * planned.hours:.2g} |" in row
        hours.append(planned.hours)
    assert hours == sorted(set(hours))


def test_base_needs_the_users_text(tmp_path):
    with pytest.raises(UserError, match="--scale base needs --data-bin and --glue-dir"):
        command.main(["--scale", "base", "--out", str(tmp_path)])
    with pytest.raises(UserError, match="--out is missing"):
        command.main(["--scale", "smoke"])


def test_findings_without_variance_are_not_clear():
    assert not finding([2, 2], [1, 1]).is_clear
    assert str(finding([2, 2], [1, 1])) == "+1.0 [+1.0, +1.0]"
    assert finding([2.0, 2.1, 2.2], [1, 1, 1]).is_clear


def test_every_line_of_a_figure_has_its_own_colour(content, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: figures.append(figure))
    write_report(tmp_path, content, "command")
    colours = [[tuple(line.get_color()[0]) for line in figure.legends[0].legend_handles] for figure in figures]
    assert [len(of_figure) for of_figure in colours] == [5, 7, 3, 1]
    assert all(len(set(of_figure)) == len(of_figure) for of_figure in colours)


def test_equal_time_is_read_off_the_same_runs(content):
    results = Results(content)
    # 3ML ends after 10 seconds. By then the MLM has reached its first checkpoint; MAE-LM, half as fast, has not.
    assert results.at_equal_time(results.loss, THREE_ML) == [4.0] * 3
    assert results.at_equal_time(results.loss, MLM) == [5.0] * 3
    assert results.at_equal_time(results.score, MLM) == pytest.approx([35.1, 35.2, 35.3])
    some = [run for run in content["finetuning"] if (run["variant"], run["seed"], run["updates"]) != (MLM, 2, 10)]
    results = Results({**content, "finetuning": some})
    assert results.at_equal_time(results.score, MLM) == pytest.approx([35.1, 35.3])
    assert [seed[-1] for seed in results.score[MLM]] == pytest.approx([70.1, 70.2, 70.3])


@pytest.mark.integration  # draws figures
def test_report_and_figures(content, tmp_path):
    write_report(tmp_path, content, "scripts/reproduce.py --scale smoke --out out")
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| MAE-LM | 40 | 4.000 ± 0.000 |" in report
    assert "| 100% | 4.000 ± 0.000 | 70.2 ± 0.1 |" in report
    assert "3 of RoBERTa preset, 3 of MAE-LM, 3 of 3ML" in report
    assert "| MAE-LM | real tokens, no [MASK] in the text, after fine-tuning | 59.8 ± 0.1 |" in report
    assert "scripts/reproduce.py --scale smoke --out out" in report
    assert "Of the papers it says nothing" in report
    assert "are one network" in report
    assert "On a computer, 2 cores, 2 runs at a time, one thread each; torch 2.13." in report
    for name in ("ranks", "gaps", "time", "fractions"):
        assert f"{name}.png" in report
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_in_the_repository_is_that_of_its_results(tmp_path):
    results = ROOT / "scripts" / "results" / "reproduction"
    report = (results / "report.md").read_text(encoding="utf-8")
    [command] = re.findall(r"```bash\n(.*)\n```", report)
    write_report(tmp_path, json.loads((results / "results.json").read_text()), command)
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == report


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_scales_have_the_seeds_and_checkpoints_that_they_promise(scale):
    seeds = {variant: sum(title == variant for title, _ in trained(scale)) for variant in reproduction.variants(scale)}
    assert seeds[MLM] == seeds[MAE_LM] == scale.rank_seeds
    assert {seeds[variant] for variant in (THREE_ML, *FRACTIONS.values())} == {scale.seeds}
    assert len(checkpoint_updates(scale)) == scale.checkpoints
    assert checkpoint_updates(scale)[-1:] == checkpoint_updates(scale, FRACTIONS[1.0]) == [scale.updates]


def test_neighbours_task_replaces_a_glue_task(tmp_path):
    lines = [word for number in range(3000) for word in (f"line {number}", f"next to {number}")] + ["", "alone", ""]
    other = [f"new {line}" for line in lines[:300]]
    rows = write_neighbours(lines, other, tmp_path / NEIGHBOURS.name)
    assert rows == NEIGHBOURS.rows | {"dev": 299 - NEIGHBOURS.rows["test"]}
    for split, text in {"train": lines, "dev": other}.items():
        found = read_split(NEIGHBOURS, tmp_path, split)
        assert len(found.labels) == rows[split]
        fraction = sum(found.labels) / rows[split]
        assert abs(fraction - 0.5) < 3 * math.sqrt(0.25 / rows[split])
        place = {line: number for number, line in enumerate(text)}
        for (first, second), label in zip(found.sentences, found.labels, strict=True):
            assert (place[second] - place[first] == 1) is (label == 0)


@pytest.mark.slow
def test_smoke_scale(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "reproduce.py", "--scale", "smoke", "--out", tmp_path]
    subprocess.run(command, check=True, timeout=600)
    content = json.loads((tmp_path / "results.json").read_text())
    assert len(content["pretraining"]) == len(trained(SCALES["smoke"]))
    assert "## Effective rank" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_missing_checkpoint_is_not_replaced_by_another(tmp_path):
    scale = SCALES["smoke"]
    first, last = checkpoint_updates(scale)
    folder = reproduction._folder(tmp_path, MLM, 1) / "checkpoints"
    folder.mkdir(parents=True)
    for name in (f"checkpoint_1_{first}.pt", "checkpoint_last.pt"):
        (folder / name).touch()
    assert reproduction._checkpoint(tmp_path, scale, MLM, 1, first) == folder / f"checkpoint_1_{first}.pt"
    assert reproduction._checkpoint(tmp_path, scale, MLM, 1, last) == folder / "checkpoint_last.pt"
    (folder / f"checkpoint_1_{first}.pt").unlink()
    with pytest.raises(UserError, match=f"no checkpoint of update {first}"):
        reproduction._checkpoint(tmp_path, scale, MLM, 1, first)


def test_an_interruption_while_data_are_made_is_an_error(tmp_path, monkeypatch):
    def make_data(*_):
        assert callable(signal.getsignal(signal.SIGTERM))  # otherwise the signal ends this process
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(reproduction, "make_data", make_data)
    with pytest.raises(Interrupted, match="by SIGTERM; the same command resumes"):
        reproduction.reproduce("smoke", tmp_path)


def test_data_are_recognised_by_their_content(tmp_path):
    task = TASKS["RTE"]
    for name in ("one", "two"):
        (tmp_path / name / "RTE").mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
        for part in ("train", "dev", "test"):
            (tmp_path / name / "RTE" / f"{part}.tsv").write_text(part)
    one, two = (reproduction.Data(tmp_path / name, task, tmp_path / name) for name in ("one", "two"))
    assert one.described() == two.described()
    (tmp_path / "two" / "RTE" / "dev.tsv").write_text("changed")
    assert one.described() != two.described()
    two = replace(two, glue=one.glue)
    (tmp_path / "two" / "manifest.json").write_text('{"changed": 1}')
    assert one.described() != two.described()


def test_missing_inputs_are_named_before_training(data_bin, tmp_path):
    with pytest.raises(UserError, match="is no data-bin"):
        reproduction.given_data(tmp_path, tmp_path, "RTE")
    with pytest.raises(UserError, match=r"has no sentencepiece\.bpe\.model"):
        reproduction.given_data(data_bin, tmp_path, "RTE")
    whole = shutil.copytree(data_bin, tmp_path / "whole")
    (whole / "sentencepiece.bpe.model").touch()
    task = tmp_path / "glue" / "RTE"
    task.mkdir(parents=True)
    (task / "train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n")
    with pytest.raises(UserError, match="has no set dev of RTE"):
        reproduction.given_data(whole, task.parent, "RTE")
    (task / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tperhaps\n")
    with pytest.raises(UserError, match=r"dev\.tsv: 1 malformed rows: line 2: .*; fix the file"):
        reproduction.given_data(whole, task.parent, "RTE")

"""The report of a study, from results alone."""

import json
import re

import numpy as np
import pytest
from markdown_it import MarkdownIt

from mae_lm_fairseq.measures import exclusivity, measure
from mae_lm_fairseq.study import report
from mae_lm_fairseq.study.results_file import ResultsFile
from mae_lm_fairseq.utils.typed import typed
from tests.support import ROOT

PLAN = """
title = "Two models"
[data]
data_bin = "data-bin"
text = "valid.txt"
probe_train = "train.conllu"
probe_test = "test.conllu"
[train]
updates = 8
checkpoints = [4]
[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
seeds = 2
[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
seeds = 2
[[measure]]
kind = "probe"
[[measure]]
kind = "rank"
name = "rank at 80 %"
threshold = 0.8
[[measure]]
kind = "exclusivity"
"""

RATES = """
[rates]
lowest = "probe.most_frequent_label"
[[contrast]]
name = "A"
of = "probe.accuracy"
endpoint = "last_less_first_layer"
model = "MLM"
less = "MAE-LM"
[[contrast]]
name = "B"
of = "rank at 80 %.real_clean"
model = "MLM"
"""


def content() -> dict:
    """Return results of two layers whose values tell model, seed and checkpoint."""
    runs = []
    for number, model in enumerate(("MLM", "MAE-LM")):
        for seed in (1, 2):
            measures: dict = {"probe": {}, "rank at 80 %": {}, "exclusivity": {}}
            for updates in (4, 8):
                value = 10 * number + seed + updates / 100
                measures["probe"][str(updates)] = {
                    "accuracy": [value, value + 40],
                    "dev_accuracy": [1.0, 2.0],
                    "lookup": 82.5,
                    "most_frequent_label": value,
                }
                measures["rank at 80 %"][str(updates)] = {"real_clean": [3, 4 + number]}
                measures["exclusivity"][str(updates)] = {
                    "exclusivity_0.9": [0.1 * seed, 0.3],
                    "types_lowest": [None, -0.01 * seed],
                    "types_median": [None, 0.1],
                    "types_highest": [None, 0.2],
                }
            runs.append(
                {
                    "model": model,
                    "learning_rate": None,
                    "seed": seed,
                    "measures": measures,
                    "seconds": {"training-8": 1800},
                    "commands": [],
                    "commits": ["a"],
                    "machines": ["b"],
                    "versions": ["c"],
                }
            )
    rates = {model: {"rate": None, "is_known": True, "damage": None} for model in ("MLM", "MAE-LM")}
    return {"title": "Two models", "plan": PLAN, "files": {}, "rates": rates, "runs": runs, "threads": 1}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    report.write_report(out, typed(content(), ResultsFile))
    return out


@pytest.mark.parametrize("study", ["evidence-2", "pre-norm", "separation", "treatments"])
def test_committed_reports_follow_from_their_results(study, report_of):
    committed = ROOT / "scripts/results" / study
    results = json.loads((committed / "results.json").read_bytes())
    assert report_of(results) == (committed / "report.md").read_text()


def test_the_table_has_a_row_for_each_number(written):
    lines = (written / "results.csv").read_text().splitlines()
    assert lines[0] == "model,rate,seed,updates,measure,value,layer,number,checkpoint"
    assert len(lines[1:]) == 8 * 16  # eight checkpoints with 16 numbers each
    assert {
        *("MAE-LM,,2,8,probe,accuracy,1,52.08,8", "MLM,,1,4,probe,lookup,,82.5,4"),
        "MLM,,2,4,exclusivity,types_lowest,0,,4",
    } < {*lines}


def test_every_figure_that_the_report_names_exists(written):
    text = (written / "report.md").read_text()
    links = re.findall(r"!\[.*?\]\((\S+)\)", text)
    assert links == ["probe.png", "rank%20at%2080%20%25.png", "exclusivity.png"]
    assert {path.name for path in written.glob("*.png")} == {"probe.png", "rank at 80 %.png", "exclusivity.png"}


@pytest.mark.parametrize(
    ("seconds", "amount"), [(40, "less than 0.1 core-hours"), (400, "0.1 core-hours"), (3600, "1.0 core-hours")]
)
def test_small_amounts_are_said_in_words(seconds, amount, report_of):
    results = content()
    results["runs"] = results["runs"][:1]
    results["runs"][0]["seconds"] = {"training": seconds, "measuring": 0}
    assert f"`mae-lm study`, 1 training, {amount}, pauses included (1 thread per run)" in report_of(results)


def test_figures_in_further_formats(report_of, tmp_path):
    results = content()
    results["plan"] = (
        'formats = ["pdf", "svg"]\n' + PLAN + RATES.partition("[[contrast]]")[2].join(["[[contrast]]", ""])
    )
    results["plan"] = results["plan"].partition('[[contrast]]\nname = "B"')[0]
    text = report_of(results)
    names = {"contrasts", "probe", "rank at 80 %", "exclusivity"}
    for ending, beginning in {"png": b"\x89PNG", "pdf": b"%PDF-", "svg": b"<?xml"}.items():
        figures = [*tmp_path.glob(f"*.{ending}")]
        assert {path.stem for path in figures} == names
        assert all(path.read_bytes().startswith(beginning) for path in figures)
    assert {*re.findall(r"!\[.*?\]\(\S+\.(\w+)\)", text)} == {"png"}


def test_figures_speak_words_and_draw_baselines(report_of, monkeypatch):
    drawn = []
    monkeypatch.setattr(measure, "plot_panels", lambda path, title, *panels, **options: drawn.extend(panels))
    report_of(content())
    of_probe, of_rank = drawn[0], drawn[-1]
    assert (of_probe.y_label, of_rank.y_label) == (
        "accuracy on all words (%)",
        "real tokens in clean text (directions)",
    )
    label, height = of_probe.baseline
    assert (label.split(":")[0], height, of_rank.baseline) == ("lookup", 82.5, None)


def test_what_is_the_same_everywhere_is_no_result(written):
    text = (written / "report.md").read_text()
    assert "Of all models, seeds and checkpoints: lookup 82.5." in text
    assert text.count("lookup") == 1


def test_shown_values_come_first_and_the_others_are_folded(written):
    section = (written / "report.md").read_text().split("## ")[1]
    shown, folded = section.split("<details>")
    assert "| MAE-LM | 11.58 ± 0.71 | 51.58 ± 0.71 |" in shown
    assert "| accuracy of the last layer, by updates | 4 | 8 |" in shown
    assert "| MAE-LM | 51.54 ± 0.71 | 51.58 ± 0.71 |" in shown
    assert "dev_accuracy" not in shown
    assert "dev_accuracy, by layer" in folded
    assert "| MLM | 1.58 ± 0.71 (1.08, 2.08) |" in folded


def test_the_report_of_an_interrupted_study_says_so(report_of):
    """A contrast without results is not one that could not be tested."""
    results = content()
    results["plan"] = PLAN + RATES.partition("[[contrast]]")[1] + RATES.partition("[[contrast]]")[2]
    del results["runs"][3]["measures"]["probe"]["8"]
    text = report_of(results)
    assert "**Incomplete: 3 of 4 trainings have all measurements.**" in text
    assert "Not tested, as results of MAE-LM are missing: A." in text


def test_costs_are_beside_the_scores(report_of):
    results = content()
    results["plan"] = PLAN.replace("updates = 8", 'updates = 8\nequal = "flops"')
    results["plan"] += '[[contrast]]\nname = "A"\nof = "probe.accuracy"\nmodel = "MLM"\nless = "MAE-LM"\n'
    for run in results["runs"]:
        updates = 12_500 if run["model"] == "MLM" else 6
        cost = {"updates": updates, "tokens": 3e9, "flops": None, "seconds": updates * run["seed"] / 10}
        run["measures"]["cost"] = {"8": cost}
    text = report_of(results)
    assert "The models were trained for equal flops." in text
    assert "per update" not in text
    header = "| model | cost.updates | cost.tokens | cost.flops | cost.seconds | probe.accuracy |"
    assert f"{header}\n| --- | --- | --- | --- | --- | --- |\n| MLM | 12,500 | 3e+09 | - | 1875 ± 8.8e+02 |" in text
    assert "| MAE-LM | 6 | 3e+09 | - | 0.9 ± 0.42 | 51.58 ± 0.71 |" in text


@pytest.mark.parametrize(("seconds", "is_said"), [(9.5, False), (11.5, True), (8.5, True), (None, False)])
def test_trainings_of_unequal_seconds_are_named(seconds, is_said, report_of):
    """The measured speed is a prediction. The report says what it was, and whether it was right."""
    results = content()
    results["plan"] = PLAN.replace("updates = 8", 'updates = 8\nequal = "seconds"')
    results["costs"] = {"MLM": 0.5, "MAE-LM": 1.0}
    for run in results["runs"]:
        if run["model"] == "MLM" or seconds:
            cost = {"updates": 8, "tokens": 3, "flops": 3, "seconds": 10 if run["model"] == "MLM" else seconds}
            run["measures"]["cost"] = {"8": cost}
    text = report_of(results)
    assert "Seconds per update, as measured before the trainings: MLM 0.5; MAE-LM 1." in text
    assert ("The models were trained for equal seconds." in text) != is_said
    assert (f"MAE-LM took {(seconds or 0) / 10:.2f} times as long as MLM" in text) == is_said
    del results["costs"]  # as earlier versions wrote them
    assert "equal seconds. Below" in report_of(results)


def test_checkpoints_have_the_models_own_numbers_of_updates(report_of, tmp_path):
    """In headings and in ``results.csv``. Tables and figures have those of the plan, by which models are compared."""
    results = content()
    results["plan"] = PLAN.replace('"mae_lm_tiny"', '"mae_lm_tiny"\nupdates = 6')
    text = report_of(results)
    assert "The models were trained for different numbers of updates" in text
    assert "After 8 (MLM) or 6 (MAE-LM) updates:" in text
    assert "| accuracy of the last layer, by updates | 4 | 8 |" in text
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert "MAE-LM,,2,6,probe,accuracy,1,52.08,8" in lines
    assert "MLM,,2,8,probe,accuracy,1,42.08,8" in lines
    results["plan"] = results["plan"].replace('"mae_lm_roberta_tiny"', '"mae_lm_roberta_tiny"\nrandom = true')
    assert "After 6 updates:" in report_of(results)


@pytest.mark.parametrize("spread", [0, 1e-13])
def test_rounding_errors_are_no_spread(spread, report_of):
    """The mean of three times 82.3 is not 82.3."""
    results = content()
    results["plan"] = PLAN.replace("seeds = 2", "seeds = 3")
    for run in [*results["runs"][::2]]:
        results["runs"].append({**run, "seed": 3})
    for run in results["runs"]:
        run["measures"] = json.loads(json.dumps(run["measures"]))
        run["measures"]["probe"]["8"]["accuracy"] = [82.3, 82.3 + spread * run["seed"]]
    section = report_of(results).split("## ")[1]
    assert "| MLM | 82.3 ± 0 | 82.3 ± 0 |" in section


@pytest.mark.parametrize(("loss", "models"), [(6.5, ["MLM; MAE-LM"]), (6.0, ["MLM; MAE-LM"]), (5.9, [])])
def test_losses_that_mean_nothing(loss, models, report_of):
    results = content()
    results["plan"] = PLAN + '[[measure]]\nkind = "loss"\n'
    for run in results["runs"]:
        run["measures"]["loss"] = {"8": {"loss": loss, "accuracy": 0.1, "unigram_entropy": 6.0}}
    named = re.findall(r"not below the unigram entropy\*\*.*: (.*)\.", report_of(results))
    assert named == models


def test_models_with_other_checkpoints(report_of):
    """As after a study was interrupted whose plan has one more."""
    results = content()
    for run in results["runs"]:
        if run["model"] == "MLM":
            of_rank = run["measures"]["rank at 80 %"]
            of_rank["6"] = of_rank["4"]
    results["plan"] = PLAN.replace("checkpoints = [4]", "checkpoints = [4, 6]")
    section = report_of(results).split("## rank")[1]
    assert "| real_clean of the last layer, by updates | 4 | 6 | 8 |" in section
    assert "| MAE-LM | 5 ± 0 | - | 5 ± 0 |" in section


def test_every_rate_has_what_the_contrasts_compare(report_of):
    """So that models can be compared at equal rates, whichever rate the rule chose for each."""
    results = content()
    results["plan"] = PLAN.replace("seeds = 2", "seeds = 2\nlearning_rates = [1e-3, 2e-3]") + RATES
    for run in results["runs"]:
        run["learning_rate"] = 0.001 if run["seed"] == 1 else 0.002
    results["rates"] = {model: {"rate": 0.001, "is_known": True, "damage": None} for model in ("MLM", "MAE-LM")}
    text = report_of(results)
    header = "| model | learning rate | seed | probe.most_frequent_label | last_less_first_layer of probe.accuracy |"
    assert f"{header} last of rank at 80 %.real_clean |" in text
    assert "| MLM | 0.001 | 1 | 1.08 | 40 | 4 |" in text
    assert "| MAE-LM | 0.002 | 2 | 12.08 | 40 | 5 |" in text


def test_exclusivity_has_a_panel_for_each_model_with_its_controls(report_of, monkeypatch):
    """Models whose encoder takes no [MASK] have none."""
    results, drawn = content(), []
    for run in results["runs"][:2]:
        run["measures"]["exclusivity"] = {"4": {}, "8": {}}
    monkeypatch.setattr(exclusivity, "plot_panels", lambda path, title, *panels, **options: drawn.extend(panels))
    report_of(results)
    [panel] = drawn
    assert panel.title == "MAE-LM"
    [line, median], [band] = panel.lines.values(), panel.bands.values()
    assert median.y[0] == pytest.approx([np.nan, 10], nan_ok=True)
    assert line.y == pytest.approx(np.array([[10, 30], [20, 30]]))
    _, low, high = band
    assert low == pytest.approx(np.array([np.nan, -1.5]), nan_ok=True)
    assert high == pytest.approx(np.array([np.nan, 20]), nan_ok=True)


def test_models_without_any_difference_are_named(report_of):
    """An option without effect gives no verdict; a difference in one value of one seed is one."""
    results = content()
    results["plan"] += RATES.partition("[[contrast]]")[2].partition("[[contrast]]")[0].join(["[[contrast]]", ""])
    first, second, *others = results["runs"]
    for run, like in zip(others, (first, second), strict=True):
        run["measures"] = json.loads(json.dumps(like["measures"]))
    text = report_of(results)
    assert "MLM and MAE-LM are identical in every value" in text
    [row] = [line for line in text.splitlines() if line.startswith("| A |")]
    assert row.endswith("identical models |")
    others[1]["measures"]["rank at 80 %"]["4"]["real_clean"][0] += 1
    assert "identical" not in report_of(results)


HOSTILE = "a|b <img src=x onerror=alert(1)> &lt;b&gt; [link](http://example.org) ```"


def test_names_make_no_html_no_links_and_no_cells(report_of):
    """Names in a plan and in results, which may come from others."""
    hostile = json.loads(json.dumps(content()).replace("MAE-LM", HOSTILE))
    hostile["title"] = f"{HOSTILE}\n<script>"
    plan = PLAN.replace("MAE-LM", HOSTILE)
    plan += f'[[contrast]]\nname = "{HOSTILE}"\nclaim = "{HOSTILE}"\nof = "probe.accuracy"\nmodel = "MLM"\n'
    plan += f'[[contrast]]\nname = "{HOSTILE} untested"\nof = "exclusivity.exclusivity_0.9"\nmodel = "{HOSTILE}"\n'
    hostile["plan"] = plan + "# ```\n# <script>\n"
    hostile["changes"] = [{"date": HOSTILE, "lines": ["+# ````", "+<script>"]}]
    hostile["extended"], hostile["runs"][0]["machines"] = [HOSTILE], [HOSTILE]
    parser = MarkdownIt("gfm-like", {"linkify": False})
    tokens = parser.parse(report_of(hostile))
    inline = [child for token in tokens for child in token.children or ()]
    html = {token.content.strip() for token in (*tokens, *inline) if token.type.startswith("html")}
    assert html <= {"<details>\n<summary>All other values</summary>", "</details>"}
    assert not [token for token in inline if token.type == "link_open"]
    assert {token.attrs["src"] for token in inline if token.type == "image"} <= {
        *("contrasts.png", "probe.png", "rank%20at%2080%20%25.png", "exclusivity.png")
    }
    text = "\n".join(token.content for token in inline if token.type == "text")
    assert "<img src=x onerror=alert(1)>" in text
    columns = [token.content for token in tokens if token.type == "inline" and token.level == 3]
    assert "a&#124;b" in " ".join(columns)


def test_a_measure_with_a_dot_in_its_name_is_reported(tmp_path, report_of):
    renamed = json.loads(json.dumps(content() | {"plan": PLAN + RATES}).replace("rank at 80 %", "rank, version 1.5"))
    renamed["rates"] |= {model: {"rate": None, "is_known": True, "damage": None} for model in ("MLM", "MAE-LM")}
    text = report_of(renamed)
    assert "## rank, version 1.5" in text
    assert "last of rank, version 1.5.real_clean, MLM" in text
    assert (tmp_path / "rank, version 1.5.png").exists()

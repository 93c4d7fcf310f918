"""A measure from outside of the package: a verb, and a study with a contrast and a figure."""

import importlib
import json
import math
import re
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.measures import registry
from mae_lm_fairseq.measures.measure import Data, Measure, ModelToMeasure, Value
from mae_lm_fairseq.measures.rank import Rank
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.measures.registry import MEASURES, register_measure, register_ours
from mae_lm_fairseq.measures.verb import verb_of
from mae_lm_fairseq.study.plan import Model, PlannedMeasure
from mae_lm_fairseq.study.run_files import Measurement, Training, measure_checkpoint
from mae_lm_fairseq.text.preparation import PreparationOptions, prepare
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT
from tests.support.processes import runs_in_children

pytestmark = pytest.mark.integration

MODULE = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from mae_lm_fairseq.measures.measure import MaskedText, Measure, ModelToMeasure, Value
from mae_lm_fairseq.measures.registry import register_measure


@dataclass(frozen=True, kw_only=True)
class Anisotropy(Measure, MaskedText):
    """Anisotropy: the mean cosine of pairs of token vectors, layer by layer."""

    kind: ClassVar = "anisotropy"
    needs: ClassVar = ("text",)
    values: ClassVar = (Value("cosine", "mean cosine of two tokens", by_layer=True),)

    def measure(self, model: ModelToMeasure) -> dict[str, list[float]]:
        reader, layers = model.open(), []
        for text, _ in reader.texts(model.data.text, self.tokens_per_sample, self.tokens):
            states = reader.states(torch.tensor(text.ids)[None], see_masks=False)
            layers.append(torch.stack([F.normalize(layer.states, dim=1) for layer in states]))
        vectors = torch.cat(layers, dim=1)  # [layers, tokens, dim]
        count, total = vectors.shape[1], vectors.sum(1).square().sum(1)
        return {"cosine": ((total - count) / (count * (count - 1))).tolist()}


register_measure(Anisotropy)
'''

PLAN = """
[data]
data_bin = "data-bin"
text = "text"
[train]
updates = 1
[options]
tokens-per-sample = 32
[[model]]
name = "MLM"
arch = "mae_lm_roberta_tiny"
random = true
seeds = 2
[[model]]
name = "wide"
arch = "mae_lm_tiny"
random = true
seeds = 2
options = { init-std = 0.5 }
[[measure]]
kind = "anisotropy"
tokens = 200
[[contrast]]
name = "C"
of = "anisotropy.cosine"
model = "wide"
less = "MLM"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Write a text, and a module that registers the measure until the test ends."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("\n\n".join(TEXT * 4), encoding="utf-8")
    (tmp_path / "anisotropy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("anisotropy")
    yield tmp_path
    del MEASURES["anisotropy"], sys.modules["anisotropy"]


def test_it_is_a_verb(here, bundles, monkeypatch):
    path = bundles["mae_lm_tiny"]
    options = ["--text", "text", "--tokens", "100", "--out", "out"]
    monkeypatch.setattr(sys, "argv", ["mae-lm", "anisotropy", str(path), *options])
    assert cli.main() is None
    results = json.loads((here / "out" / "results.json").read_text())
    reader = open_model(path, None)
    vectors = []
    for text, _ in reader.texts(here / "text", results["settings"]["tokens_per_sample"], 100):
        vectors += reader.states(torch.tensor(text.ids)[None], see_masks=False)[-1].states
    pairs = [(first, second) for first in vectors for second in vectors if first is not second]
    cosines = [float(torch.cosine_similarity(first, second, dim=0)) for first, second in pairs]
    last = results["models"]["mae_lm_tiny"]["cosine"][-1]
    assert last == pytest.approx(math.fsum(cosines) / len(cosines), abs=1e-5)
    assert f"| mae_lm_tiny | {last:.4g} |" in (here / "out" / "report.md").read_text()


def test_a_study_has_it_with_a_contrast_and_a_figure(here):
    (here / "train").write_text("\n\n".join(TEXT), encoding="utf-8")
    prepare(PreparationOptions(("train",), ("text",), here / "data-bin", vocab_size=120, max_unk_rate=1.0, workers=1))
    (here / "plan.toml").write_text(PLAN)
    with runs_in_children():
        cli.run("study", ["plan.toml", "--out", "study"])
    report = (here / "study" / "report.md").read_text()
    assert "| C | last of anisotropy.cosine, wide less MLM |" in report
    assert "Anisotropy: the mean cosine" in report
    for name in ("anisotropy", "contrasts"):
        assert (here / "study" / f"{name}.png").exists()


def test_a_taken_name_is_refused():
    register_ours()

    class Another(Measure):
        kind = "rank"

    with pytest.raises(UserError, match="rank"):
        register_measure(Another)
    assert MEASURES["rank"] is Rank


def test_two_classes_of_a_module_do_not_share_a_name(monkeypatch):
    known = dict(MEASURES)
    monkeypatch.setattr(registry, "MEASURES", known)

    class One(Measure):
        kind = "own"

    class Other(Measure):
        kind = "own"

    register_measure(One)
    register_measure(One)  # as when its module is reloaded
    with pytest.raises(UserError, match=r"own is the name of .*\.One"):
        register_measure(Other)
    assert known["own"] is One


@dataclass(frozen=True, kw_only=True)
class Norms(Measure):
    """A measure whose result is what the test gives it as a model."""

    kind = "norms"
    values = (Value("spread"), Value("norm", by_layer=True), Value("rare", optional=True))

    def measure(self, model):
        return model


@pytest.mark.parametrize(
    ("result", "values"),
    [
        ({"spread": 1.0}, {"spread": 1.0}),  # models may lack values by layer, and files optional ones
        ({"spread": None, "norm": [None, 2], "rare": 1}, {"spread": None, "norm": [None, 2], "rare": 1}),
        (
            {"spread": torch.tensor(0.5, requires_grad=True), "norm": [torch.tensor(2), np.float32(0.5)]},
            {"spread": 0.5, "norm": [2, 0.5]},
        ),
        ({"spread": np.int64(3), "norm": torch.tensor([1.0, 2.0])}, {"spread": 3, "norm": [1.0, 2.0]}),
    ],
)
def test_numbers_of_a_measure_become_those_of_json(result, values):
    assert json.loads(json.dumps(Norms().values_of(result))) == values


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"spred": 1.0}, "'spred'.*is spread meant"),
        ({"norm": [1.0]}, "lacks 'spread'"),
        ({"spread": "high"}, "spread is 'high'"),
        ({"spread": torch.zeros(2, 2)}, r"spread is \[\[0.0"),
        ({"spread": 1j}, "spread is 1j"),
        ({"spread": 1.0, "norm": {"1": 2.0}}, "norm is {"),
        (None, "the result None"),
    ],
)
def test_a_result_that_is_not_as_declared_is_refused(result, problem):
    with pytest.raises(UserError, match=rf"^measure norms \({re.escape(__file__)}\): .*{problem}"):
        Norms().values_of(result)


def test_values_that_depend_on_the_files_have_any_name(monkeypatch):
    monkeypatch.setattr(Norms, "values", None)
    assert Norms().values_of({"cat": 1.0}) == {"cat": 1.0}


def test_verbs_and_studies_refuse_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Norms, "measure", lambda measure, model: {"norm": [1.0]})
    options = verb_of(Norms)(measure=Norms(), models=(tmp_path,), out=tmp_path)
    training = Training(Model("a", "mae_lm_tiny"), None, 1, tmp_path)
    measures = {"key": PlannedMeasure("norms", "all", Norms())}
    measurement = Measurement(training, 1, Data(None), tmp_path / "log", range(1), measures)
    with pytest.raises(UserError, match=r"norms .* lacks 'spread'"):
        options.compare(ModelToMeasure(label="a", path=tmp_path, data=Data(None)))
    with pytest.raises(UserError, match=r"norms .* lacks 'spread'"):
        measure_checkpoint(Run("a", (), tmp_path / "result", dict), measurement)


def test_a_verb_reports_values_that_depend_on_the_files(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Counts(Measure):
        """How often each word occurs."""

        kind = "counts"
        values = None

    options = verb_of(Counts)(measure=Counts(), models=(tmp_path / "a", tmp_path / "b"), out=tmp_path)
    models = {"a": {"model": "a", "cat": 1.0}, "b": {"model": "b", "cat": 2.0, "dog": [0.0, 3.0]}}
    table = options.report({"models": models})
    assert table.startswith("# How often each word occurs.")
    assert [line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| model", "| a", "| b"))] == [
        [" model ", " cat ", " dog "],
        [" a ", " 1 ", " - "],
        [" b ", " 2 ", " 3 "],
    ]


def test_measures_of_the_package_are_verbs_only_if_they_are_listed(monkeypatch):
    register_ours()
    monkeypatch.setattr(sys, "argv", ["mae-lm", "loss"])
    assert cli.main() == 2

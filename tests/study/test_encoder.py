"""Plans with an encoder of ``transformers``: keys of trainings, mistakes, and costs that are measured."""

import json
import re
from dataclasses import replace

import pytest

from mae_lm_fairseq.study.checks import check, dry_run, equal_starts
from mae_lm_fairseq.study.plan import parse_plan
from mae_lm_fairseq.study.runs import Workspace, fingerprints, options_of
from mae_lm_fairseq.training import timing
from mae_lm_fairseq.utils.errors import UserError
from tests.support.families import change_json
from tests.support.wrapped import stock

PLAN = """
[data]
data_bin = "DATA"

[train]
updates = 4

[options]
tokens-per-sample = 32

[[model]]
name = "ModernBERT"
arch = "mae_lm_tiny"
encoder = "config.json"
seeds = 2

[[model]]
name = "MAE-LM"
arch = "mae_lm_tiny"
"""


@pytest.fixture
def text(data_bin, tmp_path, monkeypatch) -> str:
    """The text of a plan; the current directory has the configuration."""
    stock("modernbert", pad=50).config.save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    return PLAN.replace("DATA", str(data_bin))


def test_the_content_of_the_file_is_in_the_key(text, tmp_path):
    def key(text: str = text) -> str:
        plan = parse_plan(text, "plan.toml")
        check(plan)
        [first, _] = plan.models
        return Workspace(plan, tmp_path, 1, fingerprints(plan)).training(first, None, 1).folder.name

    before = key()
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content))  # another layout of the same content
    assert key() == before
    moved = config.rename(tmp_path / "elsewhere.json")
    assert key(text.replace("config.json", "elsewhere.json")) == before
    moved.rename(config)
    change_json(config, local_attention=8)
    assert key() != before


def test_the_encoder_takes_the_place_of_the_architectures(text):
    with_encoder, without = parse_plan(text, "plan.toml").models
    plan = parse_plan(text, "plan.toml")
    assert (options_of(plan, with_encoder)["encoder-layers"], with_encoder.arch) == (3, without.arch)
    assert "wrapped" not in options_of(plan, without)


def test_mistakes_are_named(text, tmp_path):
    with pytest.raises(UserError, match=r"^plan\.toml: model\[1\]\.encoder: none\.json does not exist"):
        check(parse_plan(text.replace("config.json", "none.json"), "plan.toml"))
    with pytest.raises(UserError, match=r"tokens-per-sample.*raise max_position_embeddings of config\.json"):
        check(parse_plan(text.replace("sample = 32", "sample = 81"), "plan.toml"))
    change_json(tmp_path / "config.json", auto_map={})
    with pytest.raises(UserError, match=r"^plan\.toml: model\[1\]\.encoder: config\.json: auto_map leads to code"):
        check(parse_plan(text, "plan.toml"))


def test_a_cost_that_no_formula_describes_is_measured(text, monkeypatch):
    """An update that takes a second, of a batch of 32 sequences; a training has 4 of them, of 32 sequences each."""
    moments = iter(range(10**6))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(moments)))
    plan = parse_plan(text, "plan.toml")
    report = dry_run(plan, check(plan))
    assert "ModernBERT: 4 s per training on this machine, which the figures below lack. 20 updates" in report
    assert re.search(r"\| ModernBERT \| 2( \| -){5} \|\n\| MAE-LM \| 1 \| [\d.]", report)
    assert next(moments) == 2 * (timing.MEASURED_UPDATES + timing.WARM_UP)
    assert f"3 trainings of 4 updates, {3 * 4 * 32 * 32:,} tokens" in report


def test_seeds_of_a_start_are_said_to_have_equal_weights(text):
    plan = parse_plan(text.replace("seeds = 2", 'seeds = 2\nstart = "model"'), "plan.toml")
    [sentence] = equal_starts(plan)
    assert sentence.startswith("ModernBERT: its 2 seeds start from equal weights, those of model.")
    one_seed = replace(plan, models=(replace(plan.models[0], seeds=1), plan.models[1]))
    assert equal_starts(one_seed) == []

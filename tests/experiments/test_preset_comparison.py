import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
from fairseq import tasks

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.experiments import inspection
from mae_lm_fairseq.experiments.preset_comparison import (
    COMMON_MASKING,
    Variant,
    ablations,
    compare,
    presets,
    table_of,
)
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.recipes.training_command import check_data, training_command
from mae_lm_fairseq.utils.errors import UserError
from tests.support import ROOT
from tests.support.training import parse

pytestmark = pytest.mark.integration  # trains

COMMAND = "scripts/compare_presets.py data-bin --size tiny"


def configuration(variant, data):
    """Return the configuration that ``fairseq-train`` parses from a variant's command."""
    command = training_command(variant.architecture, data, Path("out"), 4, 2, 2, *variant.options)
    return parse(*command[command.index(str(data)) :])


def assert_all_differ(variants, configurations):
    seen = set()
    for variant, cfg in zip(variants, configurations, strict=True):
        masking = [cfg.task[name] for name in (*COMMON_MASKING, "mask_in_encoder")]
        seen.add(repr((variant.architecture.rpartition("_")[0], core_config(cfg.model), *masking)))
    assert len({variant.name for variant in variants}) == len(seen) == len(variants)


@pytest.mark.parametrize("table", [presets, ablations])
def test_every_row_is_another_network_and_gives_a_loss(data_bin, table):
    variants = table("tiny")
    configurations = [configuration(variant, data_bin) for variant in variants]
    assert_all_differ(variants, configurations)
    for variant, cfg in zip(variants, configurations, strict=True):
        task = tasks.setup_task(cfg.task)
        task.load_dataset("valid")
        torch.manual_seed(1)
        model = task.build_model(cfg.model).eval()
        # An untrained model of about 200 tokens: ln 200 = 5.3, and more where it is confidently wrong.
        assert 5 < inspection.masked_loss(model, task) < 7, variant.title


@pytest.mark.slow
def test_every_row_of_base_is_another_network():
    for variants in (presets("base"), ablations("base")):
        assert_all_differ(variants, [configuration(variant, Path("data")) for variant in variants])


def test_every_preset_is_compared():
    assert {variant.architecture for variant in presets("tiny")} == {f"{preset}_tiny" for preset in PRESETS}


def test_mask_later_variants_join_at_every_inner_layer():
    joins = [variant.options[1] for variant in presets("small") if "mask_later" in variant.architecture]
    assert joins == ["1", "2", "3"]


def test_decoder_sizes_of_base_are_those_of_the_paper():
    widths = [
        dict(zip(variant.options[::2], variant.options[1::2], strict=True))
        for variant in ablations("base")
        if "--decoder-embed-dim" in variant.options
    ]
    assert [(row["--decoder-embed-dim"], row["--decoder-attention-heads"]) for row in widths] == [
        ("512", "8"),
        ("1024", "16"),
    ]


@pytest.fixture(scope="module")
def table(data_bin, tmp_path_factory):
    """Compare two tiny networks after two updates; return the rows, the variants and the directory."""
    out = tmp_path_factory.mktemp("comparison")
    # The seeds differ, to check that the validation text is masked alike anyway.
    smaller = ("--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32")
    variants = [
        Variant("as trained", "mae_lm_tiny", smaller),
        Variant("more masked", "mae_lm_tiny", (*smaller, "--mask-prob", "0.5", "--seed", "2")),
    ]
    rows = compare(data_bin, variants, 2, out, "Two", COMMAND, jobs=2)
    return rows, variants, out


def test_a_comparison_writes_its_table_and_reuses_results(table, data_bin, tmp_path):
    rows, variants, out = table
    content = json.loads((out / "table.json").read_text())
    assert [row["title"] for row in content["rows"]] == ["as trained", "more masked"]
    assert content["versions"].keys() >= {"torch", "fairseq-fixed"}
    report = (out / "table.md").read_text()
    assert content["command"] == COMMAND
    assert f"\n{COMMAND}\n" in report
    for row in rows:
        assert f"| {row['title']} |" in report
        assert f"{row['valid_loss']:.3f}" in report
        assert row["seconds_per_update"] > 0
        assert row["parameters"] > row["encoder_parameters"]
    before = [path.stat().st_mtime_ns for path in sorted(out.glob("runs/*/result.json"))]
    assert compare(data_bin, variants, 2, out, "Two", COMMAND, jobs=2) == rows
    assert [path.stat().st_mtime_ns for path in sorted(out.glob("runs/*/result.json"))] == before
    with pytest.raises(UserError, match=r"other settings: jobs, threads, updates \("):
        compare(data_bin, variants, 3, out, "Two", COMMAND, threads=2)
    shutil.copytree(data_bin, tmp_path / "data-bin")
    (tmp_path / "data-bin" / "manifest.json").touch()
    with pytest.raises(UserError, match=r"other settings: data \("):
        compare(tmp_path / "data-bin", variants, 2, out, "Two", COMMAND, jobs=2)


def test_losses_are_of_the_same_masked_positions(table, data_bin):
    _, variants, out = table
    targets = []
    for variant in variants:
        checkpoint = out / "runs" / variant.name / "checkpoints" / "checkpoint_last.pt"
        _, task = inspection.load(checkpoint, data_bin, **COMMON_MASKING)
        targets.append([sample["target"].tolist() for sample in map(task.dataset("valid").__getitem__, range(5))])
        assert task.cfg.mask_prob == 0.15
    assert targets[0] == targets[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--size", "tiny", "--updates", "2"], "nowhere is no data-bin"),
        (["DATA", "--size", "huge", "--updates", "2"], "--size huge: choose one of tiny"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(data_bin, tmp_path, monkeypatch, arguments, message):
    arguments = [str(data_bin) if word == "DATA" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["compare_presets.py", *arguments, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=f"error: {message}"):
        runpy.run_path(str(ROOT / "scripts" / "compare_presets.py"), run_name="__main__")
    assert not (tmp_path / "out").exists()


def test_a_data_bin_without_a_validation_split_is_refused_before_training(data_bin, tmp_path):
    for name in ("dict.txt", "train.bin", "train.idx"):
        (tmp_path / name).symlink_to(data_bin / name)
    with pytest.raises(UserError, match="valid"):
        check_data(tmp_path)
    check_data(data_bin)


def test_the_published_table_is_that_of_the_results():
    """The table is formatted as by ``compare``, and has every preset."""
    content = json.loads((ROOT / "scripts" / "results" / "presets-tiny.json").read_text(encoding="utf-8"))
    document = (ROOT / "docs" / "results" / "presets.md").read_text(encoding="utf-8")
    assert table_of(content["rows"]) in document
    assert content["command"] in document
    assert [(row["title"], row["architecture"]) for row in content["rows"]] == [
        (variant.title, variant.architecture) for variant in presets("tiny")
    ]

"""What the README tells people to type works."""

import importlib
import json
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.downstream import report as glue_report
from mae_lm_fairseq.downstream.squad import metrics as squad_metrics
from mae_lm_fairseq.recipes.pretrain import complete, understand
from tests.support import ROOT
from tests.support.answering import write_squad

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)

COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
PRETRAININGS = [line.partition("scripts/pretrain.sh ")[2] for line in COMMANDS if "scripts/pretrain.sh " in line]
# They take minutes. Continuous integration runs them.
ELSEWHERE = ["scripts/quickstart.sh\n", "scripts/test.sh\n"]
[HYDRA] = [block for block in BLOCKS if "fairseq-hydra-train" in block]
[PLAN] = [block for block in BLOCKS if "scripts/plan_cost.py" in block]
[SPEED] = [block for block in BLOCKS if "scripts/benchmark.py" in block]
[RANKS] = [block for block in BLOCKS if "scripts/effective_rank.py" in block]
[LAUNCH] = [block for block in BLOCKS if "scripts/launch_cpu.py" in block]
[BUNDLE] = [block for block in BLOCKS if "scripts/bundle.py" in block]
PYTHON = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
[LOAD, LOAD_FINE_TUNED] = [block for block in PYTHON if "MAELMModel.from_pretrained" in block]
GLUE = [block for block in BLOCKS if "finetune_glue" in block or glue_report.__name__ in block]
SQUAD = [block for block in BLOCKS if "squad" in block]
# tests/end_to_end/test_hugging_face.py runs them.
HUGGING_FACE = [block for block in BLOCKS if "_hf.py" in block or "imported/tokenizer" in block]
NOT_SHORT = (HYDRA, PLAN, LAUNCH, RANKS, SPEED, BUNDLE, *GLUE, *SQUAD, *ELSEWHERE, *HUGGING_FACE)
SHORT = [block for block in BLOCKS if "scripts/pretrain.sh" not in block and block not in NOT_SHORT]


def test_blocks_are_found():
    assert len(PRETRAININGS) >= 5
    assert len(SHORT) >= 2
    assert set(ELSEWHERE) < set(BLOCKS)


@pytest.mark.filterwarnings("ignore::UserWarning")  # hydra's
@pytest.mark.parametrize("command", PRETRAININGS)
def test_pretrainings_are_understood(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "--cpu" not in command)
    architecture, data, save_dir, *extra = shlex.split(command)
    cfg = understand(complete(architecture, data, save_dir, extra))
    assert cfg.model._name == architecture
    assert cfg.common.fp16 is ("--cpu" not in extra and "--bf16" not in extra)


def test_hydra_trains(run_cli, data_bin, tmp_path):
    (tmp_path / "data-bin").symlink_to(data_bin)
    block = HYDRA.replace("mae_lm_tiny", "mae_lm_roberta_tiny").rstrip()
    run_block(f"{block} optimization.max_update=2 model.encoder_layers=2 hydra.run.dir=log\n", run_cli, tmp_path)
    trained = torch.load(tmp_path / "checkpoints" / "hydra" / "checkpoint_last.pt", weights_only=False)  # our own
    assert trained["cfg"]["model"]["mask_join"] == "embeddings"
    assert trained["model"]["autoencoder.encoder.embed_tokens.weight"].shape[1] == 128
    layers = map(re.compile(r".*encoder\.layers\.(\d+)\.").match, trained["model"])
    assert {int(found[1]) for found in layers if found} == {0, 1}


def test_speed_is_from_the_committed_results():
    """The settings are known, their files are here, and the table and the text say what the files say."""
    parser = parser_of("scripts/benchmark.py")
    for line in SPEED.splitlines():
        arguments = parser.parse_args(shlex.split(line)[1:])
        figures = json.loads((ROOT / "scripts" / "results" / arguments.json).read_text())
        usual = figures["setting"]["rows"], figures["setting"]["length"], 0.15, False
        for row in figures["rows"]:
            told = row["subject"] in ("mae_lm_eager", "authors", "mae_lm_bf16_eager", "fairseq_roberta")
            if told and (row["rows"], row["length"], row["mask_prob"], row["ragged"]) == usual:
                assert f" {row['tokens_per_second']:,.0f} " in README
        assert f"{figures['ratios']['authors_speedup']:.2f} times the authors' code" in README


def test_several_processes_train(run_cli, data_bin, tmp_path):
    (tmp_path / "data-bin").symlink_to(data_bin)
    run_block(LAUNCH.replace("--max-update 2000", "--max-update 2"), run_cli, tmp_path)
    trained = torch.load(tmp_path / "checkpoints" / "two" / "checkpoint_last.pt", weights_only=False)  # our own
    assert trained["optimizer_history"][-1]["num_updates"] == 2
    assert trained["cfg"]["distributed_training"]["distributed_world_size"] == 2


def test_bundle_loads(checkpoints, text_data, run_cli, tmp_path, monkeypatch, capsys):
    (tmp_path / "data-bin").symlink_to(text_data)
    (tmp_path / "checkpoints" / "mae_lm").mkdir(parents=True)
    (tmp_path / "checkpoints" / "mae_lm" / "checkpoint_last.pt").symlink_to(checkpoints["mae_lm_tiny"])
    assert "mae-lm: mae_lm_tiny after 0 updates" in run_block(BUNDLE, run_cli, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(LOAD, found)
    first, *fillings = capsys.readouterr().out.splitlines()
    assert first == "One sentence."
    assert len(fillings) == 3
    assert found["last"][1].shape == (len(found["model"].encode("And another, longer one.")), 16)
    assert len(found["layers"]) == 3


def test_fine_tuned_bundles_load(bundles, tmp_path, monkeypatch, capsys):
    (tmp_path / "rte").symlink_to(bundles["classification"])
    (tmp_path / "squad").symlink_to(bundles["span"])
    monkeypatch.chdir(tmp_path)
    exec(LOAD_FINE_TUNED, {})
    probabilities, answer = capsys.readouterr().out.splitlines()
    assert probabilities.startswith("tensor([[0.")
    assert answer in "It rains, and the wind is cold."


def test_ranks_are_understood():
    """Of which models, tests/experiments/test_ranks.py runs."""
    for line in RANKS.replace("\\\n", " ").splitlines():
        script, *arguments = shlex.split(line)
        parsed = parser_of(script).parse_args(arguments)
        assert (parsed.text, parsed.tokenizer) == ("valid.txt", "data-bin")
        assert all(path.startswith("checkpoints/") for path in parsed.models)


def test_finetuning_and_its_report_are_understood():
    finetune, report = (shlex.split(block.replace("\\\n", " ")) for block in GLUE)
    options = parser_of(finetune[0]).parse_args(finetune[1:])
    assert (options.task, options.seeds) == ("RTE", 5)
    assert (options.glue_dir, options.tokenizer) == (Path("GLUE"), Path("data-bin"))
    assert report[:3] == ["python", "-m", glue_report.__name__]
    assert len(glue_report.parser().parse_args(report[3:]).results) == 3


def test_squad_is_understood_and_its_tools_run(tmp_path, monkeypatch, capsys):
    finetune, tools = SQUAD
    program, *words = shlex.split(finetune.replace("\\\n", " "))
    options = parser_of(program).parse_args(words)
    assert (options.train, options.seeds) == (Path("train-v1.1.json"), 5)

    metrics, split = map(shlex.split, tools.splitlines())
    monkeypatch.chdir(tmp_path)
    Path(metrics[4]).parent.mkdir(parents=True)
    answers = {f"{number}-{index}": "Ulm" for number in range(8) for index in range(2)}
    Path(metrics[4]).write_text(json.dumps(answers), encoding="utf-8")
    write_squad(Path(metrics[3]))
    assert metrics[:3] == ["python", "-m", squad_metrics.__name__]
    squad_metrics.main(metrics[3:])
    assert json.loads(capsys.readouterr().out)["exact_match"] == 100 / 16

    write_squad(Path(split[2]))
    split[split.index("--dev-articles") + 1] = "3"
    runpy.run_path(str(ROOT / split[1]))["main"](split[2:])
    assert sorted(path.name for path in Path(split[-1]).iterdir()) == ["dev.json", "train.json"]


def parser_of(script):
    """The parser of the command that a program of scripts/ calls."""
    return importlib.import_module(runpy.run_path(str(ROOT / script))["main"].__module__).parser()


def run_block(block, run_cli, directory):
    """What a block of the README prints with this Python in a directory that has what a checkout has."""
    for name in ("preprocess", "scripts", "mae_lm_fairseq"):
        (directory / name).symlink_to(ROOT / name)
    script = directory / "block.sh"
    script.write_text("set -euo pipefail\n" + block)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = run_cli(["/bin/bash", script], cwd=directory, env={"PATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_plan_says_what_the_text_says(run_cli, tmp_path):
    [said] = re.findall(r"relative compute\s\(([\d.]+ %) here\)", README)
    assert f"relative compute: {said.replace(' ', '')} of mae_lm_roberta_base" in run_block(PLAN, run_cli, tmp_path)


@pytest.mark.parametrize("block", SHORT, ids=lambda block: block.split()[1])
def test_short_blocks_run(block, run_cli, tmp_path):
    words = re.findall(r"[a-z]+", README.lower())
    lines = [" ".join(words[start : start + 12]) for start in range(0, len(words), 12)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("\n".join(lines[:9]) + "\n", encoding="utf-8")
    run_block(block.replace("16000", "300"), run_cli, tmp_path)  # for want of text
    assert {file.name for file in (tmp_path / "data-bin").iterdir()} >= {"train.bin", "train.idx", "valid.bin"}

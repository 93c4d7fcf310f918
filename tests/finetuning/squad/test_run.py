"""In-process fine-tuning on questions: initial weights, both versions of SQuAD, and refused inputs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.finetuning import sweep as finetuning
from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.squad import run as squad
from mae_lm_fairseq.finetuning.squad.metrics import evaluate_1_1, evaluate_2_0, gold_answers
from mae_lm_fairseq.finetuning.squad.questions import read_squad
from mae_lm_fairseq.finetuning.squad.run import finetune
from mae_lm_fairseq.utils.errors import UserError
from tests.support.answering import write_squad, write_tokenizer
from tests.support.finetuning import run_here, save_pretrained

pytestmark = pytest.mark.integration  # trains

ARCHITECTURES = ["mae_lm_tiny", "mae_lm_roberta_tiny", "mae_lm_3ml_cross_tiny"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, tokenizer):
    """Create a checkpoint of each architecture, with 64 positions."""
    directory = tmp_path_factory.mktemp("pretrained")
    return {arch: save_pretrained(directory / f"{arch}.pt", tokenizer, arch) for arch in ARCHITECTURES}


@pytest.fixture
def options(tokenizer, checkpoints, tmp_path, monkeypatch):
    """Return options for three updates from MAE-LM, in this process."""

    monkeypatch.setattr(finetuning, "run_all", run_here)
    train, dev = write_squad(tmp_path / "train.json"), write_squad(tmp_path / "dev.json", people=3)
    return SquadOptions(
        train=train,
        dev=dev,
        model=checkpoints["mae_lm_tiny"],
        data_bin=tokenizer,
        out=tmp_path / "out",
        seeds=1,
        max_updates=3,
        learning_rates=[1e-3],
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_finetuning_starts_from_every_pretraining_checkpoint(options, checkpoints, arch):
    content = finetune(replace(options, model=checkpoints[arch]))
    assert content["start"]["_name"] == arch
    assert content == json.loads((options.out / "results.json").read_text())
    assert content["settings"]["tokens_per_sample"] == 64
    [kept] = options.out.glob("runs/*/checkpoints/*.pt")
    saved = torch.load(kept, weights_only=True)
    assert saved["optimizer_history"][-1]["num_updates"] == 3
    assert saved["model"]["classification_heads.span.qa_outputs.weight"].shape == (2, 16)


def test_answers_are_context_slices_whose_scores_are_reported(options):
    content = finetune(replace(options, tokens_per_sample=20, doc_stride=5))
    assert content["data"]["dev"]["strided_contexts"] > 0
    contexts = {
        question.id: paragraph.context
        for paragraph in read_squad(options.dev, version_2=False)
        for question in paragraph.questions
    }
    answers = json.loads((options.out / "predictions.json").read_text())
    assert answers.keys() == contexts.keys()
    assert all(answers[name] and answers[name] in contexts[name] for name in answers)
    official = evaluate_1_1(gold_answers(read_squad(options.dev, version_2=False)), answers)
    assert {name: [value] for name, value in official.items()} == {
        name: summary["values"] for name, summary in content["metrics"].items()
    }


def test_questions_of_2_0_are_left_unanswered_above_the_best_threshold(options, tmp_path):
    dev = write_squad(tmp_path / "dev2.json", version_2=True)
    content = finetune(replace(options, train=dev, dev=dev, version_2=True))
    metrics = {name: summary["values"][0] for name, summary in content["metrics"].items()}
    answers = json.loads((options.out / "predictions.json").read_text())
    official = evaluate_2_0(gold_answers(read_squad(dev, version_2=True)), answers)
    assert official == {name: value for name, value in metrics.items() if not name.startswith("best_")}
    assert official["f1"] == pytest.approx(metrics["best_f1"], rel=1e-12)
    na_prob = json.loads((options.out / "na_prob.json").read_text())
    unanswered = {name for name, answer in answers.items() if not answer}
    assert unanswered == {name for name, value in na_prob.items() if value > metrics["best_f1_thresh"]}
    assert "| 0.001 | HasAns_f1 |" in (options.out / "report.md").read_text()


def test_questions_of_2_0_need_no_mark(options, tmp_path):
    """An empty list of answers says that a question has none."""
    dev = write_squad(tmp_path / "dev2.json", version_2=True)
    content = json.loads(dev.read_text())
    for article in content["data"]:
        for question in article["paragraphs"][0]["qas"]:
            del question["is_impossible"]
    dev.write_text(json.dumps(content))
    assert finetune(replace(options, dev=dev, version_2=True))["metrics"]["NoAns_total"]["values"] == [8]


def test_malformed_questions_are_dropped_and_counted(options):
    """A single one used to stop the fine-tuning; dropped, the metrics are those of the file without it."""
    broken = json.loads(options.dev.read_text())
    paragraph = broken["data"][0]["paragraphs"][0]
    total = sum(len(part["qas"]) for article in broken["data"] for part in article["paragraphs"])
    removed = paragraph["qas"][0]["id"]
    paragraph["qas"][0]["answers"][0]["answer_start"] += 1
    options.dev.write_text(json.dumps(broken))
    with pytest.raises(UserError, match=r"dev\.json: 1 malformed questions: .* --skip-malformed"):
        finetune(options)
    content = finetune(replace(options, skip_malformed=True))
    assert content["data"]["dev"]["malformed_questions"] == 1
    assert content["data"]["dev"]["questions"] == total - 1
    assert "1 malformed questions" in (options.out / "report.md").read_text()
    assert removed not in json.loads((options.out / "predictions.json").read_text())


@pytest.mark.parametrize("name", ["predictions.json", "na_prob.json"])
def test_missing_answers_of_a_finished_run_are_named(options, name):
    content, [folder] = finetune(options), options.out.glob("runs/*")
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{folder / name} is missing; remove {folder}, and the same command trains"):
        finetune(options)
    shutil.rmtree(folder)
    assert finetune(options) == content
    assert (folder / name).read_bytes() == (options.out / name).read_bytes()


def test_random_weights_and_further_options(options):
    content = finetune(
        replace(options, model=Path("mae_lm_tiny"), extra=("--encoder-layers", "1", "--weight-decay", "0.5"))
    )
    assert (content["start"]["from"], content["settings"]["tokens_per_sample"]) == ("random weights", 384)
    [kept] = options.out.glob("runs/*/checkpoints/*.pt")
    cfg = torch.load(kept, weights_only=True)["cfg"]
    assert (cfg["model"]["encoder_layers"], cfg["optimizer"]["weight_decay"]) == (1, 0.5)


def test_base_models_use_the_settings_of_the_paper():
    recipes = [
        squad.for_size(architecture, squad.ROBERTA, squad.OURS)
        for architecture in ("mae_lm_base", "mae_lm", "mae_lm_roberta_large", "mae_lm_roberta_small")
    ]
    assert recipes == [squad.ROBERTA] * 3 + [squad.OURS]
    assert squad.ROBERTA.learning_rates == (1.5e-5,)


def test_wrong_inputs_are_refused_without_leaving_files(options, checkpoints, tmp_path):
    other = write_tokenizer(tmp_path / "other", pieces=150)
    unanswerable = write_squad(tmp_path / "unanswerable.json", version_2=True)
    (tmp_path / "damaged.pt").write_bytes(checkpoints["mae_lm_tiny"].read_bytes()[:5000])
    (tmp_path / "damaged.json").write_bytes(options.train.read_bytes()[:500])
    wrong = {
        "missing.pt: no such file": {"model": tmp_path / "missing.pt"},
        "cannot read the checkpoint": {"model": tmp_path / "damaged.pt"},
        "not the tokenizer of": {"data_bin": other},
        "has no sentencepiece": {"data_bin": tmp_path},
        "missing.json: No such file": {"train": tmp_path / "missing.json"},
        "damaged.json: not JSON": {"dev": tmp_path / "damaged.json"},
        "add --version-2": {"dev": unanswerable},
        "--tokens-per-sample 65: must be from 16 to 64": {"tokens_per_sample": 65},
    }
    for message, changes in wrong.items():
        with pytest.raises(UserError, match=message):
            finetune(replace(options, **changes))
        assert not options.out.exists()


def test_other_options_and_files_train_anew(options, checkpoints):
    first = finetune(options)
    for number, changes in enumerate(
        ({"model": checkpoints["mae_lm_roberta_tiny"]}, {"dev": options.train}, {"doc_stride": 5}), 2
    ):
        finetune(replace(options, **changes))
        assert len([*options.out.glob("runs/*")]) == number
    assert finetune(options) == first
    tuned = next(options.out.glob("runs/*/checkpoints/*.pt"))
    with pytest.raises(UserError, match="has already been fine-tuned on span"):
        finetune(replace(options, model=tuned))

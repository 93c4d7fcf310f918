"""In-process fine-tuning on questions: both versions of SQuAD, and refused inputs."""

import json
from dataclasses import replace

import pytest
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.finetuning.driver import finetune
from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.squad.metrics import evaluate_1_1, evaluate_2_0, gold_answers
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_record
from tests.support.answering import write_squad, write_tokenizer

pytestmark = pytest.mark.integration  # trains


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "data-bin")


@pytest.fixture
def options(three_updates, tmp_path):
    """Return options for three updates from MAE-LM, in this process."""
    train, dev = write_squad(tmp_path / "train.json"), write_squad(tmp_path / "dev.json", people=3)
    return SquadOptions(train=train, dev=dev, **three_updates)


def predicted(directory, model, questions, *more):
    """The answers of ``mae-lm predict``."""
    out = directory / "predicted.json"
    cli.run("predict", list(map(str, [model, "--input", questions, "--out", out, *more])))
    return json.loads(out.read_text())


def without_answers(questions):
    content = json.loads(questions.read_text())
    for paragraph in (part for article in content["data"] for part in article["paragraphs"]):
        for question in paragraph["qas"]:
            del question["answers"]
    questions.with_name("unanswered.json").write_text(json.dumps(content))
    return questions.with_name("unanswered.json")


def test_answers_are_context_slices_whose_scores_are_reported_and_predicted_again(options, tmp_path):
    content = finetune(replace(options, tokens_per_sample=20, doc_stride=5))
    assert content["data"]["dev"]["strided_contexts"] > 0
    assert content == read_record(options.out / "results.json")
    [kept] = options.out.glob("runs/*/checkpoints/*.pt")
    assert torch.load(kept, weights_only=True)["model"]["classification_heads.span.qa_outputs.weight"].shape == (2, 16)
    paragraphs = read_squad(options.dev, version_2=False)
    answers = json.loads((options.out / "predictions.json").read_text())
    assert len(answers) == sum(len(paragraph.questions) for paragraph in paragraphs)
    for paragraph in paragraphs:
        assert all(
            answers[question.id] and answers[question.id] in paragraph.context for question in paragraph.questions
        )
    official = evaluate_1_1(gold_answers(paragraphs), answers)
    assert {name: [value] for name, value in official.items()} == {
        name: summary["values"] for name, summary in content["metrics"].items()
    }
    model = options.out / "model"
    assert predicted(tmp_path, model, without_answers(options.dev)) == answers
    assert predicted(tmp_path, kept, options.dev, "--data-bin", options.data_bin) == answers
    for words in (["--text", "question"], ["--skip-malformed"]):
        with pytest.raises(UserError, match=words[0]):
            predicted(tmp_path, model, options.dev, *words)


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
    assert predicted(tmp_path, options.out / "model", without_answers(dev)) == answers


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


def test_wrong_inputs_are_refused_before_the_training(options, tmp_path):
    unanswerable = write_squad(tmp_path / "unanswerable.json", version_2=True)
    (tmp_path / "damaged.json").write_bytes(options.train.read_bytes()[:500])
    wrong = {
        "missing.json: No such file": {"train": tmp_path / "missing.json"},
        "damaged.json is damaged, or not JSON .*; it must be JSON": {"dev": tmp_path / "damaged.json"},
        "add --version-2": {"dev": unanswerable},
        "--tokens-per-sample 15 must be at least 16": {"tokens_per_sample": 15},
    }
    for message, changes in wrong.items():
        with pytest.raises(UserError, match=message):
            finetune(replace(options, **changes))
        assert not [*options.out.glob("runs/*/result.json")]

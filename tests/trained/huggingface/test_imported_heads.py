"""Models of transformers that were fine-tuned: their predictions from ``mae-lm predict`` and the hub interface."""

import json
from dataclasses import replace

import pandas
import pytest
import torch
import transformers

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.validation import SENTENCE_HEAD
from mae_lm_fairseq.utils.files import read_json
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close
from tests.support.exports import with_facts
from tests.support.families import load_stock, stock_logits
from tests.support.refusals import refused
from tests.support.tokenizers import paragraphs

LABELS = ("no", "perhaps", "yes")
TEXTS = [line[:15] for line in paragraphs(6)]
CLOSE_SCORES = {"rtol": 1e-5, "atol": 2e-5}  # scores of the order of 4, with six digits
CLOSE = 1e-5  # probabilities in single precision, with six digits


@pytest.fixture
def bundle_of(tmp_path):
    """Return a function that imports a directory and returns the bundle."""

    def run(source):
        run_verb("import", source, "--out", tmp_path / "bundle")
        return tmp_path / "bundle"

    return run


def predictions(directory, bundle, columns: dict[str, list[str]], *options) -> pandas.DataFrame:
    pandas.DataFrame(columns).to_csv(directory / "texts.tsv", sep="\t", index=False)
    words = [bundle, "--input", directory / "texts.tsv", "--out", directory / "found.tsv", *options]
    run_verb("predict", *words)
    return pandas.read_csv(directory / "found.tsv", sep="\t")


PAIRS = {"premise": TEXTS, "hypothesis": [text[:8] for text in reversed(TEXTS)]}


@pytest.mark.parametrize(
    ("kind", "columns", "options"),
    [
        ("bert", {"text": TEXTS}, []),
        ("roberta", {"text": TEXTS}, []),
        ("roberta", PAIRS, ["--text", "premise", "--text-pair", "hypothesis"]),
    ],
)
def test_a_classifier_predicts_its_labels(kind, columns, options, stock, bundle_of, tmp_path):
    source = stock(kind, "ForSequenceClassification", labels=LABELS)
    table = predictions(tmp_path, bundle_of(source), columns, *options)
    logits = stock_logits(source, *columns.values())
    probabilities = table[[f"probability_{label}" for label in LABELS]].to_numpy()
    assert_close(torch.tensor(probabilities).float(), logits.softmax(1), CLOSE)
    assert table["prediction"].tolist() == [LABELS[number] for number in logits.argmax(1)]
    export_stock(import_foreign(source, "mae_lm"), tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == dict(enumerate(LABELS))


def predicted_scores(directory, bundle):
    return torch.tensor(predictions(directory, bundle, {"text": TEXTS})[["prediction"]].to_numpy()).float()


def test_a_regression_predicts_its_scores(stock, bundle_of, tmp_path):
    source = stock("roberta", "ForSequenceClassification", num_labels=1)
    scores = predicted_scores(tmp_path, bundle_of(source))
    torch.testing.assert_close(scores, stock_logits(source, TEXTS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_the_scores_of_a_regression_survive_export_and_import(kind, stock, bundle_of, tmp_path):
    """A model trained here gives 0 to 1 inside, and scores in the range of its training file outside."""
    first = bundle_of(stock(kind, "ForSequenceClassification", num_labels=1))
    trained = open_pretrained(first)
    task = replace(trained.about.finetuned_on, columns=("text",), score_range=(1, 5.5))
    trained = with_facts(trained, imported_from=None, finetuned_on=task)
    write_bundle(trained, tmp_path / "trained", add_tokenizer_and_card)
    export_stock(open_pretrained(tmp_path / "trained"), tmp_path / "stock")
    run_verb("import", tmp_path / "stock", "--out", tmp_path / "imported")
    scores = MAELMModel.from_pretrained(first).predict(SENTENCE_HEAD, TEXTS) * 4.5 + 1
    for bundle in ("trained", "imported"):
        torch.testing.assert_close(predicted_scores(tmp_path, tmp_path / bundle), scores, **CLOSE_SCORES)
        torch.testing.assert_close(
            MAELMModel.from_pretrained(tmp_path / bundle).predict(SENTENCE_HEAD, TEXTS), scores, **CLOSE_SCORES
        )
    classify = transformers.pipeline("text-classification", str(tmp_path / "stock"))
    assert [answer["score"] for answer in classify(TEXTS)] == pytest.approx(scores.flatten().tolist(), abs=2e-5)


def test_several_labels_at_once_have_no_prediction(stock, bundle_of, tmp_path):
    source = stock("roberta", "ForSequenceClassification", labels=LABELS, problem_type="multi_label_classification")
    bundle = bundle_of(source)
    with refused("several labels at once, which this command does not"):
        predictions(tmp_path, bundle, {"text": TEXTS})
    hub = MAELMModel.from_pretrained(bundle)
    with pytest.raises(ValueError, match="gives a text several labels at once; pass return_logits=True"):
        hub.predict(SENTENCE_HEAD, TEXTS)
    logits = hub.predict(SENTENCE_HEAD, TEXTS, return_logits=True)
    torch.testing.assert_close(logits, stock_logits(source, TEXTS), **CLOSE_SCORES)


def test_a_classifier_trained_here_loses_the_problem_of_its_original(stock, tmp_path):
    source = stock("roberta", "ForSequenceClassification", labels=LABELS, problem_type="multi_label_classification")
    model = import_foreign(source, "mae_lm")
    export_stock(model, tmp_path / "import")
    export_stock(with_facts(model, imported_from=None), tmp_path / "trained")
    kinds = [transformers.AutoConfig.from_pretrained(tmp_path / name).problem_type for name in ("import", "trained")]
    assert kinds == ["multi_label_classification", None]


def test_questions_are_answered(stock, bundle_of, tmp_path):
    source = stock("roberta", "ForQuestionAnswering")
    bundle = bundle_of(source)
    question, context = TEXTS[0][:8], TEXTS[1]
    article = {"context": context, "qas": [{"id": "1", "question": question}]}
    (tmp_path / "questions.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [article]}]}))
    run_verb("predict", bundle, "--input", tmp_path / "questions.json", "--out", tmp_path / "found.json")
    hub = MAELMModel.from_pretrained(bundle)
    answers = hub.answer(question, context)
    assert read_json(tmp_path / "found.json") == {"1": answers.text}

    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    batch = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, second = batch.pop("offset_mapping")[0], torch.tensor([part == 1 for part in batch.sequence_ids(0)])
    with torch.no_grad():
        output = load_stock(source)(**batch)
    scores = output.start_logits[0, :, None] + output.end_logits[0]
    allowed = (second[:, None] & second).triu()
    start, end = divmod(scores.masked_fill(~allowed, -torch.inf).argmax().item(), len(second))
    assert context[offsets[start][0] : offsets[end][1]].strip() == answers.text

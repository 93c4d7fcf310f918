"""Retrieval, against plain loops and scikit-learn's nDCG."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

from mae_lm_fairseq import cli
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.measures.retrieval import Retrieval, bm25, metrics, summary, windows
from mae_lm_fairseq.text.tokenizer import BOS, EOS
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT
from tests.support.huggingface import save_model


def squad(path: Path, contexts: list[str]) -> Path:
    """Write a file with two questions about each paragraph, one of which has no answer."""
    paragraphs = []
    for number, context in enumerate(contexts):
        answers = [{"text": context[:3], "answer_start": 0}]
        asked = {"id": f"{number}", "question": " ".join(context.split()[-3:]), "answers": answers}
        unanswered = {"id": f"{number} no", "question": "Who?", "answers": [], "is_impossible": True}
        paragraphs.append({"context": context, "qas": [asked, unanswered]})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join("\t".join(row.split("|")) for row in (header, *rows)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def beir(tmp_path) -> dict[str, Path]:
    """Return questions, of which the last has no relevant passage, passages, and their graded relevance."""
    passages = "_id|title|text", "p1||the dog sleeps", "p2|Foxes|the fox jumps the dog", "p3||fox fox", "p4||the the"
    judged = "q1|p1|2", "q1|p2|1", "q1|p3|0", "q2|p3|1", "q2|p2|3"
    return {
        "questions": table(tmp_path / "queries.tsv", "_id|text", "q1|dog sleeps", "q2|fox jumps", "q3|the"),
        "passages": table(tmp_path / "corpus.tsv", *passages),
        "relevance": table(tmp_path / "qrels.tsv", "query-id|corpus-id|score", *judged),
    }


def test_the_passage_with_the_id_of_the_question_is_left_out(tmp_path):
    """As in BEIR, where the questions of some collections are also passages; unless it is relevant."""
    passages = table(tmp_path / "corpus.tsv", "_id|text", "a|grey mice", "b|mice run", "c|coal", "d|trains")
    questions = table(tmp_path / "queries.tsv", "_id|text", "a|grey mice", "c|coal", "x|trains")
    judged = table(tmp_path / "qrels.tsv", "query-id|corpus-id|score", "a|b|1", "c|c|1", "x|d|1")
    collection = Retrieval(questions=questions, passages=passages, relevance=judged).collection()
    assert collection.left_out == [0, None, None]
    means = summary(bm25(collection.passages, collection.questions), collection)
    assert means["ndcg"]["mean"] == means["recall"]["mean"] == 1
    scores, relevance = np.array([2.0, 1.0]), {1: 1.0}
    assert metrics(scores, relevance) != metrics(scores, relevance, left_out=0) == {"ndcg": 1, "recall": 1}


def test_passages_without_a_word_score_0():
    assert bm25(["...", "!!!"], ["???", "cat"])(1).tolist() == [0, 0]


@pytest.mark.integration  # trains the bundle
def test_the_verb_equals_plain_loops(bundles, tmp_path):
    """One window at a time; a long paragraph is windows, of which the best one counts."""
    contexts = [*TEXT, " ".join(TEXT[:12])]
    options = ["--questions", squad(tmp_path / "squad.json", contexts), "--out", tmp_path / "out"]
    cli.run("retrieval", [str(word) for word in (bundles["mae_lm_tiny"], *options)])
    found = json.loads((tmp_path / "out" / "results.json").read_text())["models"]["mae_lm_tiny"]
    reader, questions = open_model(bundles["mae_lm_tiny"], None), [" ".join(text.split()[-3:]) for text in contexts]
    length = found["tokens_per_sample"]

    def vectors(text):
        ids, room = reader.encode(text)[0].tolist(), length - 2
        of_text, start = [], 0
        while not of_text or start + room - room // 2 < len(ids):
            layers = reader.states(torch.tensor([[0, *ids[start : start + room], 2]]), see_masks=False)
            first, last = layers[0].states.numpy(), layers[-1].states.numpy()
            of_text.append({"mean": last.mean(0), "first": last[0], "bag": first.mean(0)})
            start += room // 2
        return of_text

    of_passages, of_questions = [[vectors(text) for text in texts] for texts in (contexts, questions)]
    assert found["windows"] == sum(map(len, of_passages)) > len(contexts)

    def best(question, passage, name):
        return max(cosine(question[0][name], window[name]) for window in passage)

    for name in ("mean", "first", "bag"):
        check(found[name], [[best(question, passage, name) for passage in of_passages] for question in of_questions])
    check(found["bm25"], [[okapi(question, text, contexts) for text in contexts] for question in questions])
    report = (tmp_path / "out" / "report.md").read_text()
    assert f"| mae_lm_tiny | first of the last layer | {found['first']['ndcg']['mean']:.1%} [" in report


def check(found, scores):
    relevance, scores = np.eye(len(scores)), np.array(scores).round(6)
    assert found["ndcg"]["mean"] == pytest.approx(ndcg_score(relevance, scores, k=10, ignore_ties=True))
    assert found["recall"]["mean"] == pytest.approx((scores.argmax(1) == range(len(scores))).mean())
    assert found["ndcg"]["low"] < found["ndcg"]["mean"] < found["ndcg"]["high"]


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def okapi(question, passage, passages):
    """Return the BM25 of a passage with Lucene's inverse document frequency, word by word."""
    split = [re.findall(r"\w+", text.lower()) for text in passages]
    words, mean, score = re.findall(r"\w+", passage.lower()), np.mean([len(words) for words in split]), 0.0
    for word in re.findall(r"\w+", question.lower()):
        having, frequency = sum(word in words for words in split), words.count(word)
        rarity = math.log(1 + (len(passages) - having + 0.5) / (having + 0.5))
        score += rarity * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * len(words) / mean))
    return score


def test_bm25_of_a_worked_example():
    """Two of three passages have "b", which the first one has twice: ln 1.6 * 2 * 2.2 / (2 + 1.2)."""
    scores = bm25(["b b c", "a B d", "a c e"], ["unknown b"])(0)
    assert scores.tolist() == pytest.approx([0.646255, 0.470004, 0], abs=1e-6)


def test_metrics_are_graded_and_ties_are_in_the_order_of_the_file():
    found = metrics(np.array([0.5, 0.9, 0.1, 0.9 + 1e-9]), {0: 2.0, 3: 1.0})
    assert found["recall"] == 0  # of the two that are tied, the first is not relevant
    assert found["ndcg"] == pytest.approx((1 / math.log2(3) + 2 / 2) / (2 + 1 / math.log2(3)))
    generator = np.random.default_rng(0)
    for passages in (3, 30):
        scores, relevance = generator.random(passages), generator.integers(1, 4, passages)
        found = metrics(scores, dict(enumerate(relevance.tolist())))
        assert found["ndcg"] == pytest.approx(ndcg_score([relevance], [scores], k=10))
        assert found["recall"] == pytest.approx(1 / passages)


@pytest.mark.parametrize("length", [4, 5, 16])
def test_windows_overlap_by_half_and_cover_the_text(length, tmp_path):
    reader, words = open_model(save_model(tmp_path / "bert", "bert", list("abcdefghij")), None), list("abcdefghij" * 3)
    room, stride = length - 2, (length - 2) // 2
    for count in range(len(words)):
        parts = windows(reader, " ".join(words[:count]), length)
        assert {(part[0], part[-1]) for part in parts} == {(BOS, EOS)}
        whole = [*parts[0][1:-1], *(token for part in parts[1:] for token in part[1 + room - stride : -1])]
        assert whole == [*reader.encode(" ".join(words[:count]))[0]]
        assert max(map(len, parts)) <= length


def test_tables_are_those_of_beir(beir, tmp_path):
    collection = Retrieval(**beir).collection()
    assert collection.passages == ["the dog sleeps", "Foxes the fox jumps the dog", "fox fox", "the the"]
    assert collection.questions == ["dog sleeps", "fox jumps"]
    assert collection.relevance == [{0: 2.0, 1: 1.0}, {2: 1.0, 1: 3.0}]
    rows = "q1|dog sleeps|p1|2", "q1|dog sleeps|p2|1", "q2|fox jumps|p3|1", "q2|fox jumps|p2|3"
    both = table(tmp_path / "both.tsv", "_id|text|corpus-id|score", *rows)
    assert Retrieval(questions=both, passages=beir["passages"]).collection() == collection


def test_a_study_measures_a_transformers_directory(beir, tmp_path):
    model = save_model(tmp_path / "bert", "bert", ["the", "dog", "sleeps", "fox", "jumps"])
    measure = Retrieval(**beir, tokens_per_sample=16)
    data = Data(None)
    measure.check(data)
    found = measure.measure(ModelToMeasure(label="bert", path=model, data=data))
    assert (found["questions"], found["passages"], found["tokens_per_sample"]) == (2, 4, 16)
    recorded = measure.recorded(found)
    assert [*recorded] == measure.value_names()
    assert recorded["bm25_recall"] == pytest.approx(100 * (1 / 2 + 1 / 2) / 2)
    with pytest.raises(UserError, match="tokens-per-sample 65"):
        Retrieval(**beir, tokens_per_sample=65).measure(ModelToMeasure(label="bert", path=model, data=data))


@pytest.mark.parametrize(
    ("name", "rows", "named"),
    [
        ("corpus", "_id|text p1|a p1|b", "line 3"),
        ("corpus", "_id|text p1| p2|", ""),
        ("corpus", "_id|text p1|a|b", ""),
        ("corpus", "_id|text p1|a |b", "line 3"),
        ("qrels", "query-id|corpus-id q1|p9", "p9"),
        ("qrels", "query-id|corpus-id q9|p1", "q9"),
        ("qrels", "query-id|corpus-id|score q1|p1|high", "high"),
        ("qrels", "query-id|corpus-id|score q1|p1|0", ""),
        ("qrels", "query-id|corpus-id|score q1|p1|nan q2|p2|1", "line 2"),
        ("qrels", "query-id|corpus-id|score q2|p2|1 q1|p1|inf", "line 3"),
        ("qrels", "query-id|corpus-id|score q1|p1| q2|p2|1", "line 2"),
        ("qrels", "q1|p1|1 q2|p2|1", ""),
        ("qrels", "q1|1|1 q2|2|1", "first line"),
        ("queries", "_id|question q1|a", ""),
        ("queries", "_id|text q1|a q2|b q1|c", "line 4"),
    ],
)
def test_files_that_do_not_fit_are_named(name, rows, named, beir, tmp_path):
    table(tmp_path / f"{name}.tsv", *rows.split())
    with pytest.raises(UserError, match=rf"{name}\.tsv.*{named}"):
        Retrieval(**beir).collection()


def test_relevance_needs_passages(beir):
    """Without them, the questions would be read as SQuAD's, and the relevance would not count."""
    with pytest.raises(UserError, match=r"qrels\.tsv: needs --passages"):
        Retrieval(questions=beir["questions"], relevance=beir["relevance"]).collection()


def test_a_table_of_questions_needs_passages(beir):
    with pytest.raises(UserError, match=r"^--questions .*\.tsv: a table needs --passages.* and --relevance if"):
        Retrieval(questions=beir["questions"]).collection()

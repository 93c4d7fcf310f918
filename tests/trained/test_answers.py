import itertools

import pytest
import torch

from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.span_windows import SpanWindows
from mae_lm_fairseq.text.squad import Paragraph, Question
from mae_lm_fairseq.trained.answers import Answers, Candidate, answer_all, best_spans
from tests.text.test_tokenizer import TEXT, train

CONTEXT = "one two three four five six seven eight nine ten eleven twelve thirteen"


@pytest.mark.parametrize("max_answer", [1, 3, 30])
def test_best_spans_equal_exhaustive_search(max_answer):
    torch.manual_seed(1)
    logits, answerable = torch.randn(3, 9, 2), torch.rand(3, 9) < 0.7
    best = best_spans(logits, answerable, max_answer, n_best=12)
    for row in range(3):
        by_hand = []
        for start, end in itertools.product(answerable[row].nonzero()[:, 0].tolist(), repeat=2):
            if start <= end < start + max_answer:
                by_hand.append(((logits[row, start, 0] + logits[row, end, 1]).item(), start, end))
        spans = zip(*(column[row].tolist() for column in best), strict=True)
        assert [span for span in spans if span[0] > -torch.inf] == sorted(by_hand, reverse=True)[:12]


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    tokenizer = SentencePieceTokenizer(
        train(tmp_path_factory.mktemp("decoding") / "a.model", [*TEXT, CONTEXT], vocab_size=80)
    )
    questions = (Question("first", "one?", ()), Question("second", "two?", ()))
    return SpanWindows([Paragraph(CONTEXT, questions)], tokenizer, 32, 8, seed=1)


def batches(windows, order, size):
    """Yield batches whose logits depend only on the position in the context, so that overlapping windows agree."""
    generator = torch.Generator().manual_seed(2)
    context = 5 * torch.randn(len(windows.windows[0].question.context.ids), 2, generator=generator)
    null = torch.randn(len(windows), generator=generator)
    for begin in range(0, len(order), size):
        batch = windows.batch([windows[index] for index in order[begin : begin + size]])
        logits = torch.zeros(*batch["answerable"].shape, 2)
        for row, index in enumerate(batch["id"].tolist()):
            window = windows.windows[index]
            logits[row, 0] = null[index]
            logits[row, window.offset : len(window) - 1] = context[window.begin : window.end]
        yield batch, logits


def test_answers_of_all_windows_are_merged(windows):
    order = list(range(len(windows)))
    answers = answer_all(batches(windows, order, 3), windows)
    assert list(answers) == ["first", "second"]
    assert all(len(window.question.context.ids) > window.end - window.begin for window in windows.windows)
    # Both questions have the same context, and therefore the same candidates.
    assert answers["first"].candidates == answers["second"].candidates
    texts, begins, ends, scores = zip(*answers["first"].candidates, strict=True)
    assert len(set(zip(begins, ends, strict=True))) == len(texts) == 20
    assert list(scores) == sorted(scores, reverse=True)
    assert list(texts) == [CONTEXT[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert all(texts)

    again = answer_all(batches(windows, order[::-1], 5), windows)
    assert again == answers


def test_the_score_of_no_answer_is_the_lowest_of_all_windows(windows):
    everything = list(batches(windows, list(range(len(windows))), 1))
    answers_of_questions = answer_all(iter(everything), windows)
    scores = {"first": [], "second": []}
    for batch, logits in everything:
        question = windows.windows[batch["id"].item()].question
        scores[question.id].append(logits[0, 0].sum().item())
    for name, answers in answers_of_questions.items():
        assert len(scores[name]) > 1
        assert answers.null_score == min(scores[name])


def test_the_probability_of_no_answer():
    answers = Answers([Candidate("a", 0, 1, 2.0), Candidate("b", 1, 2, 1.0)], null_score=3.0)
    assert answers.text == "a"
    assert answers.no_answer_probability == pytest.approx(1 / (1 + 2.718281828459045**-1), rel=1e-12)
    assert Answers([], 0.0).text == ""
    assert Answers([], 0.0).no_answer_probability == 1.0

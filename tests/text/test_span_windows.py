import numpy as np
import pytest

from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.span_windows import SpanWindows
from mae_lm_fairseq.text.squad import Answer, Paragraph, Question
from mae_lm_fairseq.text.tokenizer import BOS, EOS, PAD
from tests.text.test_tokenizer import TEXT, train

WORDS = [f"w{number}" for number in range(60)]
CONTEXT = " ".join(WORDS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return SentencePieceTokenizer(
        train(tmp_path_factory.mktemp("windows") / "a.model", [*TEXT, CONTEXT], vocab_size=80)
    )


def question(answer=None, text="which one is it?", name="q"):
    answers = (Answer(answer, CONTEXT.index(answer)),) if answer else ()
    return Question(name, text, answers)


def windows(tokenizer, *questions, context=CONTEXT, tokens=48, stride=10):
    return SpanWindows([Paragraph(context, questions)], tokenizer, tokens, stride, seed=1)


def test_a_sample_is_laid_out_as_a_sentence_pair(tokenizer):
    dataset = windows(tokenizer, question("w1"), context="w0 w1 w2")
    asked, text = tokenizer.encode_lines(["which one is it?", "w0 w1 w2"])
    expected = [BOS, *asked, EOS, EOS, *text, EOS]
    assert dataset[0]["tokens"].tolist() == expected
    is_context = [False] * (len(asked) + 3) + [True] * len(text) + [False]
    assert dataset[0]["answerable"].tolist() == is_context
    assert dataset.sizes.tolist() == [len(expected)]


@pytest.mark.parametrize("answer", ["w0", "w7 w8 w9", "w59", "w33 w34"])
@pytest.mark.parametrize("stride", [1, 10, 1000])
def test_windows_cover_the_context_and_targets_decode_to_the_answer(tokenizer, answer, stride):
    dataset = windows(tokenizer, question(answer), stride=stride)
    assert max(dataset.sizes) == 48
    assert dataset.counts["windows"] == len(dataset) > 1
    assert dataset.counts["strided_contexts"] == 1
    starts = [window.begin for window in dataset.windows]
    room = dataset.windows[0].end
    assert starts == list(range(0, starts[-1] + 1, min(stride, room)))
    covered = np.concatenate([np.arange(window.begin, window.end) for window in dataset.windows])
    pieces = len(tokenizer.encode_lines([CONTEXT])[0])
    assert set(covered) == set(range(pieces))
    assert dataset.windows[-1].end == pieces > dataset.windows[-2].end

    with_answer = [index for index, window in enumerate(dataset.windows) if window.target() != (0, 0)]
    assert dataset.counts["without_answer"] == len(dataset) - len(with_answer)
    for index in with_answer:
        start, end = dataset[index]["target"].tolist()
        begin, finish = dataset.windows[index].slice_of_context(start, end)
        assert CONTEXT[begin:finish] == answer
    if stride < 1000:
        assert with_answer


def test_an_answer_cut_by_a_window_is_not_a_target(tokenizer):
    dataset = windows(tokenizer, question(" ".join(WORDS[:50])))
    assert {window.target() for window in dataset.windows} == {(0, 0)}
    assert dataset.counts["without_answer"] == len(dataset)


@pytest.mark.parametrize(("context", "is_answerable"), [("w0 w1 w2", True), (" \n", False)])
def test_no_answer_is_the_first_token(tokenizer, context, is_answerable):
    """An empty context has one window without answerable positions."""
    dataset = windows(tokenizer, question(), context=context)
    assert len(dataset) == 1
    assert dataset[0]["target"].tolist() == [0, 0]
    assert dataset[0]["answerable"].any() == is_answerable


def test_long_questions_are_truncated_and_counted(tokenizer):
    dataset = windows(tokenizer, question("w1"), question("w1", "so " * 200, "long"), context="w0 w1 w2")
    assert dataset.counts == {
        "questions": 2,
        "windows": 2,
        "cut_questions": 1,
        "strided_contexts": 0,
        "without_answer": 0,
    }
    assert len(dataset.windows[1].question.ids) == 22  # half of 48 tokens minus four special tokens


def test_batches_are_padded(tokenizer):
    dataset = windows(tokenizer, question("w1"), context="w0 w1 w2")
    longer = windows(tokenizer, question("w1"), context="w0 w1 w2 w3 w4")
    batch = dataset.batch([dataset[0], longer[0]])
    tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"]
    assert lengths.tolist() == [dataset.sizes[0], longer.sizes[0]] == tokens.ne(PAD).sum(1).tolist()
    assert batch["answerable"].shape == tokens.shape
    assert not (batch["answerable"] & tokens.eq(PAD)).any()
    assert batch["ntokens"] == sum(lengths)


def test_the_order_is_shuffled_by_the_seed_alone(tokenizer):
    first, second = (windows(tokenizer, question("w1")).order for _ in range(2))
    assert first.tolist() == second.tolist() != sorted(first)
    assert sorted(first) == list(range(len(first)))

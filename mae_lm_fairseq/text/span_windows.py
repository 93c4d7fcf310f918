"""Sequences for question answering: ``<s> question </s> </s> context </s>``, long contexts in overlapping windows.

The layout is that of sentence pairs in RoBERTa's fine-tuning (``--init-token 0 --separator-token 2`` of fairseq's
``sentence_prediction``), and of Hugging Face's RoBERTa and MPNet tokenizers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from mae_lm_fairseq.text.offsets import encode_with_spans
from mae_lm_fairseq.text.squad import Paragraph, Question
from mae_lm_fairseq.text.tokenizer import BOS, EOS, Tokenizer
from mae_lm_fairseq.text.windows import Windows
from mae_lm_fairseq.utils.errors import UserError

TOKENS_PER_SAMPLE, DOC_STRIDE = 384, 128
"""Maximum sequence length and window stride of BERT and RoBERTa, in tokens."""
MAX_QUESTION = 64
"""Maximum question length in subwords; longer ones are truncated, as in BERT's recipe (Devlin et al., 2019)."""
SPECIAL_TOKENS = 4
MIN_SAMPLE = 16
"""Minimum of ``tokens_per_sample``: leaves room for a question and a context."""


class Context(NamedTuple):
    """A text, its token ids, and the character span of each token, [tokens, 2]."""

    text: str
    ids: np.ndarray
    spans: np.ndarray


class EncodedQuestion(NamedTuple):
    """A tokenized question; ``answer`` is the first and last token of its answer in the context."""

    id: str
    ids: np.ndarray
    context: Context
    answer: tuple[int, int] | None


@dataclass(frozen=True)
class Window:
    """The tokens from ``begin`` up to ``end`` (exclusive) of a question's context."""

    question: EncodedQuestion
    begin: int
    end: int

    def __len__(self) -> int:
        return self.offset + self.end - self.begin + 1

    @property
    def offset(self) -> int:
        """Position of the window's first context token in the sequence."""
        return len(self.question.ids) + SPECIAL_TOKENS - 1

    def tokens(self) -> np.ndarray:
        """Return the sequence, int64 [length]."""
        context = self.question.context.ids[self.begin : self.end]
        return np.concatenate(([BOS], self.question.ids, [EOS, EOS], context, [EOS])).astype(np.int64)

    def target(self) -> tuple[int, int]:
        """Return the positions of the answer's start and end; (0, 0), ``<s>``, unless the window contains all of it."""
        first, last = self.question.answer or (-1, -1)
        if first < self.begin or last >= self.end:
            return 0, 0
        shift = self.offset - self.begin
        return first + shift, last + shift

    def answerable(self) -> np.ndarray:
        """Return where an answer may start or end, bool [length]: at context tokens with a non-empty character span."""
        spans = self.question.context.spans[self.begin : self.end]
        before = np.zeros(self.offset, dtype=bool)
        return np.concatenate((before, spans[:, 0] < spans[:, 1], [False]))

    def slice_of_context(self, start: int, end: int) -> tuple[int, int]:
        """Return the character span in the context of the tokens at positions ``start`` to ``end``."""
        shift = self.begin - self.offset
        spans = self.question.context.spans
        return int(spans[start + shift, 0]), int(spans[end + shift, 1])


class SpanWindows(Windows):
    """Windows of all questions of some paragraphs.

    Epochs iterate over the windows in an order shuffled by ``seed``.

    Args:
        tokens_per_sample: maximum sequence length, special tokens included.
        doc_stride: distance between the starts of successive windows of a context, in tokens; reduced to the length of
            a window if it is larger, so that windows leave no gaps.

    Attributes:
        counts: numbers of questions, windows, truncated questions, contexts that needed several windows, and windows
            that do not contain the answer, by name.

    Raises:
        UserError: if sequences have no room for a question and a context.
    """

    def __init__(
        self, paragraphs: list[Paragraph], tokenizer: Tokenizer, tokens_per_sample: int, doc_stride: int, seed: int
    ):
        if tokens_per_sample < MIN_SAMPLE or doc_stride < 1:
            raise UserError(
                f"--tokens-per-sample {tokens_per_sample} must be at least {MIN_SAMPLE}, and --doc-stride {doc_stride} "
                "at least 1"
            )
        # A question may take at most half of the space.
        self.longest_question = min(MAX_QUESTION, (tokens_per_sample - SPECIAL_TOKENS) // 2)
        self.tokens_per_sample = tokens_per_sample
        self.doc_stride = doc_stride
        self.counts = dict.fromkeys(("questions", "windows", "cut_questions", "strided_contexts", "without_answer"), 0)
        self.windows = []
        for paragraph in paragraphs:
            self.windows += self._windows(paragraph, tokenizer)
        self.counts["windows"] = len(self.windows)
        targets = [window.target() for window in self.windows]
        self.counts["without_answer"] = targets.count((0, 0))
        self.sizes = np.array([len(window) for window in self.windows])
        self.order = np.random.RandomState(seed).permutation(len(self.windows))

    def _windows(self, paragraph: Paragraph, tokenizer: Tokenizer) -> Iterator[Window]:
        context = Context(paragraph.context, *encode_with_spans(tokenizer, paragraph.context))
        length = len(context.ids)
        encoded = tokenizer.encode_lines([question.text for question in paragraph.questions])
        for question, ids in zip(paragraph.questions, encoded, strict=True):
            shortened = ids[: self.longest_question]
            answer = _tokens_of_answer(question, context.spans)
            encoded_question = EncodedQuestion(question.id, shortened, context, answer)
            room = self.tokens_per_sample - SPECIAL_TOKENS - len(shortened)
            step = min(self.doc_stride, room)
            begins = range(0, max(1, length - room + step), step)
            windows = [Window(encoded_question, begin, min(begin + room, length)) for begin in begins]
            self.counts["questions"] += 1
            self.counts["cut_questions"] += len(ids) > self.longest_question
            self.counts["strided_contexts"] += len(windows) > 1
            yield from windows

    def __getitem__(self, index: int) -> dict:
        window = self.windows[index]
        return {
            "id": index,
            "tokens": torch.from_numpy(window.tokens()),
            "target": torch.tensor(window.target()),
            "answerable": torch.from_numpy(window.answerable()),
        }

    def batch_targets(self, samples: Sequence[dict]) -> dict:
        """Return ``target`` [B, 2], and ``answerable`` [B, T] bool."""
        targets = [sample["target"] for sample in samples]
        answerable = [sample["answerable"] for sample in samples]
        return {"target": torch.stack(targets), "answerable": pad_sequence(answerable, batch_first=True)}


def _tokens_of_answer(question: Question, spans: np.ndarray) -> tuple[int, int] | None:
    """Return the first and last token of the first answer; None if there is none."""
    if not question.answers:
        return None
    text, start = question.answers[0]
    begins_before_end = spans[:, 0] < start + len(text)
    ends_after_start = spans[:, 1] > start
    tokens = (begins_before_end & ends_after_start).nonzero()[0]
    if not len(tokens):
        return None
    return int(tokens[0]), int(tokens[-1])

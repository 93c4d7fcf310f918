"""Answers to questions by a model that was fine-tuned on SQuAD.

Start and end logits are decoded as in BERT's recipe for SQuAD 1.1 and 2.0 (Devlin et al., 2019).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mae_lm_fairseq.text.span_windows import DOC_STRIDE, MIN_SAMPLE, TOKENS_PER_SAMPLE, SpanWindows, Window
from mae_lm_fairseq.text.squad import Paragraph, read_squad
from mae_lm_fairseq.trained.info import AnswerTask
from mae_lm_fairseq.trained.logits import batch_logits, by_length, with_progress
from mae_lm_fairseq.trained.validation import ANSWER_HEAD
from mae_lm_fairseq.utils.files import write_json

BATCH = 32
N_BEST = 20
MAX_ANSWER = 30
"""Maximum length of an answer in subwords."""
NO_ANSWER = 0
"""Position of ``<s>``, which is start and end of the answer "no answer"."""
EVEN_CHANCE = 0.5
"""Threshold for no answer where that of the development set is not known."""


class Candidate(NamedTuple):
    """The characters from ``begin`` to ``end`` of a context, scored by the sum of the start and end logits."""

    text: str
    begin: int
    end: int
    score: float


@dataclass
class Answers:
    """Answers to a question, collected from all of its windows.

    Attributes:
        candidates: at most ``N_BEST`` spans of the context, best first; empty if the context has no text.
        null_score: the score of "no answer": the minimum over the windows.
    """

    candidates: list[Candidate] = field(default_factory=list)
    null_score: float = float("inf")

    @property
    def text(self) -> str:
        """The best answer; empty if there are no candidates."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def no_answer_probability(self) -> float:
        """Probability of "no answer" against the best answer: the sigmoid of the difference of their scores."""
        if not self.candidates:
            return 1.0
        difference = self.null_score - self.candidates[0].score
        return torch.tensor(difference, dtype=torch.float64).sigmoid().item()


def best_spans(logits: Tensor, answerable: Tensor, max_answer: int = MAX_ANSWER, n_best: int = N_BEST):
    """Return the best spans of each sequence of a batch.

    A span starts and ends at answerable tokens, does not end before it starts, and has at most ``max_answer`` tokens.

    Args:
        logits: [B, T, 2] of start and end.
        answerable: [B, T] bool.

    Returns:
        scores [B, N], the sums of the two logits, -inf for invalid spans; starts and ends [B, N]. N is ``n_best``, or
        the number of token pairs T * T if that is smaller.
    """
    logits = logits.float().masked_fill(~answerable[..., None], -torch.inf)
    start, end = logits.unbind(-1)
    scores = start[:, :, None] + end[:, None, :]
    length = start.shape[1]
    allowed = torch.ones_like(scores[0], dtype=torch.bool).triu().tril(max_answer - 1)
    scores = scores.masked_fill(~allowed, -torch.inf).flatten(1)
    count = min(n_best, scores.shape[1])
    scores, pairs = scores.topk(count, dim=1)
    return scores, pairs // length, pairs % length


@torch.no_grad()
def answer_all(batches: Iterator[tuple[dict, Tensor]], windows: SpanWindows) -> dict[str, Answers]:
    """Return the answers to all questions by id, in the order of the data set.

    Each window is in one of the batches, in any order, with its logits [B, T, 2].
    """
    answers = {window.question.id: Answers() for window in windows.windows}
    for batch, logits in batches:
        answerable = batch["answerable"].to(logits.device)
        null_scores = logits[:, NO_ANSWER].float().sum(-1)
        columns = (batch["id"], null_scores, *best_spans(logits, answerable))
        for index, null_score, *spans in zip(*(column.tolist() for column in columns), strict=True):
            window = windows.windows[index]
            answer = answers[window.question.id]
            answer.null_score = min(answer.null_score, null_score)
            answer.candidates += _candidates(window, *spans)
    for answer in answers.values():
        answer.candidates = _best(answer.candidates)
    return answers


def _candidates(window: Window, scores: list[float], starts: list[int], ends: list[int]) -> Iterator[Candidate]:
    """Yield the valid ones of the spans of a window."""
    for score, start, end in zip(scores, starts, ends, strict=True):
        if score > -torch.inf:
            begin, end = window.slice_of_context(start, end)
            yield Candidate(window.question.context.text[begin:end], begin, end, score)


def _best(candidates: list[Candidate]) -> list[Candidate]:
    """Return the best candidate of each span: overlapping windows, and several subwords of one character, repeat some.

    Ties are broken by position, so that the order of the batches does not matter.
    """
    by_span = {}
    for candidate in sorted(candidates, key=lambda candidate: (-candidate.score, candidate.begin, candidate.end)):
        by_span.setdefault((candidate.begin, candidate.end), candidate)
    return list(by_span.values())[:N_BEST]


def answers_to(
    model: torch.nn.Module, paragraphs: list[Paragraph], progress: Callable[[Sequence], Iterable] = iter
) -> dict[str, Answers]:
    """Return the answers of a fine-tuned model's hub interface by id; sequences are those of the fine-tuning."""
    task = task_of(model)
    length = max(task.tokens_per_sample, MIN_SAMPLE)
    length = min(length, model.model.max_positions())
    windows = SpanWindows(paragraphs, model.tokenizer, length, task.doc_stride, seed=0)
    batches = progress(by_length(windows.sizes, BATCH))
    outputs = batch_logits(model.model, windows, windows.batch, batches, ANSWER_HEAD)
    return answer_all(((batch, logits) for _, batch, logits in outputs), windows)


def task_of(model: torch.nn.Module) -> AnswerTask:
    """Return the settings of a model's fine-tuning, or the usual ones if it does not know them, as after an import."""
    task = model.about.finetuned_on
    if isinstance(task, AnswerTask):
        return task
    return AnswerTask(TOKENS_PER_SAMPLE, DOC_STRIDE, version_2=False)


def answer_file(model: torch.nn.Module, source: Path, out: Path):
    """Write the answers of a fine-tuned model's hub interface as the JSON that SQuAD's official scripts read.

    After SQuAD 2.0 an answer is empty if no answer is more probable than the threshold that was best for the
    development set.

    Raises:
        UserError: if the questions are not in SQuAD's format, or the file cannot be written.
    """
    paragraphs = read_squad(source, version_2=True, with_answers=False)
    answers = answers_to(model, paragraphs, with_progress)
    threshold = math.inf
    if task_of(model).version_2:
        scores = model.about.development_set or {}
        threshold = scores.get("best_f1_thresh", EVEN_CHANCE)
    texts = {}
    for name, answer in answers.items():
        texts[name] = "" if answer.no_answer_probability > threshold else answer.text
    write_json(out, texts)

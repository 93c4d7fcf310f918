"""Decoding of start and end logits to answers, as in BERT's recipe for SQuAD 1.1 and 2.0 (Devlin et al., 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mae_lm_fairseq.finetuning.squad.windows import SpanWindows

N_BEST = 20
MAX_ANSWER = 30
"""Maximum length of an answer in subwords."""
NO_ANSWER = 0
"""Position of ``<s>``, which is start and end of the answer "no answer"."""


@dataclass(frozen=True)
class Candidate:
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

    def probabilities(self) -> list[float]:
        """Return the probabilities of the candidates: the softmax of their scores."""
        scores = torch.tensor([candidate.score for candidate in self.candidates], dtype=torch.float64)
        return scores.softmax(0).tolist()


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
    start, end = logits.float().masked_fill(~answerable[..., None], -torch.inf).unbind(-1)
    length = start.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu().tril(max_answer - 1)
    scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, -torch.inf).flatten(1)
    scores, pairs = scores.topk(min(n_best, length * length), dim=1)
    return scores, pairs // length, pairs % length


@torch.no_grad()
def answer_all(logits_of_batches: Iterator[tuple[dict, Tensor]], windows: SpanWindows) -> dict[str, Answers]:
    """Return the answers to all questions by id, in the order of the data set.

    Args:
        logits_of_batches: batches of windows with their logits [B, T, 2]; each window once, in any order.
        windows: the windows of all questions.
    """
    answers = {window.question.id: Answers() for window in windows.windows}
    for batch, logits in logits_of_batches:
        null_scores = logits[:, NO_ANSWER].float().sum(-1).tolist()
        spans = (each.tolist() for each in best_spans(logits, batch["answerable"]))
        for index, null_score, *of_window in zip(batch["id"].tolist(), null_scores, *spans, strict=True):
            window = windows.windows[index]
            found = answers[window.question.id]
            found.null_score = min(found.null_score, null_score)
            for score, start, end in zip(*of_window, strict=True):
                if score > -torch.inf:
                    begin, end = window.slice_of_context(start, end)
                    text = window.question.context.text[begin:end]
                    found.candidates.append(Candidate(text, begin, end, score))
    for found in answers.values():
        found.candidates = _best_of_each_slice(found.candidates)
    return answers


def _best_of_each_slice(candidates: list[Candidate]) -> list[Candidate]:
    """Sort by score and drop duplicate spans (from overlapping windows, or several subwords of one character)."""
    best = {}
    # Break ties by position, so that the order of the batches does not matter.
    for candidate in sorted(candidates, key=lambda each: (-each.score, each.begin, each.end)):
        best.setdefault((candidate.begin, candidate.end), candidate)
    return list(best.values())[:N_BEST]

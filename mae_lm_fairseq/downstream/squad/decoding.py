"""From the logits of start and end to answers, as in BERT's recipe for SQuAD 1.1 and 2.0 (Devlin et al., 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mae_lm_fairseq.downstream.squad.windows import SpanWindows

N_BEST = 20
MAX_ANSWER = 30
"""Longest answer in pieces."""
NO_ANSWER = 0
"""The token ``<s>``, at which an answer starts and ends that is not there."""


@dataclass(frozen=True)
class Candidate:
    """The characters from ``begin`` to ``end`` of a context, with the sum of the logits of start and end."""

    text: str
    begin: int
    end: int
    score: float


@dataclass
class Answers:
    """What was found in all windows of a question.

    Attributes:
        candidates: the best slices of the context, the best one first, at most ``N_BEST``; empty where the context has
            no text.
        null_score: the score of "no answer", the lowest that a window gave it.
    """

    candidates: list[Candidate] = field(default_factory=list)
    null_score: float = float("inf")

    @property
    def text(self) -> str:
        """The best answer; empty where there is none."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def no_answer_probability(self) -> float:
        """That of "no answer" against the best answer: the logistic function of the difference of their scores."""
        if not self.candidates:
            return 1.0
        difference = self.null_score - self.candidates[0].score
        return torch.tensor(difference, dtype=torch.float64).sigmoid().item()

    def probabilities(self) -> list[float]:
        """Of the candidates, against each other."""
        scores = torch.tensor([candidate.score for candidate in self.candidates], dtype=torch.float64)
        return scores.softmax(0).tolist()


def best_spans(logits: Tensor, answerable: Tensor, max_answer: int = MAX_ANSWER, n_best: int = N_BEST):
    """The best slices of each sample of a batch.

    A slice starts and ends where an answer may, does not end before it starts, and has ``max_answer`` tokens at most.

    Args:
        logits: [B, T, 2] of start and end.
        answerable: [B, T] bool.

    Returns:
        scores [B, N], the sums of the two logits, -inf for slices that there are not; starts and ends [B, N]; N is
        ``n_best``, or less where a sample has no more pairs of tokens.
    """
    start, end = logits.float().masked_fill(~answerable[..., None], -torch.inf).unbind(-1)
    length = start.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu().tril(max_answer - 1)
    scores = (start[:, :, None] + end[:, None, :]).masked_fill(~allowed, -torch.inf).flatten(1)
    scores, places = scores.topk(min(n_best, length * length), dim=1)
    return scores, places // length, places % length


@torch.no_grad()
def answer_all(logits_of_batches: Iterator[tuple[dict, Tensor]], windows: SpanWindows) -> dict[str, Answers]:
    """The answers to all questions, by id, in the order of the data set.

    Args:
        logits_of_batches: batches of the windows, each once and in any order, with their logits [B, T, 2].
        windows: of the questions.
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
    """Sorted by score, each slice once, although several windows, or pieces of one character, gave it."""
    best = {}
    # By place where scores are equal, so that the order of the batches does not matter.
    for candidate in sorted(candidates, key=lambda each: (-each.score, each.begin, each.end)):
        best.setdefault((candidate.begin, candidate.end), candidate)
    return list(best.values())[:N_BEST]

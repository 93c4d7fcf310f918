"""Reader for the JSON of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018)."""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """An answer: ``text`` at character ``start`` of its context."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question; if it has no answers, it cannot be answered from its context."""

    id: str
    text: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Paragraph:
    """A text and the questions about it."""

    context: str
    questions: tuple[Question, ...]


_MAX_SHOWN = 100


def read_squad(
    path: str | Path, version_2: bool, with_answers: bool = True, skip_malformed: bool = False
) -> list[Paragraph]:
    """Read and validate a file in SQuAD's format.

    Args:
        path: the file.
        version_2: whether questions without an answer are allowed.
        with_answers: whether to read the answers. A test file may have none, or empty ones that are not marked.
        skip_malformed: drop and log malformed questions.

    Raises:
        UserError: if the file is invalid. The message lists article, paragraph, question and problem of the malformed
            questions: a missing key, a value of the wrong type, an answer that is not at ``answer_start``, a duplicate
            id, a question without an answer, or a question that has answers but is marked as impossible.
    """
    seen, malformed = set(), []
    paragraphs = [
        _read_paragraph(paragraph, version_2, with_answers, seen, malformed)
        for article in _Node(read_json(path), str(path)).list("data", "article")
        for paragraph in article.list("paragraphs", "paragraph")
    ]
    if malformed:
        shown = "; ".join(problem.removeprefix(f"{path}, ") for problem in malformed[:_MAX_SHOWN])
        more = f"; and {len(malformed) - _MAX_SHOWN} more" if len(malformed) > _MAX_SHOWN else ""
        message = f"{path}: {len(malformed)} malformed questions: {shown}{more}"
        if not skip_malformed:
            raise UserError(f"{message}; correct the file, or drop them (mae-lm finetune squad --skip-malformed)")
        logger.warning("%s; dropped", message)
    if not seen:
        raise UserError(f"{path}: has no questions")
    return paragraphs


def read_json(path: str | Path):
    """Return the content of a JSON file.

    Raises:
        UserError: if the file cannot be read or is not JSON.
    """
    content = read_bytes(path)
    try:
        return json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON in UTF-8 ({error})") from None


class _Node:
    """A JSON object with its position in the file, for error messages."""

    def __init__(self, content, place: str):
        self.content, self.place = content, place

    def error(self, problem: str) -> UserError:
        return UserError(f"{self.place}: {problem}")

    def get(self, key: str, kind: type):
        if not isinstance(self.content, dict):
            raise self.error(f"must be a JSON object with the key '{key}', as in SQuAD's format")
        if key not in self.content:
            raise self.error(f"lacks the key '{key}' of SQuAD's format")
        value = self.content[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(f"'{key}' must be of type {kind.__name__}, not {type(value).__name__}")
        return value

    def text(self, key: str) -> str:
        text = self.get(key, str)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.error(f"'{key}' contains an unpaired surrogate, which is not a character") from None
        return text

    def list(self, key: str, name: str) -> Iterator["_Node"]:
        for number, item in enumerate(self.get(key, list), 1):
            yield _Node(item, f"{self.place}, {name} {number}")


def _read_paragraph(
    node: _Node, version_2: bool, with_answers: bool, seen: set[str], malformed: list[str]
) -> Paragraph:
    """Return a paragraph without malformed questions, whose problems are appended to ``malformed``."""
    context = node.text("context")
    questions = []
    for number, item in enumerate(node.list("qas", "question"), 1):
        try:
            question = _read_question(item, context, with_answers)
            if question.id in seen:
                raise item.error(f"the id {question.id} occurs twice; ids must be unique")
        except UserError as error:
            malformed.append(str(error))
            continue
        if with_answers and not question.answers and not version_2:
            place = f"{node.place}, question {number} ({question.id})"
            raise UserError(f"{place}: has no answer; add --version-2 for SQuAD 2.0")
        seen.add(question.id)
        questions.append(question)
    return Paragraph(context, tuple(questions))


def _read_question(node: _Node, context: str, with_answers: bool) -> Question:
    name = node.text("id")
    node = _Node(node.content, f"{node.place} ({name})")
    if not with_answers:
        return Question(name, node.text("question"), ())
    answers = tuple(_read_answer(answer, context) for answer in node.list("answers", "answer"))
    impossible = node.get("is_impossible", bool) if "is_impossible" in node.content else not answers
    if impossible and answers:
        raise node.error("is marked as impossible, but has answers")
    if not impossible and not answers:
        raise node.error("has no answer, but is not marked as impossible")
    return Question(name, node.text("question"), answers)


def _read_answer(node: _Node, context: str) -> Answer:
    answer = Answer(node.text("text"), node.get("answer_start", int))
    if not answer.text.strip():
        raise node.error("has no text")
    end = answer.start + len(answer.text)
    if answer.start < 0 or context[answer.start : end] != answer.text:
        raise node.error(f"{answer.text!r} is not in the context where 'answer_start' {answer.start} points")
    return answer

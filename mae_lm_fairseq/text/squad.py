"""Reader for the JSON of SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016 and 2018)."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import parse_json, read_bytes

logger = logging.getLogger(__name__)

_MAX_SHOWN = 100


class Answer(NamedTuple):
    """An answer: ``text`` at character ``start`` of its context."""

    text: str
    start: int


class Question(NamedTuple):
    """A question; if it has no answers, it cannot be answered from its context."""

    id: str
    text: str
    answers: tuple[Answer, ...]


class Paragraph(NamedTuple):
    """A text and the questions about it."""

    context: str
    questions: tuple[Question, ...]


def read_squad(
    path: str | Path, version_2: bool, with_answers: bool = True, skip_malformed: bool = False
) -> list[Paragraph]:
    """Read and validate a file in SQuAD's format.

    Args:
        version_2: whether questions without an answer are allowed.
        with_answers: whether to read the answers. A test file may have none, or empty ones that are not marked.
        skip_malformed: drop and log malformed questions.

    Raises:
        UserError: if the file is invalid. The message lists article, paragraph, question and problem of the malformed
            questions: a missing key, a value of the wrong type, an answer that is not at ``answer_start``, a duplicate
            id, a question without an answer, or a question that has answers but is marked as impossible.
    """
    # Not read_json, which reads 64 MB only: this may be a large data set of the user's.
    articles = parse_json(read_bytes(path), path, _articles, "it must be JSON in SQuAD's format")
    paragraphs, malformed, seen = [], [], set()
    for number, article in enumerate(articles, 1):
        for index, (context, items) in enumerate(article, 1):
            place = f"article {number}, paragraph {index}"
            questions = []
            for item in items:
                try:
                    question = _question(item, context, with_answers)
                    if question.id in seen:
                        raise ValueError("the id occurs twice; ids must be unique")
                except (LookupError, TypeError, ValueError) as error:
                    name = item.get("id") if isinstance(item, dict) else item
                    problem = f"lacks the key {error}" if isinstance(error, KeyError) else error
                    malformed.append(f"{place}, question {name!r:.80}: {problem}")
                    continue
                if with_answers and not question.answers and not version_2:
                    raise UserError(f"{path}, {place}, {question.id}: has no answer; add --version-2 for SQuAD 2.0")
                seen.add(question.id)
                questions.append(question)
            paragraphs.append(Paragraph(context, tuple(questions)))
    if malformed:
        shown = malformed[:_MAX_SHOWN]
        if len(malformed) > _MAX_SHOWN:
            shown.append(f"and {len(malformed) - _MAX_SHOWN} more")
        message = f"{path}: {len(malformed)} malformed questions: {'; '.join(shown)}"
        if not skip_malformed:
            raise UserError(f"{message}; correct the file, or drop them (mae-lm finetune squad --skip-malformed)")
        logger.warning("%s; dropped", message)
    if not seen:
        raise UserError(f"{path}: has no questions")
    return paragraphs


def _articles(content: Any) -> list[list[tuple[str, list[Any]]]]:
    articles = []
    for article in content["data"]:
        paragraphs = article["paragraphs"]
        articles.append([(_text(paragraph["context"]), list(paragraph["qas"])) for paragraph in paragraphs])
    return articles


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a text")
    value.encode()  # fails for an unpaired surrogate, which is not a character
    return value


def _question(item: Any, context: str, with_answers: bool) -> Question:
    name, text = _text(item["id"]), _text(item["question"])
    if not with_answers:
        return Question(name, text, ())
    answers = []
    for answer in item["answers"]:
        expected, start = _text(answer["text"]), answer["answer_start"]
        is_position = type(start) is int and start >= 0
        if not expected.strip() or not is_position or not context.startswith(expected, start):
            raise ValueError(f"{expected!r} is not in the context where 'answer_start' {start} points")
        answers.append(Answer(expected, start))
    if item.get("is_impossible", not answers) == bool(answers):
        problem = "marked as impossible, but has answers" if answers else "not marked as impossible, but has no answer"
        raise ValueError(f"is {problem}")
    return Question(name, text, tuple(answers))

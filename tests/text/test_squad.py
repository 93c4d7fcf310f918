import copy
import json
import re

import pytest

from mae_lm_fairseq.text.squad import Answer, Paragraph, Question, read_squad
from tests.support.refusals import refused

CONTEXT = "Müller scored 5½ goals 😀 in Köln."
DATASET = {
    "version": "v2.0",
    "data": [
        {
            "title": "Football",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {
                            "id": "q1",
                            "question": "How many?",
                            "answers": [{"text": "5½", "answer_start": 14}, {"text": "5½ goals", "answer_start": 14}],
                            "is_impossible": False,
                        },
                        {
                            "id": "q2",
                            "question": "When?",
                            "answers": [],
                            "plausible_answers": [{"text": "Köln", "answer_start": 28}],
                            "is_impossible": True,
                        },
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "squad.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_questions_come_with_their_answers(write):
    assert read_squad(write(DATASET), version_2=True) == [
        Paragraph(
            CONTEXT,
            (Question("q1", "How many?", (Answer("5½", 14), Answer("5½ goals", 14))), Question("q2", "When?", ())),
        )
    ]
    unmarked = change(*SECOND, "is_impossible")
    assert read_squad(write(unmarked), version_2=True) == read_squad(write(DATASET), version_2=True)


def change(*path, to=None):
    """Return the dataset with one value replaced or removed."""
    changed = node = copy.deepcopy(DATASET)
    for key in path[:-1]:
        node = node[key]
    if to is None:
        del node[path[-1]]
    else:
        node[path[-1]] = to
    return changed


SECOND_QUESTION = DATASET["data"][0]["paragraphs"][0]["qas"][1]
PARAGRAPH = ("data", 0, "paragraphs", 0)
FIRST = (*PARAGRAPH, "qas", 0)
SECOND = (*PARAGRAPH, "qas", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"data": ',
            "squad.json is damaged, or not JSON .line 1, column 10: .*; it must be JSON in SQuAD's",
        ),
        ("[" * 100_000, "squad.json is damaged"),
        ("[]", "squad.json has other content"),
        ({"data": []}, "squad.json: has no questions"),
        (change(*PARAGRAPH, "context"), "squad.json lacks 'context'"),
        (change(*PARAGRAPH, "context", to="\ud83d"), "squad.json has other content"),
        (change(*FIRST, "id", to=5), "question 5: 5 is not a text"),
        (change(*FIRST, "id"), "article 1, paragraph 1, question None: lacks the key 'id'"),
        (change(*FIRST, "answers", 1, "answer_start", to=15), r"question 'q1': '5½ goals' is not in"),
        (change(*FIRST, "answers", 0, "answer_start", to=-20), r"question 'q1': '5½' is not in"),
        (change(*FIRST, "answers", 0, "answer_start", to="14"), "'answer_start' 14 points"),
        (change(*FIRST, "answers", 0, "text", to=" "), "' ' is not in the context"),
        (change(*FIRST, "is_impossible", to=True), r"question 'q1': is marked as impossible, but has answers"),
        (change(*SECOND, "is_impossible", to=False), r"question 'q2': is not marked as impossible, but has no"),
        (change(*SECOND, "id", to="q1"), "question 'q1': the id occurs twice"),
    ],
)
def test_errors_name_their_place_in_the_file(write, content, message):
    with refused(message):
        read_squad(write(content), version_2=True)


def test_malformed_questions_are_all_listed_or_dropped(write, caplog):
    content = change(*FIRST, "answers", 1, "answer_start", to=15)
    content["data"][0]["paragraphs"][0]["qas"] += [SECOND_QUESTION | {"id": "q3", "is_impossible": False}]
    path = write(content)
    problems = r"squad\.json: 2 malformed questions: article 1, paragraph 1, question 'q1': .*, question 'q3': .*"
    with refused(rf"{problems}.*--skip"):
        read_squad(path, version_2=True)
    [paragraph] = read_squad(path, version_2=True, skip_malformed=True)
    assert [question.id for question in paragraph.questions] == ["q2"]
    assert re.search(rf"{problems}; dropped", caplog.text)
    with refused("q2.*--version-2"):
        read_squad(path, version_2=False, skip_malformed=True)  # these are not malformed


def test_answers_of_a_test_file_are_ignored(write):
    """Unlabelled files have no answers, or empty ones that are not marked as impossible."""
    unmarked = change(*SECOND, "is_impossible", to=False)
    for content in (DATASET, unmarked, change(*FIRST, "answers"), change(*FIRST, "answers", to=[])):
        [paragraph] = read_squad(write(content), version_2=True, with_answers=False)
        assert paragraph.questions == (Question("q1", "How many?", ()), Question("q2", "When?", ()))

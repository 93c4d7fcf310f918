"""Facts about a model's training: their JSON, and damage of it."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, strategies as st

from mae_lm_fairseq.trained.info import AnswerTask, ModelInfo, SentenceTask, WordTask
from mae_lm_fairseq.trained.reading import info_of
from mae_lm_fairseq.utils.typed import typed

TASKS = [
    SentenceTask("a/b", "h", ("text",), ("no", "yes")),
    SentenceTask("RTE", "RTE", ("a", "b"), (), (1, 5.5)),
    WordTask("UPOS", 512, ("NOUN", "VERB"), "tags"),
    WordTask(labels=("O",)),
    AnswerTask(384, 128, version_2=True),
]
TRAINED = {
    "architecture": "mae_lm_tiny",
    "task": "sentence_prediction",
    "updates": 7,
    "versions": {"torch": "2.8"},
    "dictionary_sha256": "0",
    "trained_on": None,
    "mask_in_encoder": None,
    "other_tokens": 0.2,
}


def test_the_json_of_a_trained_model_has_all_keys_in_order():
    info = typed(TRAINED, ModelInfo)
    assert info.to_json() == TRAINED
    assert list(info.to_json()) == list(TRAINED)
    assert ModelInfo(imported_from="x", untrained=("decoder",)).to_json() == {
        "imported_from": "x",
        "untrained": ("decoder",),
    }


@pytest.mark.parametrize("task", TASKS)
def test_facts_survive_json(task):
    info = ModelInfo(**TRAINED, finetuned_on=task, development_set={"f1": float("inf")}, untrained=("decoder",))
    assert typed(json.loads(json.dumps(info.to_json())), ModelInfo) == info


@pytest.mark.parametrize(
    ("task", "facts"),
    [("masked_autoencoder_lm", None), ("token_classification", TASKS[2]), ("question_answering", TASKS[4])],
)
def test_a_checkpoint_tells_its_task(task, facts):
    """The labels of words are in its state, the rest in its options."""
    options = {} if facts is None else asdict(facts)
    labels = {"names": options.pop("labels", None), "scheme": options.pop("scheme", None)}
    cfg = {"model": {"_name": "mae_lm_tiny"}, "task": {"_name": task, **options}}
    state = {"cfg": cfg, "task_state": {"labels": labels}, "model": {}}
    assert typed(info_of(state), ModelInfo).finetuned_on == facts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([*TRAINED, "finetuned_on", "imported_from", "untrained", "x"]), JSON)
def test_any_value_is_refused_or_kept(name, value):
    """A damaged value must not be taken for another: a fraction of masks changes what a model computes."""
    try:
        info = typed({name: value}, ModelInfo)
    except ValueError:
        return
    assert json.loads(json.dumps(info.to_json())) in ({}, {name: value})
    if info.to_json() == {}:
        assert value in (None, [])


@given(st.sampled_from(TASKS), st.data())
def test_any_damage_of_a_task_is_refused_or_kept(task, data):
    described = json.loads(json.dumps(asdict(task)))
    name = data.draw(st.sampled_from(sorted(described)))
    described[name] = data.draw(JSON)
    try:
        kept = typed({"finetuned_on": described}, ModelInfo).finetuned_on
    except ValueError:
        return
    assert type(kept) is type(task)
    assert json.loads(json.dumps(asdict(kept))) == described


@pytest.mark.parametrize(
    "damaged",
    [
        {"mask_in_encoder": 2.0},
        {"mask_in_encoder": float("nan")},
        {"mask_in_encoder": True},
        {"mask-in-encoder": 0.5},
        {"problem_type": "other"},
        {"architecture": "other"},
        {"finetuned_on": asdict(TASKS[0]) | {"labels": []}},
        {"finetuned_on": asdict(TASKS[1]) | {"score_range": [5, 1]}},
        {"finetuned_on": asdict(TASKS[1]) | {"columns": ["a", "b", "c"]}},
        {"finetuned_on": asdict(TASKS[4]) | {"doc_stride": 0}},
    ],
)
def test_values_that_would_give_wrong_numbers_are_refused(damaged):
    with pytest.raises(ValueError, match=r"is|are|unknown"):
        typed(damaged, ModelInfo)

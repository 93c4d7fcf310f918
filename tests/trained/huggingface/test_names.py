"""The table of parameter names, against the classes that it maps to."""

import pytest

from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.names import NAMES, Part, names_of
from mae_lm_fairseq.trained.huggingface.task_classes import FINETUNED, MASKED_LM
from tests.support.families import load_stock

TIED = {f"{prefix}.decoder.{name}" for prefix in ("lm_head", "cls.predictions") for name in ("weight", "bias")}
TIED |= {"vocab_projector.weight"}


@pytest.mark.parametrize("task", [MASKED_LM, *FINETUNED], ids=lambda task: task.ending)
@pytest.mark.parametrize("kind", FAMILIES)
def test_names_are_exactly_those_of_transformers(kind, task, stock):
    family = FAMILIES[kind]
    if task.part not in NAMES[family.naming]:
        assert (kind, task.part) == ("distilbert", Part.classification_head)  # which has another activation function
        return
    expected = load_stock(stock(kind, task.ending)).state_dict().keys() - TIED - {family.segments}
    names = names_of([Part.encoder, task.part], family.naming, 2, "any")
    assert set(names.values()) == expected
    assert len(names) == len(expected)

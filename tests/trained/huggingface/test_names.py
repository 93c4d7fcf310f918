"""The table of parameter names, against the classes that it maps to."""

import pytest
import transformers

from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.names import NAMES, Part, names_of
from mae_lm_fairseq.trained.huggingface.task_classes import FINETUNED, MASKED_LM, SENTENCES

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 42,
    "type_vocab_size": 1,
    "num_labels": 2,
}
TIED = {f"{prefix}.decoder.{name}" for prefix in ("lm_head", "cls.predictions") for name in ("weight", "bias")}
TIED |= {"vocab_projector.weight"}


@pytest.mark.parametrize("task", [MASKED_LM, *FINETUNED], ids=lambda task: task.ending)
@pytest.mark.parametrize("kind", FAMILIES)
def test_names_are_exactly_those_of_transformers(kind, task):
    family = FAMILIES[kind]
    if task.part not in NAMES[family.naming]:
        assert (kind, task) == ("distilbert", SENTENCES)  # which has another activation function
        return
    config = transformers.AutoConfig.for_model(kind, **SIZES)
    expected = set(getattr(transformers, family.classes + task.ending)(config).state_dict()) - TIED - {family.segments}
    names = names_of([Part.encoder, task.part], family.naming, 2, "any")
    assert set(names.values()) == expected
    assert len(names) == len(expected)

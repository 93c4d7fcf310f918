"""The table of recipes: every value has a source."""

import pytest

from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.training.settings import ARCHITECTURES, recipe
from mae_lm_fairseq.training.stated import NOT_FOUND, ROWS, SOURCES, STATED


def test_every_value_has_a_source_and_every_source_a_value():
    cells = [cell for column in STATED.values() for cell in column.values()]
    assert {cell.source for cell in cells if cell.source} == set(SOURCES)
    for cell in cells:
        assert cell.source or (cell.value is None and cell.words in (None, NOT_FOUND))
    assert all(list(column) == list(ROWS) for column in STATED.values())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recipes_have_a_source_for_every_setting(architecture):
    rows = recipe(architecture)
    described = {"corpus", "vocabulary", "decoder_layers"}
    assert all(cell.value is not None and cell.source for row, cell in rows.items() if row not in described)


@pytest.mark.parametrize("size", ["base", "large"])
def test_the_networks_are_those_of_the_table(size):
    for name, preset in (("MAE-LM", "mae_lm"), ("RoBERTa", "mae_lm_roberta")):
        values = architecture_values(f"{preset}_{size}")
        stated = {
            row: STATED[f"{name} {size}"][row].value for row in ("decoder_layers", "dropout", "attention_dropout")
        }
        assert {row: values[row] for row in stated} == stated

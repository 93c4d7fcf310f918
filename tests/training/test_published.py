"""The table of recipes: every value has a source."""

import pytest

from mae_lm_fairseq.models.architectures import architecture_values
from mae_lm_fairseq.training.published import PUBLISHED, ROWS, SOURCES
from mae_lm_fairseq.training.settings import ARCHITECTURES, RECIPES, recipe


def test_every_value_has_a_source_and_every_source_a_value():
    cells = [cell for column in PUBLISHED.values() for cell in column.values()]
    assert {cell.source for cell in cells if cell.source} == set(SOURCES)
    for cell in cells:
        assert cell.source or (cell.value is None and cell.words is None)
    assert all(list(column) == list(ROWS) for column in PUBLISHED.values())


@pytest.mark.parametrize(
    ("architecture", "name"), [*((one, None) for one in ARCHITECTURES), *(("mae_lm_base", one) for one in RECIPES)]
)
def test_recipes_have_a_source_for_every_setting(architecture, name):
    rows = recipe(architecture, name)
    described = {"corpus", "vocabulary", "decoder_layers"}
    assert all(cell.value is not None and cell.source for row, cell in rows.items() if row not in described)


@pytest.mark.parametrize("size", ["base", "large"])
def test_the_networks_are_those_of_the_table(size):
    for name, preset in ((f"MAE-LM {size}++", "mae_lm"), (f"RoBERTa {size}", "mae_lm_roberta")):
        values = architecture_values(f"{preset}_{size}")
        stated = {row: PUBLISHED[name][row].value for row in ("decoder_layers", "dropout", "attention_dropout")}
        assert {row: values[row] for row in stated} == stated


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("base", 131e9), ("base++", 2.097e12), ("large++", 2.097e12), ("academic", 12.06e9), ("fairseq", 131e9)],
)
def test_recipes_read_as_many_tokens_as_their_sources_say(name, tokens):
    """BERT's 131 billion, 12.06 billion in papers on efficient pretraining, and 16 times BERT's in the script."""
    rows = {row: cell.value for row, cell in recipe("mae_lm_base", name).items()}
    assert rows["updates"] * rows["sequences"] * rows["tokens"] == pytest.approx(tokens, rel=1e-3)

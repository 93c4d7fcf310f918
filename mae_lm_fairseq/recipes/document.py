"""Text of docs/recipes.md, generated from the table of published settings by scripts/write_docs.py."""

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.recipes.pretrain import arithmetic
from mae_lm_fairseq.recipes.settings import recipe, settings
from mae_lm_fairseq.recipes.stated import NOT_FOUND, ROWS, SOURCES, STATED, Cell
from mae_lm_fairseq.utils.markdown import markdown_table

HEAD = """\
# Recipes

What the papers and their public code state of the settings that they pretrained with, and what `scripts/pretrain.sh`
takes from it. This file is written by `scripts/write_docs.py` from
`mae_lm_fairseq/recipes/stated.py`, the only place to change. A value without a source is no recipe: "not found" means
that none was found in a public source.
"""

USE = """\
## What `scripts/pretrain.sh` uses

Base and large take the columns of MAE-LM, whatever the preset, and tiny and small the last column: presets of one size
differ in `--arch` alone, so that a comparison compares architectures. Only the `mae_lm_3ml_*` take 3ML's masking rate
too. That is not 3ML's own recipe, of whose optimisation nothing was found, and it masks with `<mask>` only. MAE-LM's
script has no line of its own for large; that size takes the script's settings with the larger architecture. RoBERTa's
settings, and fairseq's, are for reading beside them: give them as flags.

In one process; with more of them there are fewer accumulated batches:
"""


def _words(cell: Cell) -> str:
    if cell.words is not None:
        return cell.words
    if cell.value is None:
        return NOT_FOUND
    if isinstance(cell.value, float) and 0 < cell.value < 0.01:
        mantissa, exponent = f"{cell.value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{cell.value:,}" if isinstance(cell.value, int) else str(cell.value)


def _stated() -> str:
    numbers = {source: number for number, source in enumerate(SOURCES, start=1)}
    rows = []
    for row, description in ROWS.items():
        cells = [column[row] for column in STATED.values()]
        marks = [f" [{numbers[cell.source]}]" if cell.source else "" for cell in cells]
        rows.append([description, *(_words(cell) + mark for cell, mark in zip(cells, marks, strict=True))])
    sources = "\n".join(f"{number}. {SOURCES[source]}" for source, number in numbers.items())
    return f"{markdown_table(['', *STATED], rows)}\n\nSources:\n\n{sources}\n"


def _used() -> str:
    rows = []
    for size in SIZES:
        value = {row: cell.value for row, cell in recipe(f"mae_lm_{size}").items()}
        batch_size = settings(f"mae_lm_{size}")["dataset"]["batch_size"]
        taken = (batch_size, value["sequences"] // batch_size, 1, value["tokens"], value["updates"])
        rows.append([size, arithmetic(*taken)])
    return markdown_table(["size", "text taken in"], rows) + "\n"


def document() -> str:
    """Return the content of docs/recipes.md."""
    return f"{HEAD}\n## What is stated\n\n{_stated()}\n{USE}\n{_used()}"

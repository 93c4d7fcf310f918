"""Text of docs/recipes.md, generated from the table of published settings by scripts/write_docs.py."""

from mae_lm_fairseq.core.config import SIZES
from mae_lm_fairseq.training.pretrain import arithmetic
from mae_lm_fairseq.training.settings import recipe, settings
from mae_lm_fairseq.training.stated import NOT_FOUND, ROWS, SOURCES, STATED, Cell
from mae_lm_fairseq.utils.markdown import markdown_table

HEAD = """\
# Recipes

The pretraining settings that the papers and their public code state, and the settings that `mae-lm pretrain` uses.
[pretraining.md](pretraining.md) describes how to train with them.

`scripts/write_docs.py` generates this page from `mae_lm_fairseq/training/stated.py`; edit that file, not this page.
Every value has a source. "Not found" means that no public source states the value.
"""

USE = """\
## Settings of `mae-lm pretrain`

- Base and large use the columns of MAE-LM, whatever the preset. Tiny and small use the last column, "development".
- Presets of one size therefore differ in `--arch` only, so a comparison compares architectures. The exception is
  `mae_lm_3ml_*`, which also uses 3ML's masking rate.
- This is not 3ML's own recipe: no public source states how 3ML was optimised. Here 3ML masks with `<mask>` only.
- MAE-LM's script has no separate settings for large. That size uses the script's settings with the larger architecture.
- The columns of RoBERTa and fairseq are for comparison. To train with them, pass the values as options:
  [pretraining.md](pretraining.md#roberta) has the command for fairseq's.

With one process. More processes accumulate fewer batches:
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
        text = arithmetic(
            batch_size=batch_size,
            accumulated=value["sequences"] // batch_size,
            processes=1,
            tokens=value["tokens"],
            updates=value["updates"],
        )
        rows.append([size, text])
    return markdown_table(["size", "training text"], rows) + "\n"


def document() -> str:
    """Return the content of docs/recipes.md."""
    return f"{HEAD}\n## Stated settings\n\n{_stated()}\n{USE}\n{_used()}"

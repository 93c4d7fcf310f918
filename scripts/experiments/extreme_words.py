#!/usr/bin/env python3
"""Name the frequent words that lie furthest outside the directions of all other tokens, layer by layer.

The measure ``exclusivity`` of studies records how far the most extreme of the 20 most frequent words lies outside,
but not which word it is.

Example:
    scripts/experiments/extreme_words.py separation/runs/MAE-LM-seed1/models/7600.pt \
        --data-bin data-bin --text valid.txt --json extreme-words.json
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mae_lm_fairseq.measures.readers import SPECIAL_IDS, open_model
from mae_lm_fairseq.statistics.exclusivity import exclusivity_profile, halves
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.utils.command_line import Argument, Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import write_json
from mae_lm_fairseq.utils.versions import provenance

SHOWN = 5


@dataclass(frozen=True)
class ExtremeWordsOptions(Options):
    """Options of the measurement; length, tokens, masking and seed are those of the study ``separation``.

    Attributes:
        checkpoints: checkpoints of fairseq.
        data_bin: the directory that they were trained on.
        text: validation text with blank lines between documents.
        json: JSON file for the results.
    """

    checkpoints: Annotated[tuple[Path, ...], Argument("CHECKPOINT", positional=True)]
    data_bin: Annotated[Path, Argument("DIR")]
    text: Path
    json: OutputFile


def extreme_words(checkpoint: Path, options: ExtremeWordsOptions, length: int = 128) -> list[dict]:
    """Return, for each layer, the words that lie furthest outside, with their exclusivity, and that of ``[MASK]``."""
    reader, symbols = open_model(checkpoint, options.data_bin), read_symbols(options.data_bin / "dict.txt")
    texts = reader.texts(options.text, length, 50_000)
    ids, words = ([getattr(text, name).tolist() for text, _ in texts] for name in ("ids", "words"))
    parts = halves(ids, [document for _, document in texts], words)
    rows = []
    for row in exclusivity_profile(reader.states, parts, SPECIAL_IDS):
        found = sorted(zip(row["types"], (symbols[index] for index in parts.types), strict=True), reverse=True)
        rows.append({"layer": row["layer"], "mask": row["exclusivity_0.9"], "words": found[:SHOWN]})
    return rows


def main(options: ExtremeWordsOptions) -> None:
    """Measure, print and write."""
    found = {"/".join(each.parts[-3:]): extreme_words(each, options) for each in options.checkpoints}
    for name, rows in found.items():
        for row in rows:
            shown = ", ".join(f"{word} {value:.3f}" for value, word in row["words"])
            print(f"{name}, layer {row['layer']}: [MASK] {row['mask']:.3f}; {shown}")
    write_json(options.json, {**provenance(), "command": "scripts/experiments/extreme_words.py", "models": found})


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(ExtremeWordsOptions, sys.argv[1:], __doc__, "extreme_words.py"))

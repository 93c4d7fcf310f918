"""Exclusivity of ``[MASK]``, layer by layer: how much of it lies in directions that real tokens do not use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from mae_lm_fairseq.measures.figures import CONTROLS, Line, plot_exclusivity
from mae_lm_fairseq.measures.kept_moments import KeptMoments
from mae_lm_fairseq.measures.measure import MaskedText, Measure, ModelToMeasure, Value, values_by_layer
from mae_lm_fairseq.measures.readers import SPECIAL_IDS
from mae_lm_fairseq.statistics.effective_rank import ignore_moments
from mae_lm_fairseq.statistics.exclusivity import exclusivity_profile, halves
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bars

_DESCRIPTION = "fraction of [MASK] outside {} % of real tokens, above real tokens'"
_OTHER_VALUES = (
    "mask_0.9",
    "held_out_0.9",
    "dimensions_0.9",
    "mask_0.99",
    "held_out_0.99",
    "dimensions_0.99",
    "types_lowest",
    "types_median",
    "groups_lowest",
    "groups_median",
    "groups_highest",
)
_SUMMARIES = {"lowest": min, "median": median, "highest": max}
"""Summaries of the values of a control, by the ending of their names."""


@dataclass(frozen=True, kw_only=True)
class Exclusivity(Measure, MaskedText):
    """Fraction of ``[MASK]`` outside the directions of real tokens, with controls; keeps second moments."""

    kind: ClassVar = "exclusivity"
    needs: ClassVar = ("text",)
    values: ClassVar = (
        Value("exclusivity_0.9", _DESCRIPTION.format(90), by_layer=True, shown=True),
        Value("exclusivity_0.99", _DESCRIPTION.format(99), by_layer=True),
        Value("types_highest", by_layer=True, shown=True),
        Value("type_quantile", by_layer=True, shown=True),
        *(Value(name, by_layer=True) for name in _OTHER_VALUES),
    )

    def measure(self, model: ModelToMeasure) -> list[dict[str, Any]]:
        """Return the rows of :func:`~mae_lm_fairseq.statistics.exclusivity.exclusivity_profile`.

        Raises:
            UserError: if the text cannot be read, or is a single document: two are needed, one to fit on, another one
                to compare with.
        """
        reader = model.open()
        ids, words, documents = [], [], []
        for text, document in reader.texts(model.data.text, self.tokens_per_sample, self.tokens):
            ids.append(text.ids.tolist())
            words.append(text.words.tolist())
            documents.append(document)
        if len(set(documents)) < 2:
            raise UserError(f"{model.data.text} has a single document; separate at least two by a blank line")

        moments = KeptMoments()
        rows = exclusivity_profile(
            reader.states,
            halves(ids, documents, words),
            special_ids=SPECIAL_IDS,
            mask_prob=self.mask_prob,
            seed=self.seed,
            progress=progress_bars(model.label),
            keep_moments=moments.add if model.kept else ignore_moments,
        )
        if model.kept:
            moments.save(model.kept)
        return rows

    def recorded(self, result: list[dict[str, Any]]) -> dict[str, list[float | None]]:
        """Return the numbers of the rows by layer; of controls, a summary."""
        values = values_by_layer(len(result))
        for row in result:
            layer = row["layer"]
            for name, value in row.items():
                if name not in ("layer", *CONTROLS):
                    values[name][layer] = value
            for control in CONTROLS:
                if row.get(control):
                    for ending, summary in _SUMMARIES.items():
                        values[f"{control}_{ending}"][layer] = summary(row[control])
        return dict(values)

    def figure(
        self, path: Path, title: str, x_label: str, lines: Mapping[str, Mapping[str, Line]], same: Mapping[str, float]
    ) -> bool:
        return plot_exclusivity(path, title, lines)

"""Exclusivity of ``[MASK]``, layer by layer: how much of it lies in directions that real tokens do not use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from mae_lm_fairseq.measures.figures import Line, Panel, plot_panels
from mae_lm_fairseq.measures.kept_moments import KeptMoments
from mae_lm_fairseq.measures.measure import MaskedText, Measure, ModelToMeasure, Value, values_by_layer
from mae_lm_fairseq.measures.readers import SPECIAL_IDS
from mae_lm_fairseq.statistics.effective_rank import ignore_moments
from mae_lm_fairseq.statistics.exclusivity import exclusivity_profile, halves
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import progress_bars

CONTROLS = {"types": "20 most frequent words (median, range)", "groups": "random groups of real tokens"}
"""Controls, by the stem of the names of their values."""
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
_FIGURE_LABEL = (
    "fraction of the sum of squares outside the directions of\n"
    "real tokens, less that of held-out ones (percentage points)"
)


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
        """Plot the exclusivity of ``[MASK]`` beside its controls, one panel per model that takes it in a layer."""
        panels = []
        for model, mask in lines.get("exclusivity_0.9", {}).items():
            panel_lines = {"[MASK] (forced in where the encoder never saw it)": Line(mask.x, 100 * mask.y)}
            bands = {}
            for control, label in CONTROLS.items():
                if model in lines.get(f"{control}_median", {}):
                    summaries = [lines[f"{control}_{ending}"][model] for ending in _SUMMARIES]
                    low, middle, high = (100 * summary.y.mean(0) for summary in summaries)
                    panel_lines[label] = Line(mask.x, middle[None])
                    bands[label] = (mask.x, low, high)
            panels.append(Panel(model, x_label, panel_lines, bands))
        if panels:
            plot_panels(path, title, *panels, y_label=_FIGURE_LABEL, share_y=True, zero=True)
        return bool(panels)

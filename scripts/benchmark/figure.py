"""Plot of speed and memory against sequence length and masking rate."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

from benchmark.measurement import Results, Row

CURVES = {
    "mae_lm_eager": "MAE-LM (eager)",
    "mae_lm_sdpa": "MAE-LM (sdpa)",
    "roberta_eager": "RoBERTa preset (eager)",
    "roberta_sdpa": "RoBERTa preset (sdpa)",
    "authors": "MAE-LM, the authors' code",
    "fairseq_roberta": "RoBERTa, fairseq",
    "hf_roberta": "RoBERTa, Hugging Face",
}
"""Subjects that are measured at several lengths and masking rates, with their labels in the legend."""


def draw(results: Results, path: Path) -> None:
    """Plot curves if lengths or masking rates were varied, otherwise bars for all subjects.

    Args:
        results: results of a run.
        path: the PNG to write.
    """
    # Imported here because matplotlib is optional (extra "analysis").
    from matplotlib.figure import Figure

    curves = bool(results.setting.sweep_lengths or results.setting.sweep_masks)
    figure = Figure(figsize=(10, 7 if curves else 5), layout="constrained")
    axes = figure.subplots(2 if curves else 1, 2)
    if curves:
        _draw_curves(results, axes)
    else:
        _draw_bars(results, axes)
    figure.savefig(path, dpi=150)


def _mebibytes(row: Row) -> float:
    return row.peak_memory / 2**20


_PANELS = ((attrgetter("tokens_per_second"), "tokens/s"), (_mebibytes, "peak memory (MiB)"))


def _draw_curves(results: Results, axes) -> None:
    usual = results.setting.case()
    for column, (field, label) in enumerate((("length", "sequence length"), ("mask_prob", "fraction masked"))):
        rows = [
            row
            for row in results.rows
            if row.case.rows * row.case.length == usual.rows * usual.length
            and (row.case.length if field == "mask_prob" else row.case.mask_prob)
            == (usual.length if field == "mask_prob" else usual.mask_prob)
        ]
        for line, (value, unit) in enumerate(_PANELS):
            _draw_panel(axes[line][column], rows, field, value)
            axes[line][column].set(xlabel=label, ylabel=unit, ylim=(0, None))
            axes[line][column].grid(alpha=0.25)
    axes[0][0].legend(frameon=False)
    precision = results.setting.precisions[0]
    axes[0][0].set_title(f"{usual.mask_prob:.0%} masked, {usual.rows * usual.length} tokens per step, {precision}")
    axes[0][1].set_title(f"sequences of {usual.length} tokens")


def _draw_panel(axes, rows: list[Row], field: str, value: Callable[[Row], float]) -> None:
    for (name, label), marker in zip(CURVES.items(), "oPsXD^v", strict=True):
        points = sorted((getattr(row.case, field), value(row)) for row in rows if row.subject.name == name)
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, label=label)


def _draw_bars(results: Results, axes) -> None:
    names = [CURVES.get(row.subject.name, row.subject.name.replace("_", " ")) for row in results.rows]
    for panel, (value, unit) in zip(axes, _PANELS, strict=True):
        panel.barh(names, [value(row) for row in results.rows])
        panel.invert_yaxis()
        panel.set_xlabel(unit)
    usual = results.setting.case()
    axes[0].set_title(f"{usual.rows} x {usual.length} tokens per step, {results.setting.precisions[0]} unless named")
    axes[1].tick_params(labelleft=False)

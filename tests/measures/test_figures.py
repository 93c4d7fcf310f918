"""Figures of several panels."""

import numpy as np
from matplotlib.axes import Axes

from mae_lm_fairseq.measures.figures import Lines, Panel, plot_panels


def test_every_seed_and_the_mean_are_plotted_also_with_missing_values(tmp_path, monkeypatch):
    plotted = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **style: plotted.append(np.ma.filled(y, -1)) or [axes])
    monkeypatch.setattr("matplotlib.figure.Figure.legend", lambda *arguments, **options: None)
    values = np.array([[1.0, 2.0], [3.0, np.nan]])
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "layer", {"model": Lines(np.arange(2), values)}))
    seeds, mean = plotted
    assert seeds.tolist() == [[1, 3], [2, -1]]
    assert mean.tolist() == [2, 2]

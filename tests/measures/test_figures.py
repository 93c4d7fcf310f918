"""Figures of several panels."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from mae_lm_fairseq.measures.figures import Lines, Panel, plot_panels


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 2), (5, 3)])
def test_panels_are_in_rows(tmp_path, count, columns):
    panel = Panel("title", "layer", {"model": Lines(np.arange(3), np.ones((2, 3)))})
    plot_panels(tmp_path / "a.png", "Title", *[panel] * count)
    width, height = Image.open(tmp_path / "a.png").size
    assert width == round(120 * (1 + 4.2 * columns))
    assert height == round(120 * (0.9 + 3.6 * -(-count // columns)))


def test_every_seed_and_the_mean_are_plotted_also_with_missing_values(tmp_path, monkeypatch):
    plotted = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **style: plotted.append(np.ma.filled(y, -1)) or [axes])
    monkeypatch.setattr("matplotlib.figure.Figure.legend", lambda *arguments, **options: None)
    values = np.array([[1.0, 2.0], [3.0, np.nan]])
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "layer", {"model": Lines(np.arange(2), values)}))
    seeds, mean = plotted
    assert seeds.tolist() == [[1, 3], [2, -1]]
    assert mean.tolist() == [2, 2]


def test_more_models_than_colours(tmp_path):
    lines = {str(number): Lines(np.arange(2), np.full((1, 2), number)) for number in range(30)}
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "layer", lines))
    assert (tmp_path / "a.png").stat().st_size > 10_000

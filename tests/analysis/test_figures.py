"""Figures of losses and scores over seeds."""

import numpy as np
from matplotlib.figure import Figure

from mae_lm_fairseq.analysis.figures import Lines, Panel, plot_panels


def test_every_line_of_a_figure_has_its_own_look(tmp_path, monkeypatch):
    """The palette has seven colours; further lines differ in the dashes. Controls are grey."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    seeds, points = np.arange(3)[:, None], np.arange(4)
    lines = {f"model {number}": Lines(points, seeds + points * number) for number in range(9)}
    control = {"control": Lines(points, np.ones((1, 4)), is_control=True)}
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "x", "y", lines), Panel("b", "x", "y", lines | control))
    first, second = ([line for line, *_ in axes.containers] for axes in drawn[0].axes)
    looks = [[(line.get_color(), line.get_marker(), line.get_linestyle()) for line in each] for each in (first, second)]
    assert looks[0] == looks[1][:9]
    assert len(set(looks[1])) == 10
    assert looks[1][9][0] == "grey"
    [legend] = drawn[0].legends
    assert [entry.get_text() for entry in legend.get_texts()] == [*lines, "control"]


def test_means_and_standard_deviations_leave_out_missing_seeds(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    line = Lines(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, np.nan], [3.0, 5.0]]))
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "seconds", "loss", {"model": line}), from_zero=True)
    [axes] = drawn[0].axes
    [container] = axes.containers
    assert container[0].get_xdata().tolist() == [2, 3]
    assert container[0].get_ydata().tolist() == [2, 5]
    horizontal, vertical = (bars.get_segments() for bars in container[2])
    # The standard deviation of two values is their difference divided by the square root of 2.
    assert np.allclose(np.diff(vertical[0], axis=0), [[0, 2 * 2**0.5]])
    assert np.allclose(np.diff(horizontal[0], axis=0), [[2 * 2**0.5, 0]])
    assert axes.get_ylim()[0] == 0

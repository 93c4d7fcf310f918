"""Contents of figures."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mae_lm_fairseq.measures.exclusivity import CONTROLS, Exclusivity
from mae_lm_fairseq.measures.figures import Line, Panel, lines_by_layer, plot_panels
from mae_lm_fairseq.measures.rank_figures import SERIES, plot_gaps, plot_outside, plot_ranks
from mae_lm_fairseq.statistics.rank_profile import RankSettings, rank_profile
from mae_lm_fairseq.statistics.token_states import EncoderStates
from tests.support.networks import BOS, MASK, PAD, network, text

VARIANTS = {"MLM": "mae_lm_roberta", "MAE-LM": "mae_lm"}


@pytest.fixture(scope="module")
def models():
    texts = [text(20, seed).tolist() for seed in range(20)]
    return [
        {"label": label}
        | rank_profile(EncoderStates(network(variant).encoder, PAD, MASK), texts, [BOS], RankSettings(bootstrap=5))
        for label, variant in VARIANTS.items()
    ]


@pytest.fixture
def drawn(monkeypatch):
    """Collect the figures that are saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (figures.append(self), save(self, *args, **kwargs))
    )
    return figures


def lines(axes):
    return {line.get_label(): line.get_ydata().tolist() for line in axes.lines if not line.get_label().startswith("_")}


def values(model, name, field, **place):
    return [row[field] for row in model[name] if place.items() <= row.items()]


def test_ranks_have_a_panel_for_each_model(models, drawn, tmp_path):
    plot_ranks(tmp_path / "ranks.png", models)
    [figure] = drawn
    assert "15 % masked" in figure.get_suptitle()
    for axes, model in zip(figure.axes, models, strict=True):
        assert axes.get_title() == f"{model['label']} (hidden size 16)"
        assert axes.get_xlabel() == "layer (0: embeddings)"
        for (kind, tokens), label in SERIES.items():
            assert lines(axes).get(label, []) == values(model, "ranks", "threshold", input=kind, tokens=tokens)
    assert figure.get_supylabel() == "directions that hold 90 % of Σσ²"
    [legend] = figure.legends
    assert [entry.get_text() for entry in legend.get_texts()] == [*SERIES.values()]


def test_gaps_and_outside_figures_have_one_panel(models, drawn, tmp_path):
    plot_gaps(tmp_path / "gaps.png", models)
    plot_outside(tmp_path / "outside.png", models)
    gaps, outside = (figure.axes[0] for figure in drawn)
    mlm, mae_lm = models
    assert lines(gaps) == {
        "MLM": values(mlm, "gaps", "threshold", input="as_trained"),
        "MAE-LM": values(mae_lm, "gaps", "threshold", input="as_trained"),
        "MAE-LM, forced [MASK]": values(mae_lm, "gaps", "threshold", input="forced"),
    }
    assert lines(outside) == {
        "MLM": [100 * x for x in values(mlm, "outside", "excess", input="as_trained")],
        "MAE-LM, forced [MASK]": [100 * x for x in values(mae_lm, "outside", "excess", input="forced")],
    }
    assert "percentage points" in drawn[1].get_supylabel()
    assert all(figure.get_suptitle() and figure.legends for figure in drawn)


def test_exclusivity_stands_beside_its_controls(drawn, tmp_path):
    """Text without words of one token, such as Japanese, which has no spaces, has random groups alone."""
    rows = [
        {"layer": 0},
        {"layer": 1, "exclusivity_0.9": 0.2, "types": [0.1, 0.3], "groups": [-0.01, 0.02]},
        {"layer": 2, "exclusivity_0.9": 0.1, "types": [0.0, 0.1], "groups": [0.0, 0.01]},
    ]
    without_types = [row | {"types": []} for row in rows]
    of_models = {"MLM": Exclusivity().recorded(rows), "Japanese": Exclusivity().recorded(without_types)}
    assert Exclusivity().figure(tmp_path / "a.png", "Title", "layer", lines_by_layer(of_models), {})
    axes, without = drawn[0].axes
    mask, types, groups = "[MASK] (forced in where the encoder never saw it)", *CONTROLS.values()
    found = {name: values[1:] for name, values in lines(axes).items()}
    assert (found[mask], found[types]) == ([20, 10], [20, 5])
    assert set(lines(without)) == {mask, groups}
    points = [{tuple(point) for point in band.get_paths()[0].vertices.round(9)} for band in axes.collections]
    assert points[0] >= {(1, 10), (1, 30), (2, 0), (2, 10)}
    assert points[1] >= {(1, -1), (1, 2), (2, 0), (2, 1)}
    assert "percentage points" in drawn[0].get_supylabel()
    assert not Exclusivity().figure(tmp_path / "b.png", "Title", "layer", {}, {})  # no model takes [MASK]


def test_every_seed_and_the_mean_are_plotted_also_with_missing_values(tmp_path, monkeypatch):
    plotted = []
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **style: plotted.append(np.ma.filled(y, -1)) or [axes])
    monkeypatch.setattr("matplotlib.figure.Figure.legend", lambda *arguments, **options: None)
    values = np.array([[1.0, 2.0], [3.0, np.nan]])
    plot_panels(tmp_path / "a.png", "Title", Panel("a", "layer", {"model": Line(np.arange(2), values)}))
    seeds, mean = plotted
    assert seeds.tolist() == [[1, 3], [2, -1]]
    assert mean.tolist() == [2, 2]


def test_rows_of_panels_have_the_same_height(drawn, tmp_path):
    line = {"a": Line(np.arange(3.0), np.zeros((1, 3)))}
    for count in (1, 4):
        plot_panels(tmp_path / "panels.png", "", *[Panel(str(number), "layer", line) for number in range(count)])
    heights = [axes.get_position().height * figure.get_figheight() for figure in drawn for axes in figure.axes]
    np.testing.assert_allclose(heights, heights[0], rtol=0.1)  # titles and margins share the rest of a figure

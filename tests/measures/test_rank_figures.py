"""Contents of the rank figures."""

import pytest
from matplotlib.figure import Figure

from mae_lm_fairseq.measures.rank_figures import SERIES, plot_exclusivity, plot_gaps, plot_outside, plot_ranks
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
        expected = {
            label: found
            for (kind, tokens), label in SERIES.items()
            if (found := values(model, "ranks", "threshold", input=kind, tokens=tokens))
        }
        assert lines(axes) == expected
    assert figure.get_supylabel() == "directions that hold 90 % of Σσ²"
    [legend] = figure.legends
    assert [entry.get_text() for entry in legend.get_texts()] == [*SERIES.values()]


def test_many_models_take_several_rows_of_panels(models, drawn, tmp_path):
    plot_ranks(tmp_path / "ranks.png", models * 2)
    assert len(drawn[0].axes) == 4
    assert lines(drawn[0].axes[3])[SERIES["clean", "real"]] == values(models[1], "ranks", "threshold", input="clean")


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


def test_exclusivity_of_text_without_words_of_one_token(drawn, tmp_path):
    """Such as Japanese, which has no spaces."""
    rows = [{"layer": layer, "exclusivity_0.9": 0.2, "types": [], "groups": [0.0, 0.1]} for layer in (1, 2)]
    model = {"label": "MLM", "width": 8, "layers": 2, "mask_prob": 0.15, "exclusivity": rows}
    plot_exclusivity(tmp_path / "a.png", [model])
    assert set(lines(drawn[0].axes[0])) == {
        "[MASK] (forced in where the encoder never saw it)",
        "random groups of real tokens",
    }


def test_models_of_several_widths_have_their_own_axes(models, drawn, tmp_path):
    wide = models[0] | {"width": 32, "ranks": [row | {"threshold": row["threshold"] + 9} for row in models[0]["ranks"]]}
    plot_ranks(tmp_path / "ranks.png", [wide, models[1]])
    one, other = (axes.get_ylim() for axes in drawn[0].axes)
    assert one != other


def test_exclusivity_stands_beside_its_controls(drawn, tmp_path):
    rows = [{"layer": 0}]
    rows += [{"layer": 1, "exclusivity_0.9": 0.2, "types": [0.1, 0.3], "groups": [-0.01, 0.02]}]
    rows += [{"layer": 2, "exclusivity_0.9": 0.1, "types": [0.0, 0.1], "groups": [0.0, 0.01]}]
    plot_exclusivity(
        tmp_path / "a.png", [{"label": "MLM", "width": 8, "layers": 2, "mask_prob": 0.15, "exclusivity": rows}]
    )
    [axes] = drawn[0].axes
    found = lines(axes)
    assert found["[MASK] (forced in where the encoder never saw it)"] == [20, 10]
    assert found["20 most frequent words (median, range)"] == [20, 5]
    words, groups = (band.get_paths()[0].vertices for band in axes.collections)
    assert {tuple(point) for point in words.round(9)} >= {(1, 10), (1, 30), (2, 0), (2, 10)}
    assert {tuple(point) for point in groups.round(9)} >= {(1, -1), (1, 2), (2, 0), (2, 1)}
    assert "15 % masked" in drawn[0].get_suptitle()
    assert "percentage points" in drawn[0].get_supylabel()

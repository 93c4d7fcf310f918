"""Measure and plot the effective rank of trained models' hidden states, layer by layer.

For each model: real tokens in clean text, real tokens in text with [MASK], and [MASK] itself; for models that keep
[MASK] out of their encoder, both as trained and with [MASK] forced into the encoder. Beside the ranks stands the
exclusivity of [MASK]: its share outside the directions that real tokens use in clean text, less that of real tokens of
other documents, with frequent words and random groups of tokens as controls. Writes ranks.json, ranks.csv, ranks.png,
gaps.png, outside.png and exclusivity.png. The models can be any encoders that the AutoModel of Hugging Face's
transformers loads.

Example:
    mae-lm rank checkpoints/mae_lm/checkpoint_last.pt --text valid.txt --data-bin data-bin --out ranks
"""

from mae_lm_fairseq.measures.options import RankOptions as Options
from mae_lm_fairseq.utils.files import make_output_directory, write_json
from mae_lm_fairseq.utils.versions import versions


def main(options: Options) -> None:
    """Run the command."""
    from mae_lm_fairseq.measures.figures import check_matplotlib
    from mae_lm_fairseq.measures.rank_figures import plot_exclusivity, plot_gaps, plot_outside, plot_ranks
    from mae_lm_fairseq.measures.ranks import measure_models, write_csv

    check_matplotlib()
    make_output_directory(options.out)
    models = measure_models(options)
    write_json(options.out / "ranks.json", {"versions": versions(), "models": models})
    write_csv(options.out / "ranks.csv", models)
    plot_ranks(options.out / "ranks.png", models)
    plot_gaps(options.out / "gaps.png", models)
    plot_outside(options.out / "outside.png", models)
    figures = "ranks.png, gaps.png, outside.png"
    if all(model["exclusivity"] for model in models):
        plot_exclusivity(options.out / "exclusivity.png", models)
        figures += ", exclusivity.png"
    else:
        print(f"{options.text} has a single document, so that no exclusivity could be measured")
    print(f"{options.out}: ranks.json, ranks.csv, {figures}")

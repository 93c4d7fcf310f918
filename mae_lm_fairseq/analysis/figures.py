"""Figures."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]
"""Numbers of updates, and a value at each."""

# Okabe and Ito's colours, which readers with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def plot_losses(
    path: Path, title: str, train: Mapping[str, Curve], valid: Mapping[str, Curve], unigram_entropy: float
) -> None:
    """Draw the validation loss of several runs against updates, their training loss faintly behind.

    Args:
        path: the PNG to write.
        title: of the figure.
        train: training losses in nats by the run's label.
        valid: validation losses in nats by the same labels.
        unigram_entropy: in nats, of the validation text: what knowing only how frequent tokens are would reach.
    """
    # Here, because matplotlib comes with the extra "analysis" only.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.margins(y=0.1)
    axes.axhline(unigram_entropy, color="black", linestyle="--", linewidth=1)
    axes.annotate(
        f"unigram entropy of the validation text: {unigram_entropy:.2f}",
        (1, unigram_entropy),
        xycoords=("axes fraction", "data"),
        xytext=(-4, -4),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    for (label, curve), colour, marker in zip(valid.items(), COLOURS, "osD^", strict=False):
        axes.plot(*train[label], color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(*curve, color=colour, marker=marker, markersize=4, label=f"{label}: {curve[1][-1]:.2f}")
    axes.set(title=title, xlabel="updates", ylabel="loss on masked tokens (nats)", xlim=(0, None))
    axes.grid(alpha=0.25)
    axes.legend(title="validation (faint: training)", frameon=False)
    figure.savefig(path, dpi=150)

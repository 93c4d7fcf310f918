"""Empirical checks of the two statements of the MAE-LM paper (Meng et al., ICLR 2024, arXiv 2302.02060).

Measurements neither prove a theorem nor refute one whose assumptions a model does not meet. They show whether the
described effect occurs in this model on this text, and how large it is.
"""

from typing import Any

from mae_lm_fairseq.statistics.effective_rank import MEASURES, deviations

LEMMA = """\
Lemma 2.1, in our words. All [MASK] tokens enter the encoder as one vector plus their positions, so their hidden states
there span few directions. At the output they must differ as much as the predictions do, which is a lot. The rank of
the [MASK] states therefore rises from the embeddings to the last layer."""

LEMMA_LIMITS = """\
Limits: the lemma is about exact rank in a well-trained MLM. A matrix of floating-point numbers almost always has full
rank, so effective ranks are measured instead, and they can disagree. Learned positions make the [MASK] tokens differ at
the embeddings already. The lemma says nothing about the layers in between."""

THEOREM = """\
Theorem 2.2, in our words. In some layer, the hidden states of real tokens do not span all dimensions, and the span of
the [MASK] states is not contained in theirs: some dimensions are used by [MASK] alone."""

THEOREM_LIMITS = """\
Limits: the theorem is about exact spans. Thousands of floating-point states span everything, as the numerical rank
shows, so the exact statement cannot be observed. Its analogue for effective spaces can: the fraction of [MASK]'s sum of
squares outside the fewest directions that hold {threshold:g} % of the real tokens' sum of squares, minus the same
fraction of the real tokens themselves. The directions were fitted to the real tokens, not to [MASK]. Any kind of token
that is not part of the fit can be expected to lie outside to some degree, so the size matters more than the sign. That
[MASK] uses directions that real tokens use little does not mean that real tokens could not use them."""

HOLDS, FAILS, OPEN = "holds in this model", "does not hold: the opposite does", "is not decided by this amount of text"


def check_lemma(profile: dict[str, Any]) -> dict[str, Any] | None:
    """Check Lemma 2.1 on a profile of :func:`~mae_lm_fairseq.statistics.rank_profile.rank_profile`.

    Returns:
        For each rank measure the rank of ``[MASK]`` by layer (``ranks``), its ``rise`` from the first to the last layer
        with ``low`` and ``high`` (95 %), and a ``verdict``; None if the encoder does not see ``[MASK]`` in pretraining.
    """
    ranks = [row for row in profile["ranks"] if (row["input"], row["tokens"]) == ("as_trained", "mask")]
    rises = [row for row in profile["rises"] if row["input"] == "as_trained"]
    if not rises:
        return None
    last = rises[-1]
    return {
        name: {
            "ranks": {row["layer"]: row[name] for row in ranks},
            "rise": last[name],
            "low": last[f"{name}_low"],
            "high": last[f"{name}_high"],
            "verdict": _verdict(last[f"{name}_low"], last[f"{name}_high"]),
        }
        for name in MEASURES
    }


def check_theorem(profile: dict[str, Any]) -> dict[str, Any] | None:
    """Check Theorem 2.2 on a profile, and the gap in the real tokens' rank that the paper explains by it.

    Returns:
        A dictionary with these keys; None if the encoder does not see ``[MASK]`` in pretraining.

        - ``layers``: for each layer except the embeddings, where ``[MASK]`` always has its own vector, the ``excess``
          outside with ``low`` and ``high``, which hold for all layers simultaneously (95 %), and the ``numerical`` rank
          of the real tokens;
        - ``layer``, the one with the highest lower bound, and its ``verdict``;
        - ``gap``: the threshold rank of real tokens in the last layer with ``[MASK]`` in the text minus the rank
          without it, with ``low`` and ``high``.
    """
    rows = [row for row in profile["outside"] if row["input"] == "as_trained" and row["layer"] > 0]
    if not rows:
        return None
    wider = deviations(profile["chunks"], len(rows)) / deviations(profile["chunks"])
    numerical = {
        row["layer"]: row["numerical"]
        for row in profile["ranks"]
        if (row["input"], row["tokens"]) == ("as_trained", "real")
    }
    layers = [
        {
            "layer": row["layer"],
            "excess": row["excess"],
            "low": row["excess"] - wider * (row["excess"] - row["excess_low"]),
            "high": row["excess"] + wider * (row["excess_high"] - row["excess"]),
            "numerical": numerical[row["layer"]],
        }
        for row in rows
    ]
    best = max(layers, key=lambda row: row["low"])
    gap = [row for row in profile["gaps"] if row["input"] == "as_trained"][-1]
    return {
        "layers": layers,
        "layer": best["layer"],
        "verdict": _verdict(best["low"], max(row["high"] for row in layers)),
        "gap": {"gap": gap["threshold"], "low": gap["threshold_low"], "high": gap["threshold_high"]},
    }


def _verdict(low: float, high: float) -> str:
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def report(profile: dict[str, Any]) -> str:
    """Return both statements with numbers, verdicts and limitations, as text."""
    lemma, theorem = check_lemma(profile), check_theorem(profile)
    head = (
        f"{profile['label']}: {profile['layers']} layers, hidden size {profile['width']}, {profile['tokens']:,} tokens "
        f"in {profile['texts']:,} texts, {100 * profile['mask_prob']:g} % masked; 95 % intervals from "
        f"{profile['bootstrap']} resamples of {profile['chunks']} chunks of text"
    )
    if lemma is None:
        return f"{head}\n\nNothing to check: both statements are about encoders that see [MASK]; this one never did."
    return "\n\n".join([head, *_lemma_lines(lemma), *_theorem_lines(theorem, profile)])


def _lemma_lines(lemma: dict[str, Any]) -> list[str]:
    lines = [
        f"  {name:10} {' '.join(f'{rank:.1f}' for rank in found['ranks'].values())}   rise {found['rise']:+.1f} "
        f"[{found['low']:+.1f}, {found['high']:+.1f}]: {found['verdict']}"
        for name, found in lemma.items()
    ]
    return [LEMMA, "\n".join(["Rank of [MASK] by layer, from the first layer that sees it:", *lines]), LEMMA_LIMITS]


def _theorem_lines(theorem: dict[str, Any], profile: dict[str, Any]) -> list[str]:
    lines = [
        f"  layer {row['layer']}: {100 * row['excess']:+.1f} points [{100 * row['low']:+.1f}, "
        f"{100 * row['high']:+.1f}], numerical rank of real tokens {row['numerical']:.0f} of {profile['width']}"
        for row in theorem["layers"]
    ]
    gap = theorem["gap"]
    return [
        THEOREM,
        "\n".join(["[MASK] outside the real tokens' effective space, minus the real tokens themselves:", *lines]),
        f"For effective spaces, the statement {theorem['verdict']} (layer {theorem['layer']}; the intervals hold for "
        "all layers simultaneously).",
        f"The gap that the paper explains by it: with [MASK] in the text, the rank of real tokens in the last layer "
        f"changes by {gap['gap']:+.0f} [{gap['low']:+.1f}, {gap['high']:+.1f}]. That it rises "
        f"{_verdict(gap['low'], gap['high'])}.",
        THEOREM_LIMITS.format(threshold=100 * profile["threshold"]),
    ]

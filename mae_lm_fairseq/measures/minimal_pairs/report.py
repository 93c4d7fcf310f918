"""Tables of the accuracies on minimal pairs, from ``results.json`` alone."""

from typing import Any

from mae_lm_fairseq.utils.output import accuracy_cell, markdown_table

CONTROLS = {
    "random weights": "the same architecture before training",
    "unigram": "the sum of the tokens' log-frequencies",
    "length": "the sentence with fewer tokens wins",
}
"""The controls of every model, and what they are."""


def markdown(results: dict[str, Any]) -> str:
    """Return the report of all models."""
    pairs, settings = results["pairs"], results["settings"]
    masked = "masked with the later subwords of its word" if settings["mask_words"] else "masked on its own"
    head = [
        "# Minimal pairs",
        "",
        f"{pairs['pairs']:,} pairs of {pairs['paradigms']} paradigms from `{pairs['directory']}`. A pair is right if "
        "the grammatical sentence has the higher pseudo-log-likelihood: the sum of its tokens' log-probabilities, "
        f"each token {masked}. Scores that differ by at most {settings['tie']:g} are tied and count one half. Every "
        "paradigm counts the same. In brackets 95 % intervals "
        f"({settings['resamples']:,} bootstrap resamples of the pairs).",
        "",
        "Controls: " + "; ".join(f"*{name}*: {meaning}" for name, meaning in CONTROLS.items()) + ".",
        "",
        markdown_table(
            ["model", "accuracy", "ties", *CONTROLS],
            [_summary(label, model["scores"]) for label, model in results["models"].items()],
        ),
    ]
    return "\n".join([*head, *(line for model in results["models"].items() for line in _details(*model)), ""])


def _summary(label: str, scores: dict[str, Any]) -> list[str]:
    overall = {name: table["overall"] for name, table in scores.items()}
    controls = [accuracy_cell(overall[name]) if name in overall else "-" for name in CONTROLS]
    return [label, accuracy_cell(overall["model"]), f"{overall['model']['ties']:,}", *controls]


def _details(label: str, model: dict[str, Any]) -> list[str]:
    """Return the tables of one model by field and by paradigm."""
    scores = model["scores"]
    columns = ["model", *(name for name in CONTROLS if name in scores)]
    lines = ["", f"## {label}"]
    for kind in ("fields", "paradigms"):
        rows = [
            [name, f"{row['pairs']:,}", *(accuracy_cell(scores[column][kind][name]) for column in columns)]
            for name, row in scores["model"][kind].items()
        ]
        lines += ["", markdown_table([kind.removesuffix("s"), "pairs", *columns], rows)]
    return lines

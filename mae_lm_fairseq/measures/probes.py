"""Linear probes of trained models and of their controls, layer by layer."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from mae_lm_fairseq.measures.options import ProbeOptions
from mae_lm_fairseq.measures.probing import (
    ITERATIONS,
    Lookup,
    accuracy,
    check_labels,
    check_sklearn,
    first_subwords,
    probe,
    token_states,
)
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader, checked_models, open_model
from mae_lm_fairseq.statistics.effective_rank import RESAMPLES, SEED
from mae_lm_fairseq.text.conllu import LabelledSentence, read_conllu
from mae_lm_fairseq.utils.output import accuracy_cell, markdown_table, progress_bars
from mae_lm_fairseq.utils.versions import versions

MEMORY = 1 << 31
"""Bytes of hidden states to hold at a time. If all layers need more, the text is encoded several times."""


class Part(NamedTuple):
    """Sentences as the tokens of a model, and their labelled words."""

    texts: list[list[int]]
    positions: list[list[int]]
    """The first subword of each word, by sentence."""
    labels: list[str]
    sentences: np.ndarray
    """int[words]: the number of each word's sentence."""
    words: list[str]
    """The form of each word."""


def measure_models(options: ProbeOptions) -> dict[str, Any]:
    """Return the content of ``results.json``, and show progress.

    Raises:
        UserError: if a model or a file cannot be read, or scikit-learn is missing.
    """
    check_sklearn()
    column = options.column
    data = {"train": read_conllu(options.train, column, options.limit), "test": read_conllu(options.test, column)}
    if options.dev:
        data["dev"] = read_conllu(options.dev, column)
    check_labels(data["train"], options.train, column)
    paths = checked_models(options)
    random_weights, models = {}, {}
    for label, path in paths.items():
        reader = open_model(path, options.data_bin, options.ema)
        if reader.architecture not in random_weights:
            untrained = open_model(path, options.data_bin, random_weights=True)
            random_weights[reader.architecture] = measure(untrained, f"{label}, random weights", data)["layers"]
        found = measure(reader, label, data) | {"random weights": random_weights[reader.architecture]}
        models[label] = {"model": str(path), **found}
    return {
        "versions": versions() | {"scikit-learn": version("scikit-learn")},
        "data": {
            "train": str(options.train),
            "test": str(options.test),
            "dev": options.dev and str(options.dev),
            "column": column,
            "limit": options.limit,
        },
        "settings": {
            "iterations": ITERATIONS,
            "resamples": RESAMPLES,
            "bootstrap_seed": SEED,
            "random_weights_seed": RANDOM_SEED,
            "ema": options.ema,
        },
        "models": models,
    }


def measure(reader: Reader, label: str, data: dict[str, list[LabelledSentence]]) -> dict[str, Any]:
    """Return the accuracy of a probe on each layer, and of the most frequent label.

    Args:
        reader: the model.
        label: its name in the progress display.
        data: sentences by part: ``train``, ``test``, and perhaps ``dev``, which chooses the best layer.

    Returns:
        ``train_words``, ``test_words``, ``classes``, ``majority``, ``lookup`` (the accuracy of
        :class:`~mae_lm_fairseq.measures.probing.Lookup`), ``ambiguous_words`` (how many test words are ambiguous),
        ``ambiguous_lookup``, ``layers`` (from the embeddings up, with the accuracies of
        :func:`~mae_lm_fairseq.measures.probing.accuracy`, and ``ambiguous_accuracy``), ``best_layer``,
        ``last_less_best``.
    """
    parts = {name: _tokenised(reader, sentences) for name, sentences in data.items()}
    train, test = parts["train"], parts["test"]
    lookup = Lookup(train.words, train.labels)
    looked_up = np.array([lookup.label(word) for word in test.words]) == np.array(test.labels)
    is_ambiguous = lookup.are_ambiguous(test.words)
    layers = _layers(reader, parts, label, is_ambiguous)
    best = max(layers, key=lambda row: row.get("dev_accuracy", row["accuracy"]))
    return {
        "train_words": len(train.labels),
        "test_words": len(test.labels),
        "classes": len(set(train.labels)),
        "majority": accuracy(np.array(test.labels) == lookup.most_frequent, test.sentences),
        "lookup": accuracy(looked_up, test.sentences),
        "ambiguous_words": int(is_ambiguous.sum()),
        "ambiguous_lookup": float(looked_up[is_ambiguous].mean()) if is_ambiguous.any() else None,
        "layers": layers,
        "best_layer": best["layer"],
        "last_less_best": layers[-1]["accuracy"] - best["accuracy"],
    }


def _tokenised(reader: Reader, sentences: Sequence[LabelledSentence]) -> Part:
    """Return the tokens of sentences, without what is beyond the model's maximum sequence length."""
    texts, positions, labels, numbers, forms = [], [], [], [], []
    room = reader.states.max_tokens - len(reader.line_end) - len(reader.closing)
    for number, sentence in enumerate(sentences):
        ids, spans = reader.encode_with_spans(sentence.text)
        start = [*reader.opening, *map(int, ids)][:room]
        words = [len(reader.opening) + index for index in first_subwords(spans, sentence.starts)]
        labelled = zip(words, sentence.labels, sentence.words, strict=True)
        kept = [(word, label, form) for word, label, form in labelled if word < len(start)]
        texts.append([*start, *reader.line_end, *reader.closing])
        positions.append([word for word, _, _ in kept])
        labels += [label for _, label, _ in kept]
        forms += [form for _, _, form in kept]
        numbers += [number] * len(kept)
    return Part(texts, positions, labels, np.array(numbers), forms)


def _layers(reader: Reader, parts: dict[str, Part], label: str, is_ambiguous: np.ndarray) -> list[dict[str, Any]]:
    """Return the accuracy of a probe on each layer, of all test words and of those that ``is_ambiguous`` marks."""
    progress = progress_bars(label)
    rows, count, words = [], reader.states.layers + 1, sum(len(part.labels) for part in parts.values())
    at_once = max(1, MEMORY // (4 * reader.states.dim * words))
    for first in range(0, count, at_once):
        layers = range(first, min(first + at_once, count))
        states = [
            token_states(reader.states, part.texts, part.positions, layers, lambda x, name=name: progress(x, name))
            for name, part in parts.items()
        ]
        for layer, *of_layer in progress(list(zip(layers, *states, strict=True)), "probes"):
            labelled = [(x, part.labels) for x, part in zip(of_layer, parts.values(), strict=True)]
            correct, *dev = probe(*labelled)
            rows.append({"layer": layer, **accuracy(correct, parts["test"].sentences)})
            if is_ambiguous.any():
                rows[-1]["ambiguous_accuracy"] = float(correct[is_ambiguous].mean())
            if dev:
                rows[-1]["dev_accuracy"] = float(dev[0].mean())
    return rows


def markdown(results: dict[str, Any]) -> str:
    """Return the report of all models, from the content of ``results.json`` alone."""
    data, models = results["data"], results["models"]
    head = [
        f"# Probes of {data['column']}",
        "",
        f"Accuracy of a logistic regression on the frozen state of each word's first subword, trained on "
        f"`{data['train']}`, tested on `{data['test']}`. In brackets 95 % intervals "
        f"({results['settings']['resamples']:,} bootstrap resamples of the test sentences). Layer 0 is the embeddings. "
        + (
            f"The best layer is that of `{data['dev']}`." if data["dev"] else "The best layer is that of the test text."
        ),
        "",
        markdown_table(
            ["model", "test words", "most frequent label", "lookup", "best layer", "last layer", "last less best"],
            [_summary(label, model) for label, model in models.items()],
        ),
        "",
        "Lookup knows words alone: the label that each has most often in training. Ambiguous words have several labels "
        "in training; there a layer that is better than lookup and than layer 0 has read the context.",
    ]
    for label, model in models.items():
        rows = [
            [str(row["layer"]), accuracy_cell(row), _ambiguous(row), accuracy_cell(control)]
            for row, control in zip(model["layers"], model["random weights"], strict=True)
        ]
        head += ["", f"## {label}", ""]
        if model["ambiguous_words"]:
            head += [f"Of the test words {model['ambiguous_words']:,} are ambiguous.", ""]
            rows.append(["lookup", accuracy_cell(model["lookup"]), f"{100 * model['ambiguous_lookup']:.1f}%", ""])
        head.append(markdown_table(["layer", "model", "ambiguous words", "random weights"], rows))
    return "\n".join([*head, ""])


def _ambiguous(row: dict[str, Any]) -> str:
    """Return the accuracy of a layer on ambiguous words; nothing if no test word is ambiguous."""
    return f"{100 * row['ambiguous_accuracy']:.1f}%" if "ambiguous_accuracy" in row else ""


def _summary(label: str, model: dict[str, Any]) -> list[str]:
    best, last = model["layers"][model["best_layer"]], model["layers"][-1]
    return [
        label,
        f"{model['test_words']:,}",
        accuracy_cell(model["majority"]),
        accuracy_cell(model["lookup"]),
        f"{best['layer']}: {accuracy_cell(best)}",
        accuracy_cell(last),
        f"{100 * model['last_less_best']:+.1f}",
    ]

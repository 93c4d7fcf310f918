"""Measure what linear probes read off the frozen hidden states of every layer.

For each layer a logistic regression predicts a column of CoNLL-U files, such as the part of speech, from the state of
each word's first subword. Its controls are the embeddings (layer 0), the same architecture with random weights, and
the label that is most frequent in training. Writes results.json and report.md.

Example:
    mae-lm probe checkpoint_last.pt --data-bin data-bin --train ewt-train.conllu --test ewt-test.conllu \\
        --dev ewt-dev.conllu --column UPOS --limit 2500 --out results/upos
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from mae_lm_fairseq.measures.kind import Data, Kind, ModelOptions, Trained
from mae_lm_fairseq.measures.probing import SETTINGS, probe_layers
from mae_lm_fairseq.text.conllu import LabelledSentence, read_conllu
from mae_lm_fairseq.utils.command_line import Count, Directory, File
from mae_lm_fairseq.utils.files import make_output_directory, write_results
from mae_lm_fairseq.utils.output import accuracy_cell, markdown_table
from mae_lm_fairseq.utils.versions import versions


@dataclass(frozen=True, kw_only=True)
class Probe(Kind):
    """Linear probes of frozen hidden states for word labels, layer by layer.

    Attributes:
        column: the column to predict.
        limit: train on N sentences, evenly spaced (default: all).
        random_weights: measure the architecture with random weights instead, as a control.
    """

    kind: ClassVar = "probe"
    needs: ClassVar = ("probe_train", "probe_test")
    also_reads: ClassVar = ("probe_dev",)
    numbers: ClassVar = ("lookup", "most_frequent_label", "ambiguous_lookup", "ambiguous_words")
    by_layer: ClassVar = ("accuracy", "dev_accuracy", "ambiguous_accuracy")
    shown: ClassVar = ("accuracy", "ambiguous_accuracy")
    column: Literal["UPOS", "XPOS", "FEATS", "DEPREL"] = "UPOS"
    limit: Count | None = None
    random_weights: bool = False

    def check(self, data: Data) -> None:
        super().check(data)
        self.sentences(data)

    def sentences(self, data: Data) -> dict[str, list[LabelledSentence]]:
        """Return the sentences by part: ``train``, ``test`` and perhaps ``dev``, which chooses the best layer."""
        files = {"train": data.probe_train, "test": data.probe_test, "dev": data.probe_dev}
        limits = {"train": self.limit}
        return {name: read_conllu(path, self.column, limits.get(name)) for name, path in files.items() if path}

    def measure(self, model: Trained) -> dict[str, Any]:
        """Return the result of :func:`~mae_lm_fairseq.measures.probing.probe_layers`."""
        return probe_layers(model.open(), self.sentences(model.data), model.label)

    def recorded(self, found: dict[str, Any]) -> dict[str, float | list[float]]:
        """Return accuracies in per cent: of each layer, also on words that are ambiguous in training; of baselines."""
        names = [name for name in self.by_layer if name in found["layers"][0]]
        values = {name: [100 * row[name] for row in found["layers"]] for name in names}
        values["lookup"] = 100 * found["lookup"]["accuracy"]
        values["most_frequent_label"] = 100 * found["majority"]["accuracy"]
        if found["ambiguous_words"]:
            values["ambiguous_lookup"] = 100 * found["ambiguous_lookup"]
            values["ambiguous_words"] = 100 * found["ambiguous_words"] / found["test_words"]
        return values

    def table(self, models: Mapping[str, Mapping[str, Any]]) -> str:
        """Return tables of what is found in models, by label: a summary, and the layers of each model.

        Each model also has ``random weights``, the layers of its architecture before training.
        """
        header = ["model", "test words", "most frequent label", "lookup", "best layer", "last layer", "last less best"]
        lines = [markdown_table(header, [_summary(label, model) for label, model in models.items()])]
        lines += [
            "",
            "Lookup knows words alone: the label that each has most often in training. Ambiguous words have several "
            "labels in training; there a layer that is better than lookup and than layer 0 has read the context.",
        ]
        for label, model in models.items():
            rows = [
                [str(row["layer"]), accuracy_cell(row), _ambiguous(row), accuracy_cell(control)]
                for row, control in zip(model["layers"], model["random weights"], strict=True)
            ]
            lines += ["", f"## {label}", ""]
            if model["ambiguous_words"]:
                lines += [f"Of the test words {model['ambiguous_words']:,} are ambiguous.", ""]
                rows.append(["lookup", accuracy_cell(model["lookup"]), f"{100 * model['ambiguous_lookup']:.1f}%", ""])
            lines.append(markdown_table(["layer", "model", "ambiguous words", "random weights"], rows))
        return "\n".join(lines)


def _ambiguous(row: Mapping[str, Any]) -> str:
    return f"{100 * row['ambiguous_accuracy']:.1f}%" if "ambiguous_accuracy" in row else ""


def _summary(label: str, model: Mapping[str, Any]) -> list[str]:
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


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, Probe):
    """Models and data of linear probes.

    Attributes:
        train: CoNLL-U, plain or compressed, to train on.
        test: CoNLL-U, plain or compressed, to test on.
        dev: CoNLL-U to choose the best layer on (default: ``--test``).
        out: output directory.
    """

    train: File
    test: File
    dev: File | None = None
    random_weights: ClassVar = False
    out: Directory


_REPORT = """\
# Probes of {column}

Accuracy of a logistic regression on the frozen state of each word's first subword, trained on `{train}`, tested on \
`{test}`. In brackets 95 % intervals ({resamples:,} bootstrap resamples of the test sentences). Layer 0 is the \
embeddings. The best layer is that of {chosen}.

{table}
"""


def main(options: Options) -> None:
    """Run the verb."""
    make_output_directory(options.out)
    data = Data(options.data_bin, probe_train=options.train, probe_test=options.test, probe_dev=options.dev)
    options.check(data)
    models = options.trained(options, data)
    found = {}
    for model in models:
        found[model.label] = {"model": str(model.path), **options.measure(model)}
        found[model.label]["random weights"] = options.measure(model.untrained())["layers"]
    read = {name: path and str(path) for name in ("train", "test", "dev") for path in [getattr(options, name)]}
    results = {
        "versions": versions() | {"scikit-learn": version("scikit-learn")},
        "data": read | {"column": options.column, "limit": options.limit},
        "settings": SETTINGS | {"ema": options.ema},
        "models": found,
    }
    chosen = f"`{options.dev}`" if options.dev else "the test text"
    report = _REPORT.format(**results["data"], **SETTINGS, chosen=chosen, table=options.table(found))
    write_results(options.out, results, report)
    print(f"{options.out}: results.json, report.md")

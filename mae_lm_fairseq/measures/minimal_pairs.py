"""Measure how often masked language models prefer the grammatical sentence of a minimal pair.

Sentences are scored by pseudo-log-likelihood: every token is masked once, and predicted through the decoder if the
model has one. Beside each model are its controls: the same architecture with random weights, the frequency of the
tokens, and the length of the sentence. Writes results.json and report.md.

Examples:
    mae-lm minimal-pairs checkpoint_last.pt --data-bin data-bin --pairs blimp --out results/blimp
    mae-lm minimal-pairs bert-base-cased --pairs blimp --unigram train.txt --out results/bert
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mae_lm_fairseq.measures.kind import Data, Kind, ModelOptions, Trained
from mae_lm_fairseq.measures.paradigms import SETTINGS, Paradigm, read_paradigms, score, token_counts
from mae_lm_fairseq.text.text_files import find_files
from mae_lm_fairseq.utils.command_line import Count, Directory, File
from mae_lm_fairseq.utils.files import make_output_directory, write_results
from mae_lm_fairseq.utils.output import accuracy_cell, markdown_table
from mae_lm_fairseq.utils.versions import versions

CONTROLS = {
    "random weights": "the same architecture before training",
    "unigram": "the sum of the tokens' log-frequencies",
    "length": "the sentence with fewer tokens wins",
}
"""The controls of every model, and what they are."""


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(Kind):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: directory of the pairs; by default that of ``[data]``.
        limit: use N pairs of each file, evenly spaced (default: all).
        mask_words: mask each token together with the later subwords of its word.
        unigram: text to count tokens in for the frequency control (default: for a checkpoint the training data, as
            counted in the data-bin's dict.txt; for other models the control is left out).
        random_weights: measure the architecture with random weights instead, as a control.
    """

    kind: ClassVar = "minimal-pairs"
    needs: ClassVar = ("pairs",)
    with_head: ClassVar = True
    numbers: ClassVar = ("accuracy", "length", "unigram")
    pairs: Path | None = None
    limit: Count | None = None
    mask_words: bool = False
    unigram: File | None = None
    random_weights: bool = False

    def check(self, data: Data) -> None:
        super().check(data)
        self.paradigms(data)
        if self.unigram:
            find_files([self.unigram])

    def paradigms(self, data: Data) -> list[Paradigm]:
        """Return the pairs."""
        return read_paradigms(self.pairs or data.pairs, self.limit)

    def measure(self, model: Trained) -> dict[str, dict[str, Any]]:
        """Return the accuracies of ``model``, of sentence ``length`` and, where tokens are counted, of ``unigram``.

        Raises:
            UserError: if a sentence is too long for the model, or a file cannot be read.
        """
        reader = model.open(with_head=True)
        counts = token_counts(reader, model.data.data_bin, self.unigram)
        return score(reader, self.paradigms(model.data), self.mask_words, counts, model.label)

    def recorded(self, found: dict[str, dict[str, Any]]) -> dict[str, float]:
        """Return the accuracies in per cent."""
        names = {"accuracy": "model", "length": "length", "unigram": "unigram"}
        return {name: 100 * found[of]["overall"]["accuracy"] for name, of in names.items() if of in found}

    def table(self, models: Mapping[str, Mapping[str, Any]]) -> str:
        """Return tables of the accuracies of models and controls, by label: a summary, by field and by paradigm."""
        header = ["model", "accuracy", "ties", *CONTROLS]
        lines = [markdown_table(header, [_summary(*model) for model in models.items()])]
        for label, scores in models.items():
            lines += ["", f"## {label}"]
            columns = ["model", *(name for name in CONTROLS if name in scores)]
            for kind in ("fields", "paradigms"):
                rows = [
                    [name, f"{row['pairs']:,}", *(accuracy_cell(scores[column][kind][name]) for column in columns)]
                    for name, row in scores["model"][kind].items()
                ]
                lines += ["", markdown_table([kind.removesuffix("s"), "pairs", *columns], rows)]
        return "\n".join(lines)


def _summary(label: str, scores: Mapping[str, Any]) -> list[str]:
    overall = {name: table["overall"] for name, table in scores.items()}
    controls = [accuracy_cell(overall[name]) if name in overall else "-" for name in CONTROLS]
    return [label, accuracy_cell(overall["model"]), f"{overall['model']['ties']:,}", *controls]


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, MinimalPairs):
    """Models and minimal pairs.

    Attributes:
        pairs: BLiMP's files (``*.jsonl``) or Zorro's (``*.txt``).
        out: output directory.
    """

    pairs: Directory = field()
    random_weights: ClassVar = False
    out: Directory


_REPORT = """\
# Minimal pairs

{pairs:,} pairs of {paradigms} paradigms from `{directory}`. A pair is right if the grammatical sentence has the \
higher pseudo-log-likelihood: the sum of its tokens' log-probabilities, each token {masked}. Scores that differ by at \
most {tie:g} are tied and count one half. Every paradigm counts the same. In brackets 95 % intervals ({resamples:,} \
bootstrap resamples of the pairs).

Controls: {controls}.

{table}
"""


def main(options: Options) -> None:
    """Run the verb."""
    make_output_directory(options.out)
    data = Data(options.data_bin)
    options.check(data)
    paradigms = options.paradigms(data)
    models = options.trained(options, data)
    scores = {}
    for model in models:
        found = options.measure(model)
        control = {"random weights": options.measure(model.untrained())["model"]}
        scores[model.label] = {"model": found.pop("model"), **control, **found}
    pairs = {"directory": str(options.pairs), "limit": options.limit, "paradigms": len(paradigms)}
    results = {
        "versions": versions(),
        "pairs": pairs | {"pairs": sum(len(paradigm.pairs) for paradigm in paradigms)},
        "settings": SETTINGS | {"ema": options.ema, "mask_words": options.mask_words},
        "models": {model.label: {"model": str(model.path), "scores": scores[model.label]} for model in models},
    }
    report = _REPORT.format(
        **results["pairs"],
        **SETTINGS,
        masked="masked with the later subwords of its word" if options.mask_words else "masked on its own",
        controls="; ".join(f"*{name}*: {meaning}" for name, meaning in CONTROLS.items()),
        table=options.table(scores),
    )
    write_results(options.out, results, report)
    print(f"{options.out}: results.json, report.md")

"""Measure how often masked language models prefer the grammatical sentence of a minimal pair.

Sentences are scored by pseudo-log-likelihood: every token is masked once, and predicted through the decoder if the
model has one. Beside each model are its controls: the same architecture with random weights, the frequency of the
tokens, and the length of the sentence. Writes results.json and report.md.

Examples:
    mae-lm minimal-pairs checkpoint_last.pt --data-bin data-bin --pairs blimp --out results/blimp
    mae-lm minimal-pairs bert-base-cased --pairs blimp --unigram train.txt --out results/bert
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mae_lm_fairseq.measures.measure import Baseline, Data, Measure, Trained, Value
from mae_lm_fairseq.measures.readers import RANDOM_SEED, Reader
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.text.dictionary import read_counts
from mae_lm_fairseq.text.tables import read_table
from mae_lm_fairseq.text.text_files import find_files
from mae_lm_fairseq.text.text_samples import evenly_spaced, read_text
from mae_lm_fairseq.trained.masked_prediction import NEVER_MASKED, Words, as_words, pseudo_log_likelihoods
from mae_lm_fairseq.utils.command_line import Count, Directory, File
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import accuracy_cell, escaped, markdown_table, progress_bar
from mae_lm_fairseq.utils.versions import versions

CONTROLS = {
    "random weights": "the same architecture before training",
    "unigram": "the sum of the tokens' log-frequencies",
    "length": "the sentence with fewer tokens wins",
}
TIE = 1e-4
"""Scores that differ by at most this are tied, and count one half. Sums of float32 log-probabilities differ by less
when the same sentence is computed in another batch."""
SETTINGS = {"tie": TIE, "resamples": RESAMPLES, "bootstrap_seed": BOOTSTRAP_SEED, "random_weights_seed": RANDOM_SEED}
_POINTS = np.array([0, 0.5, 1])
"""For a pair that is wrong, tied, right."""


class Pair(NamedTuple):
    """A grammatical sentence, and an ungrammatical one that differs from it as little as possible."""

    good: str
    bad: str


class Paradigm(NamedTuple):
    """Pairs of one construction, and the field of grammar that it belongs to."""

    name: str
    field: str
    pairs: list[Pair]


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(Measure):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: directory of the pairs; by default that of ``[data]``.
        limit: use N pairs of each file, evenly spaced (default: all).
        mask_words: mask each token together with the later subwords of its word.
        unigram: text to count tokens in for the frequency control (default: for a checkpoint the training data, as
            counted in the data-bin's dict.txt; for other models the control is left out).
    """

    kind: ClassVar = "minimal-pairs"
    needs: ClassVar = ("pairs",)
    with_head: ClassVar = True
    values: ClassVar = (
        Value("accuracy", "accuracy on minimal pairs (%)", baseline=Baseline("length", "the shorter sentence")),
        Value("length", "accuracy of the shorter sentence (%)"),
        Value("unigram", "accuracy of the more frequent tokens (%)"),
    )
    pairs: Path | None = None
    limit: Count | None = None
    mask_words: bool = False
    unigram: File | None = None

    def check(self, data: Data) -> None:
        super().check(data)
        self.paradigms(data)
        if self.unigram:
            find_files([self.unigram])

    def paradigms(self, data: Data) -> list[Paradigm]:
        """Return the pairs."""
        return read_paradigms(self.pairs or data.pairs, self.limit)

    def measure(self, model: Trained) -> dict[str, dict[str, Any]]:
        """Return :func:`accuracies` of ``model``, of sentence ``length`` and, where tokens are counted, of ``unigram``.

        Raises:
            UserError: if a sentence is too long for the model, or a file cannot be read.
        """
        reader, paradigms = model.open(with_head=True), self.paradigms(model.data)
        texts = (text for paradigm in paradigms for pair in paradigm.pairs for text in pair)
        sentences = [as_words(reader.tokenizer, text) for text in texts]
        longest, most = max(len(sentence.ids) for sentence in sentences), reader.states.max_tokens
        if longest > most:
            raise UserError(f"--pairs: a sentence has {longest} tokens, and {model.path} takes at most {most}")
        progress = partial(progress_bar, desc=model.label)
        found = {"model": pseudo_log_likelihoods(reader.predictor, sentences, self.mask_words, progress)}
        if counts := token_counts(reader, model.data.data_bin, self.unigram):
            found["unigram"] = unigram_log_likelihoods(sentences, counts)
        found["length"] = negative_lengths(sentences)
        return {name: accuracies(paradigms, scores.reshape(-1, 2)) for name, scores in found.items()}

    def recorded(self, found: dict[str, dict[str, Any]]) -> dict[str, float]:
        """Return the accuracies in per cent."""
        names = {"accuracy": "model", "length": "length", "unigram": "unigram"}
        return {name: 100 * found[of]["overall"]["accuracy"] for name, of in names.items() if of in found}

    def table(self, models: Mapping[str, Mapping[str, Any]]) -> str:
        """Return tables of the accuracies of models and controls, by label: a summary, by field and by paradigm."""
        header = ["model", "accuracy", "ties", *CONTROLS]
        lines = [markdown_table(header, [_summary(*model) for model in models.items()])]
        for label, scores in models.items():
            lines += ["", f"## {escaped(label)}"]
            columns = ["model", *(name for name in CONTROLS if name in scores)]
            for kind in ("fields", "paradigms"):
                rows = [
                    [name, f"{row['pairs']:,}", *(accuracy_cell(scores[column][kind][name]) for column in columns)]
                    for name, row in scores["model"][kind].items()
                ]
                lines += ["", markdown_table([kind.removesuffix("s"), "pairs", *columns], rows)]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class MinimalPairsOrControl(MinimalPairs):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        random_weights: measure the architecture with random weights instead, as a control.
    """

    random_weights: bool = False


def _summary(label: str, scores: Mapping[str, Any]) -> list[str]:
    overall = {name: table["overall"] for name, table in scores.items()}
    controls = [accuracy_cell(overall[name]) if name in overall else "-" for name in CONTROLS]
    return [label, accuracy_cell(overall["model"]), f"{overall['model']['ties']:,}", *controls]


_REPORT = """\
# Minimal pairs

{pairs:,} pairs of {paradigms} paradigms from `{directory}`. A pair is right if the grammatical sentence has the \
higher pseudo-log-likelihood: the sum of its tokens' log-probabilities, each token {masked}. Scores that differ by at \
most {tie:g} are tied and count one half. Every paradigm counts the same. In brackets 95 % intervals ({resamples:,} \
bootstrap resamples of the pairs).

Controls: {controls}.

{table}
"""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions, MinimalPairs):
    """Models and minimal pairs.

    Attributes:
        pairs: BLiMP's files (``*.jsonl``) or Zorro's (``*.txt``).
    """

    pairs: Directory = field()

    def about(self) -> dict[str, Any]:
        paradigms = self.paradigms(self.data())
        return {
            "versions": versions(),
            "pairs": {
                "directory": str(self.pairs),
                "limit": self.limit,
                "paradigms": len(paradigms),
                "pairs": sum(len(paradigm.pairs) for paradigm in paradigms),
            },
            "settings": SETTINGS | {"ema": self.ema, "mask_words": self.mask_words},
        }

    def compare(self, model: Trained) -> dict[str, Any]:
        scores = self.measure(model)
        control = self.measure(model.untrained())["model"]
        scores = {"model": scores.pop("model"), "random weights": control, **scores}
        return {"model": str(model.path), "scores": scores}

    def report(self, results: Mapping[str, Any]) -> str:
        return _REPORT.format(
            **results["pairs"],
            **SETTINGS,
            masked="masked with the later subwords of its word" if self.mask_words else "masked on its own",
            controls="; ".join(f"*{name}*: {meaning}" for name, meaning in CONTROLS.items()),
            table=self.table({label: model["scores"] for label, model in results["models"].items()}),
        )


def read_paradigms(directory: Path, limit: int | None = None) -> list[Paradigm]:
    """Read the files of a directory in the layout of BLiMP (``*.jsonl``) or of Zorro (``*.txt``), by field.

    Args:
        limit: number of pairs of each file, evenly spaced, as neighbours are alike in Zorro; None for all.

    Raises:
        UserError: if there are files in both layouts or in neither, or a file is invalid.
    """
    blimp, zorro = sorted(directory.glob("*.jsonl")), sorted(directory.glob("*.txt"))
    if bool(blimp) == bool(zorro):
        raise UserError(
            f"--pairs {directory}: must hold either BLiMP's files (*.jsonl) or Zorro's (*.txt), and holds "
            f"{len(blimp)} and {len(zorro)} of them"
        )
    paradigms = []
    for path in blimp or zorro:
        paradigm = (_blimp if blimp else _zorro)(path)
        paradigms.append(paradigm._replace(pairs=evenly_spaced(paradigm.pairs, limit)))
        if not paradigm.pairs:
            raise UserError(f"{path}: has no minimal pairs")
    return sorted(paradigms, key=lambda paradigm: (paradigm.field, paradigm.name))


def _blimp(path: Path) -> Paradigm:
    rows, pairs = read_table(path).rows, []
    name, field = (rows[0][1].get(key) for key in ("UID", "field"))
    for number, row in rows:
        pair = Pair(*map(row.get, ("sentence_good", "sentence_bad")))
        is_text = all(isinstance(cell, str) and cell.strip() for cell in (*pair, name, field))
        if not is_text or (row.get("UID"), row.get("field")) != (name, field):
            raise UserError(f"{path}: line {number} is not a minimal pair of BLiMP ({row!s:.300}); correct it")
        pairs.append(pair)
    # One of BLiMP's files says syntax/semantics, the others syntax_semantics.
    return Paradigm(name, field.replace("/", "_"), pairs)


def _zorro(path: Path) -> Paradigm:
    pairs, bad = [], ""
    for number, line in enumerate(map(str.strip, read_text(path)), 1):
        if bad and not line:
            raise UserError(f"{path}: line {number} is blank or missing, and the sentence before it has no other one")
        if bad:
            pairs.append(Pair(line, bad))
        bad = "" if bad else line
    return Paradigm(path.stem, path.stem.partition("-")[0], pairs)


def token_counts(reader: Reader, data_bin: Path | None, text: Path | None) -> Mapping[int, int] | None:
    """Return how often each id occurs in a text, or else in a checkpoint's training data."""
    if text:
        lines = progress_bar(read_text(text), desc=f"tokens of {text}", unit=" lines")
        return Counter(index for line in lines for index in reader.encode(line)[0])
    if reader.path.is_dir():
        return None
    counts = read_counts(data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None


def unigram_log_likelihoods(sentences: Sequence[Words], counts: Mapping[int, int]) -> np.ndarray:
    """Return the sum of each token's log-probability by its frequency alone, with add-one smoothing."""
    total = sum(counts.values()) + len(counts) + 1
    return np.array([sum(math.log((counts.get(index, 0) + 1) / total) for index in _scored(x)) for x in sentences])


def negative_lengths(sentences: Sequence[Words]) -> np.ndarray:
    """Return minus the number of scored tokens: the order of sentences if every token is equally likely."""
    return -np.array([len(_scored(sentence)) for sentence in sentences], dtype=np.float64)


def _scored(sentence: Words) -> list[int]:
    return sentence.ids[sentence.words != NEVER_MASKED].tolist()


def accuracies(paradigms: Sequence[Paradigm], scores: np.ndarray) -> dict[str, Any]:
    """Return the accuracy of each paradigm, of each field and overall, as JSON-serialisable data.

    Every paradigm counts the same in its field and overall, as in BLiMP's own tables. The 95 % intervals come from
    resampling the pairs of each paradigm.

    Args:
        scores: float[pairs, 2], of the grammatical and the ungrammatical sentence, paradigm by paradigm.

    Returns:
        ``overall``, and by name ``fields`` and ``paradigms``: for each ``accuracy``, ``low`` and ``high`` in [0, 1],
        ``pairs``, and ``ties``, how many of them were tied.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    ends = np.cumsum([len(paradigm.pairs) for paradigm in paradigms])
    parts = [_counts(part) for part in np.split(scores, ends[:-1])]
    means = [_resampled(counts, generator) for counts in parts]
    fields = np.array([paradigm.field for paradigm in paradigms])

    def over(chosen: Sequence[int]) -> dict[str, Any]:
        return _row([parts[index] for index in chosen], [means[index] for index in chosen])

    return {
        "overall": over(range(len(paradigms))),
        "fields": {field: over(np.flatnonzero(fields == field)) for field in np.unique(fields).tolist()},
        "paradigms": {paradigm.name: over([index]) for index, paradigm in enumerate(paradigms)},
    }


def _counts(scores: np.ndarray) -> np.ndarray:
    margin = scores[:, 0] - scores[:, 1]
    return np.array([(margin < -TIE).sum(), (np.abs(margin) <= TIE).sum(), (margin > TIE).sum()])


def _resampled(counts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    # Pairs drawn with replacement are wrong, tied and right as often as a multinomial draw says.
    drawn = generator.multinomial(counts.sum(), counts / counts.sum(), RESAMPLES)
    return np.vstack([counts, drawn]) @ _POINTS / counts.sum()


def _row(counts: list[np.ndarray], means: list[np.ndarray]) -> dict[str, Any]:
    accuracy, *resampled = np.mean(means, axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    pairs, (_, ties, _) = int(np.sum(counts)), np.sum(counts, axis=0)
    return {"accuracy": float(accuracy), "low": float(low), "high": float(high), "pairs": pairs, "ties": int(ties)}

"""Measure how often masked language models prefer the grammatical sentence of a minimal pair.

Sentences are scored by pseudo-log-likelihood: every token is masked once, and predicted through the decoder if the
model has one. Beside each model are its controls: the same architecture with random weights, the frequency of the
tokens, and the length of the sentence. Writes results.json and report.md.

Examples:
    mae-lm minimal-pairs checkpoint_last.pt --data-bin data-bin --pairs blimp --out results/blimp
    mae-lm minimal-pairs bert-base-cased --pairs blimp --unigram train.txt --out results/bert
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mae_lm_fairseq.measures.measure import Baseline, Data, Measure, ModelToMeasure, Value
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

CONTROLS = {
    "random weights": "the same architecture before training",
    "unigram": "the sum of the tokens' log-frequencies",
    "length": "the sentence with fewer tokens wins",
}
TIE = 1e-4
"""Scores that differ by at most this are tied, and count one half. Sums of float32 log-probabilities differ by less
when the same sentence is computed in another batch."""
SETTINGS = {"tie": TIE, "resamples": RESAMPLES, "bootstrap_seed": BOOTSTRAP_SEED, "random_weights_seed": RANDOM_SEED}
GROUPS = {"field": "fields", "phenomenon": "phenomena", "paradigm": "paradigms"}
"""Keys of the accuracies of groups of pairs, by what a group is."""
_POINTS = np.array([0, 0.5, 1])
"""For a pair that is wrong, tied, right."""


class Pair(NamedTuple):
    """A grammatical sentence, and an ungrammatical one that differs from it as little as possible."""

    good: str
    bad: str


class Paradigm(NamedTuple):
    """Pairs of one construction, and the field of grammar and, in BLiMP, the phenomenon that it belongs to."""

    name: str
    field: str
    pairs: list[Pair]
    phenomenon: str | None = None


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(Measure):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: BLiMP's files (``*.jsonl``) or Zorro's (``*.txt``).
        limit: use N pairs of each file, evenly spaced (default: all).
        mask_words: mask each token together with the later subwords of its word.
        unigram: text to count tokens in for the frequency control (default: for a checkpoint the training data, as
            counted in the data-bin's dict.txt; for other models the control is left out).
    """

    kind: ClassVar = "minimal-pairs"
    with_head: ClassVar = True
    values: ClassVar = (
        Value("accuracy", "accuracy on minimal pairs (%)", baseline=Baseline("length", "the shorter sentence")),
        Value("length", "accuracy of the shorter sentence (%)"),
        Value("unigram", "accuracy of the more frequent tokens (%)", optional=True),
    )
    pairs: Directory
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

    def measure(self, model: ModelToMeasure) -> dict[str, dict[str, Any]]:
        """Return the :func:`accuracies` of ``model``, of ``length`` and, where tokens are counted, of ``unigram``.

        Raises:
            UserError: if a sentence is too long for the model, or a file cannot be read.
        """
        reader = model.open(with_head=True)
        paradigms = self.paradigms(model.data)
        sentences = []
        for paradigm in paradigms:
            for pair in paradigm.pairs:
                sentences += [as_words(reader.tokenizer, text) for text in pair]
        longest = max(len(sentence.ids) for sentence in sentences)
        most = reader.states.max_tokens
        if longest > most:
            raise UserError(f"--pairs: a sentence has {longest} tokens, and {model.path} takes at most {most}")

        progress = partial(progress_bar, desc=model.label)
        scores = {"model": pseudo_log_likelihoods(reader.predictor, sentences, self.mask_words, progress)}
        counts = token_counts(reader, model.data.data_bin, self.unigram)
        if counts:
            scores["unigram"] = unigram_log_likelihoods(sentences, counts)
        scores["length"] = negative_lengths(sentences)
        return {scorer: accuracies(paradigms, values.reshape(-1, 2)) for scorer, values in scores.items()}

    def recorded(self, result: dict[str, dict[str, Any]]) -> dict[str, float]:
        """Return the overall accuracies in per cent."""
        overall = {scorer: 100 * tables["overall"]["accuracy"] for scorer, tables in result.items()}
        values = {"accuracy": overall["model"], "length": overall["length"]}
        if "unigram" in overall:
            values["unigram"] = overall["unigram"]
        return values


# The verb measures this control beside every model, so that only a plan has an option for it.
@dataclass(frozen=True, kw_only=True)
class MinimalPairsOrControl(MinimalPairs):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: directory of the pairs; by default that of ``[data]``.
        random_weights: measure the architecture with random weights instead, as a control.
    """

    needs: ClassVar = ("pairs",)
    pairs: Path | None = None
    random_weights: bool = False


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
class Options(ModelOptions):
    """Models and minimal pairs."""

    measure: MinimalPairs

    def about(self) -> dict[str, Any]:
        paradigms = self.measure.paradigms(self.data())
        pairs = {
            "directory": str(self.measure.pairs),
            "limit": self.measure.limit,
            "paradigms": len(paradigms),
            "pairs": sum(len(paradigm.pairs) for paradigm in paradigms),
        }
        settings = SETTINGS | {"ema": self.ema, "mask_words": self.measure.mask_words}
        return {"pairs": pairs, "settings": settings}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        measured = self.measure.measure(model)
        untrained = self.measure.measure(model.untrained())
        in_order = {"model": measured["model"], "random weights": untrained["model"]}
        return {"scores": in_order | measured}

    def report(self, results: Mapping[str, Any]) -> str:
        masked = "masked with the later subwords of its word" if self.measure.mask_words else "masked on its own"
        models = {label: model["scores"] for label, model in results["models"].items()}
        controls = [f"*{name}*: {meaning}" for name, meaning in CONTROLS.items()]
        return _REPORT.format(
            **results["pairs"],
            tie=TIE,
            resamples=RESAMPLES,
            masked=masked,
            controls="; ".join(controls),
            table=_table(models),
        )


def _table(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of the accuracies of models and controls, by label: a summary, and those of each group."""
    header = ["model", "accuracy", "ties", *CONTROLS]
    summaries = [_summary(label, by_scorer) for label, by_scorer in models.items()]
    lines = [markdown_table(header, summaries)]
    for label, by_scorer in models.items():
        lines += ["", f"## {escaped(label)}"]
        for title, key in GROUPS.items():
            if key in by_scorer["model"]:
                lines += ["", _groups_table(title, key, by_scorer)]
    return "\n".join(lines)


def _summary(label: str, by_scorer: Mapping[str, Any]) -> list[str]:
    model = by_scorer["model"]["overall"]
    cells = [label, accuracy_cell(model), f"{model['ties']:,}"]
    for control in CONTROLS:
        cells.append(accuracy_cell(by_scorer[control]["overall"]) if control in by_scorer else "-")
    return cells


def _groups_table(title: str, key: str, by_scorer: Mapping[str, Any]) -> str:
    """Return a table with a row for each group."""
    scorers = ["model", *(control for control in CONTROLS if control in by_scorer)]
    rows = []
    for name, accuracy in by_scorer["model"][key].items():
        cells = [accuracy_cell(by_scorer[scorer][key][name]) for scorer in scorers]
        rows.append([name, f"{accuracy['pairs']:,}", *cells])
    return markdown_table([title, "pairs", *scorers], rows)


def read_paradigms(directory: Path, limit: int | None = None) -> list[Paradigm]:
    """Read the files of a directory in the layout of BLiMP (``*.jsonl``) or of Zorro (``*.txt``), by field.

    Args:
        limit: number of pairs of each file, evenly spaced, as neighbours are alike in Zorro; None for all.

    Raises:
        UserError: if there are files in both layouts or in neither, or a file is invalid.
    """
    blimp = sorted(directory.glob("*.jsonl"))
    zorro = sorted(directory.glob("*.txt"))
    if bool(blimp) == bool(zorro):
        raise UserError(
            f"--pairs {directory}: must hold either BLiMP's files (*.jsonl) or Zorro's (*.txt), and holds "
            f"{len(blimp)} and {len(zorro)} of them"
        )
    paradigms = []
    for path in blimp or zorro:
        paradigm = _blimp(path) if blimp else _zorro(path)
        if not paradigm.pairs:
            raise UserError(f"{path}: has no minimal pairs")
        paradigms.append(paradigm._replace(pairs=evenly_spaced(paradigm.pairs, limit)))
    return sorted(paradigms, key=lambda paradigm: (paradigm.field, paradigm.name))


def _blimp(path: Path) -> Paradigm:
    rows = read_table(path).rows
    _, first = rows[0]
    name = first.get("UID")
    field = first.get("field")
    phenomenon = first.get("linguistics_term")
    pairs = []
    for number, row in rows:
        pair = Pair(row.get("sentence_good"), row.get("sentence_bad"))
        is_of_paradigm = row.get("UID") == name and row.get("field") == field
        if not is_of_paradigm or not all(map(_is_text, (*pair, name, field, phenomenon or field))):
            raise UserError(f"{path}: line {number} is not a minimal pair of BLiMP ({row!s:.300}); correct it")
        pairs.append(pair)
    # One of BLiMP's files says syntax/semantics, the others syntax_semantics.
    return Paradigm(name, field.replace("/", "_"), pairs, phenomenon)


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and bool(cell.strip())


def _zorro(path: Path) -> Paradigm:
    pairs = []
    bad = ""
    for number, line in enumerate(map(str.strip, read_text(path)), 1):
        if not bad:
            bad = line
        elif line:
            pairs.append(Pair(line, bad))
            bad = ""
        else:
            raise UserError(f"{path}: line {number} is blank or missing, and the sentence before it has no other one")
    return Paradigm(path.stem, path.stem.partition("-")[0], pairs)


def token_counts(reader: Reader, data_bin: Path | None, text: Path | None) -> Mapping[int, int] | None:
    """Return how often each id occurs in a text, or else in a checkpoint's training data."""
    if text:
        counts: Counter[int] = Counter()
        for line in progress_bar(read_text(text), desc=f"tokens of {text}", unit=" lines"):
            ids, _ = reader.encode(line)
            counts.update(ids)
        return counts
    if reader.path.is_dir():
        return None
    counts = read_counts(data_bin / DICTIONARY)
    # A dict.txt that was written without counting has the same number everywhere.
    return counts if len(set(counts.values())) > 1 else None


def unigram_log_likelihoods(sentences: Sequence[Words], counts: Mapping[int, int]) -> np.ndarray:
    """Return the sum of each token's log-probability by its frequency alone, with add-one smoothing."""
    total = sum(counts.values()) + len(counts) + 1
    scores = []
    for sentence in sentences:
        smoothed = [counts.get(index, 0) + 1 for index in _scored(sentence)]
        scores.append(sum(math.log(count / total) for count in smoothed))
    return np.array(scores)


def negative_lengths(sentences: Sequence[Words]) -> np.ndarray:
    """Return minus the number of scored tokens: the order of sentences if every token is equally likely."""
    return -np.array([len(_scored(sentence)) for sentence in sentences], dtype=np.float64)


def _scored(sentence: Words) -> list[int]:
    return sentence.ids[sentence.words != NEVER_MASKED].tolist()


def accuracies(paradigms: Sequence[Paradigm], scores: np.ndarray) -> dict[str, Any]:
    """Return the accuracy of each group of paradigms and overall, as JSON-serialisable data.

    Every paradigm counts the same in its group and overall, as in BLiMP's own tables. The 95 % intervals come from
    resampling the pairs of each paradigm.

    Args:
        scores: float[pairs, 2], of the grammatical and the ungrammatical sentence, paradigm by paradigm.

    Returns:
        ``overall``, and by name ``fields``, ``phenomena`` (if they are known) and ``paradigms``: for each
        ``accuracy``, ``low`` and ``high`` in [0, 1], ``pairs``, and ``ties``, how many of them were tied.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    all_outcomes = []
    groups = {key: defaultdict(list) for key in GROUPS.values()}
    first = 0
    for paradigm in paradigms:
        last = first + len(paradigm.pairs)
        outcomes = _outcomes(scores[first:last], generator)
        all_outcomes.append(outcomes)
        names = (paradigm.field, paradigm.phenomenon, paradigm.name)
        for key, name in zip(groups, names, strict=True):
            if name is not None:
                groups[key][name].append(outcomes)
        first = last

    rows = {"overall": _row(all_outcomes)}
    for key, by_name in groups.items():
        if by_name:
            rows[key] = {name: _row(of_group) for name, of_group in by_name.items()}
    return rows


class _Outcomes(NamedTuple):
    """Outcomes of the pairs of a paradigm."""

    pairs: int
    ties: int
    accuracies: np.ndarray
    """float[1 + RESAMPLES]: the accuracy of the pairs, and of each resample."""


def _outcomes(scores: np.ndarray, generator: np.random.Generator) -> _Outcomes:
    margin = scores[:, 0] - scores[:, 1]
    wrong = (margin < -TIE).sum()
    tied = (np.abs(margin) <= TIE).sum()
    right = (margin > TIE).sum()
    counts = np.array([wrong, tied, right])
    pairs = counts.sum()
    # Pairs drawn with replacement are wrong, tied and right as often as a multinomial draw says.
    drawn = generator.multinomial(pairs, counts / pairs, RESAMPLES)
    accuracies = np.vstack([counts, drawn]) @ _POINTS / pairs
    return _Outcomes(int(pairs), int(tied), accuracies)


def _row(outcomes: Sequence[_Outcomes]) -> dict[str, Any]:
    accuracy, *resampled = np.mean([outcome.accuracies for outcome in outcomes], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {
        "accuracy": float(accuracy),
        "low": float(low),
        "high": float(high),
        "pairs": sum(outcome.pairs for outcome in outcomes),
        "ties": sum(outcome.ties for outcome in outcomes),
    }

"""Measure how well an encoder's vectors find the passage that answers a question, without training.

Passages are ranked by the cosine of their vectors with the question's: the mean of the last layer's hidden states, or
the first one. Controls are BM25, which compares words, and the mean of the input embeddings (layer 0). A passage that
is longer than the model takes is read in overlapping windows, and its best window counts. The file of questions is in
SQuAD's JSON, or a table beside a table of passages, as in BEIR. Writes results.json and report.md.

Examples:
    mae-lm retrieval checkpoint_last.pt --data-bin data-bin --questions dev-v1.1.json --out results/squad
    mae-lm retrieval bert-base --questions queries.jsonl --passages corpus.jsonl --relevance test.tsv --out results/own
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from mae_lm_fairseq.measures.measure import Baseline, Data, Measure, ModelToMeasure, Value
from mae_lm_fairseq.measures.readers import Reader, padded_batches
from mae_lm_fairseq.measures.verb import ModelOptions
from mae_lm_fairseq.statistics.effective_rank import BOOTSTRAP_SEED, RESAMPLES, ratio_interval
from mae_lm_fairseq.statistics.token_states import LayerStates
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.text.tables import WRITTEN, cell_text, read_table
from mae_lm_fairseq.text.tokenizer import BOS, EOS
from mae_lm_fairseq.utils.command_line import Argument, File
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.output import markdown_table, progress_bar

VECTORS = {"mean": "mean of the last layer", "first": "first of the last layer", "bag": "mean of the input embeddings"}
_BM25 = Baseline("bm25_ndcg", "BM25")
METRICS = {"ndcg": "nDCG@10", "recall": "recall@1"}
DEPTH = 10
"""Number of the best passages that count."""
K1, B = 1.2, 0.75
"""Parameters of BM25, those of Lucene."""
DECIMALS = 6
"""Scores that are equal to so many decimals are tied. Float32 sums in another batch differ by less."""
LONGEST = 512
"""Maximum of the default of ``tokens_per_sample`` for models whose training is unknown."""
SETTINGS = {"k1": K1, "b": B, "decimals": DECIMALS, "resamples": RESAMPLES, "bootstrap_seed": BOOTSTRAP_SEED}


class Collection(NamedTuple):
    """Texts of passages and questions."""

    passages: list[str]
    questions: list[str]
    relevance: list[dict[int, float]]
    """For each question, the relevance of passages by number, where it is above 0."""
    left_out: list[int | None]
    """For each question, the number of the passage that is not ranked for it: the one with its id, as in BEIR."""


@dataclass(frozen=True, kw_only=True)
class Retrieval(Measure):
    """Retrieval of the passages that answer questions, by the cosine of vectors: nDCG@10 and recall@1.

    Attributes:
        questions: SQuAD's JSON; or, with ``passages``, a table (TSV, CSV, JSON lines, Parquet) with the columns _id and
            text and, without ``relevance``, corpus-id and perhaps score.
        passages: table with the columns _id, text and perhaps title.
        relevance: table with the columns query-id, corpus-id and perhaps score (default: 1).
        tokens_per_sample: maximum length of a window in tokens (default: that of the training; if it is unknown, what
            the model takes, at most 512).
    """

    kind: ClassVar = "retrieval"
    values: ClassVar = (
        Value("mean_ndcg", f"nDCG@10 (%), {VECTORS['mean']}", shown=True, baseline=_BM25),
        Value("mean_recall"),
        Value("first_ndcg", f"nDCG@10 (%), {VECTORS['first']}", shown=True, baseline=_BM25),
        Value("first_recall"),
        Value("bag_ndcg", f"nDCG@10 (%), {VECTORS['bag']}"),
        Value("bag_recall"),
        Value("bm25_ndcg"),
        Value("bm25_recall"),
    )
    questions: File
    passages: File | None = None
    relevance: File | None = None
    tokens_per_sample: Annotated[int, Argument("N", at_least=4)] | None = None

    def check(self, data: Data) -> None:
        super().check(data)
        self.collection()

    def collection(self) -> Collection:
        """Return questions and passages.

        Raises:
            UserError: if a file cannot be read, has no question with a relevant passage, or names a text that the
                others lack.
        """
        if self.relevance and not self.passages:
            raise UserError(f"--relevance {self.relevance}: needs --passages, the table of the passages")
        if self.passages:
            return read_tables(self.questions, self.passages, self.relevance)
        if self.questions.suffix in WRITTEN:
            raise UserError(
                f"--questions {self.questions}: a table needs --passages, the table of the passages, and --relevance "
                "if it has no column corpus-id; without --passages, the questions are a file in SQuAD's format"
            )
        return read_questions(self.questions)

    def measure(self, model: ModelToMeasure) -> dict[str, Any]:
        """Return the :func:`summary` of each of :data:`VECTORS` and of ``bm25``, and what was compared.

        Raises:
            UserError: if a file cannot be read, or the model does not take windows of this length.
        """
        reader = model.open()
        collection = self.collection()
        length = self.tokens_per_sample or reader.trained_length or min(LONGEST, reader.states.max_tokens)
        reader.check_length(length)

        # Of a longer question, the end is not read.
        questions = [windows(reader, text, length)[0] for text in collection.questions]
        question_vectors = embed(reader, questions, f"{model.label}, questions")
        passages = [windows(reader, text, length) for text in collection.passages]
        all_windows = list(chain.from_iterable(passages))
        window_vectors = embed(reader, all_windows, f"{model.label}, passages")
        first_windows = np.cumsum([0, *map(len, passages[:-1])])

        def best_windows(name: str, question: int) -> np.ndarray:
            cosines = window_vectors[name] @ question_vectors[name][question]
            return np.maximum.reduceat(cosines, first_windows)

        results = {
            "questions": len(questions),
            "passages": len(passages),
            "windows": len(all_windows),
            "tokens_per_sample": length,
        }
        for name in VECTORS:
            results[name] = summary(partial(best_windows, name), collection)
        results["bm25"] = summary(bm25(collection.passages, collection.questions), collection)
        return results

    def recorded(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics in per cent."""
        values = {}
        for name in self.value_names():
            vector, metric = name.split("_")
            values[name] = 100 * result[vector][metric]["mean"]
        return values


def read_questions(path: Path) -> Collection:
    """Read SQuAD's JSON: the passages are its paragraphs, and a question has one relevant passage.

    Raises:
        UserError: see :meth:`Retrieval.collection`.
    """
    paragraphs = read_squad(path, version_2=True)
    passages = list(dict.fromkeys(paragraph.context for paragraph in paragraphs))
    numbers = {text: number for number, text in enumerate(passages)}
    questions, relevance = [], []
    for paragraph in paragraphs:
        for question in paragraph.questions:
            if question.answers:
                questions.append(question.text)
                relevance.append({numbers[paragraph.context]: 1.0})
    if not questions:
        raise UserError(f"{path}: no question has an answer")
    return Collection(passages, questions, relevance, left_out=[None] * len(questions))


def read_tables(questions: Path, passages: Path, relevance: Path | None) -> Collection:
    """Read tables of questions, passages and relevance, with BEIR's columns; see :class:`Retrieval`.

    Raises:
        UserError: see :meth:`Retrieval.collection`.
    """
    passage_texts = _texts(passages, has_titles=True)
    if not any(passage_texts.values()):
        raise UserError(f"{passages}: no passage has a text")
    numbers = {passage: number for number, passage in enumerate(passage_texts)}
    question_texts = _texts(questions, has_titles=False)

    path = relevance or questions
    question_column = "query-id" if relevance else "_id"
    relevant: dict[str, dict[int, float]] = defaultdict(dict)
    for line, row in _rows(path, question_column, "corpus-id"):
        question, passage = row[question_column], row["corpus-id"]
        for text_id, known in ((question, question_texts), (passage, numbers)):
            if text_id not in known:
                raise UserError(f"{path}: line {line}: the tables have no text with the id {text_id!r}; correct it")
        score = _score(path, line, row.get("score", "1"))
        if score > 0:
            relevant[question][numbers[passage]] = score
    if not relevant:
        raise UserError(f"{path}: has no question with a relevant passage")

    left_out = []
    for question, scores in relevant.items():
        number = numbers.get(question)
        # A passage that the file calls relevant is ranked, whatever its id.
        left_out.append(None if number in scores else number)
    texts = [question_texts[question] for question in relevant]
    return Collection(list(passage_texts.values()), texts, list(relevant.values()), left_out)


def _texts(path: Path, has_titles: bool) -> dict[str, str]:
    """Return the texts of a table by id; those of passages after their titles.

    Raises:
        UserError: if an id is missing, or is that of two different texts.
    """
    texts: dict[str, str] = {}
    for line, row in _rows(path, "_id", "text"):
        name, text = row["_id"], row["text"]
        if has_titles:
            text = f"{row.get('title', '')} {text}".strip()
        if not name:
            raise UserError(f"{path}: line {line} has no _id; give each text one")
        if texts.setdefault(name, text) != text:
            raise UserError(f"{path}: line {line}: the _id {name!r} is also that of another text; correct it")
    return texts


def _score(path: Path, line: int, text: str) -> float:
    """Return the relevance in a cell.

    Raises:
        UserError: if it is no finite number: NaN would drop the row, and infinity make the mean NaN.
    """
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{path}: line {line}: the score {text!r} is no number; correct it")
    return score


def _rows(path: Path, *columns: str) -> list[tuple[int, dict[str, str]]]:
    """Return line numbers and rows of a table that has some columns."""
    table = read_table(path)
    table.check_columns(columns)
    if table.malformed:
        line, problem = table.malformed[0]
        raise UserError(f"{path}: line {line} has {problem}")
    rows = []
    for line, row in table.rows:
        rows.append((line, {name: cell_text(cell) for name, cell in row.items()}))
    return rows


def windows(reader: Reader, text: str, length: int) -> list[list[int]]:
    """Return a text as windows of up to ``length`` tokens, which overlap by half."""
    ids, _ = reader.encode(text)
    ids = ids.tolist()
    room = length - 2
    stride = max(1, room // 2)
    last_start = max(0, len(ids) - room)
    starts = range(0, last_start + stride, stride)
    return [[BOS, *ids[start : start + room], EOS] for start in starts]


def embed(reader: Reader, texts: Sequence[Sequence[int]], title: str) -> dict[str, np.ndarray]:
    """Return the normalised :data:`VECTORS` of texts of tokens by name, float32[texts, dim] each."""
    vectors = {name: np.empty((len(texts), reader.states.dim), dtype=np.float32) for name in VECTORS}
    for numbers, tokens in padded_batches(texts, reader.states.pad, partial(progress_bar, desc=title)):
        rows, length = tokens.shape
        embeddings, *_, last_layer = reader.states(tokens, see_masks=False)
        mean, first = pooled(last_layer, rows, length)
        bag, _ = pooled(embeddings, rows, length)
        for name, pools in {"mean": mean, "first": first, "bag": bag}.items():
            vectors[name][numbers] = F.normalize(pools, dim=1).cpu().numpy()
    return vectors


def pooled(layer: LayerStates, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the first hidden state of each row of a batch, float32[rows, dim] each."""
    states = layer.states.float()
    row = (layer.index // length).to(states.device)
    counts = row.bincount(minlength=rows)
    total = states.new_zeros(rows, states.shape[1]).index_add_(0, row, states)
    first = counts.cumsum(0) - counts
    return total / counts[:, None], states[first]


def bm25(passages: Sequence[str], questions: Sequence[str]) -> Callable[[int], np.ndarray]:
    """Return a function from the number of a question to the scores of the passages, float64[passages].

    Okapi BM25 (Robertson and Zaragoza, 2009) with the inverse document frequency of Lucene, which is positive. Words
    are runs of letters and digits, in lower case. Without a word in any passage, all scores are 0.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(token_pattern=r"\w+")
    if not any(map(vectorizer.build_analyzer(), passages)):  # scikit-learn refuses an empty vocabulary
        return lambda question: np.zeros(len(passages))
    counts = vectorizer.fit_transform(passages).astype(float).tocoo()
    lengths = np.asarray(counts.sum(1)).ravel()
    damping = K1 * (1 - B + B * lengths / lengths.mean())
    having = counts.getnnz(0)
    lacking = len(passages) - having
    rarity = np.log(1 + (lacking + 0.5) / (having + 0.5))
    damped = counts.data + damping[counts.row]
    counts.data *= rarity[counts.col] * (K1 + 1) / damped
    weights = counts.tocsr()
    words = vectorizer.transform(questions)
    return lambda question: (weights @ words[question].T).toarray().ravel()


def summary(scores: Callable[[int], np.ndarray], collection: Collection) -> dict[str, dict[str, float]]:
    """Return each of :data:`METRICS`: its ``mean`` over questions, and ``low`` and ``high`` of the 95 % interval.

    Args:
        scores: returns the scores of the passages for the number of a question.
    """
    rows = []
    for question, relevance in enumerate(collection.relevance):
        by_name = metrics(scores(question), relevance, collection.left_out[question])
        rows.append([*by_name.values()])
    values = np.array(rows)  # [questions, metrics]

    summaries = {}
    for name, mean, column in zip(METRICS, values.mean(0).tolist(), values.T, strict=True):
        low, high = ratio_interval(column, np.ones(len(values)))
        summaries[name] = {"mean": mean, "low": low, "high": high}
    return summaries


def metrics(scores: np.ndarray, relevance: Mapping[int, float], left_out: int | None = None) -> dict[str, float]:
    """Return the :data:`METRICS` of a question by name, as in BEIR: the gain of a passage is its relevance.

    Passages whose scores are tied, see :data:`DECIMALS`, are ranked in the order of the file.

    Args:
        left_out: number of the passage that is not ranked, see :class:`Collection`.
    """
    ranked = np.argsort(-scores.round(DECIMALS), kind="stable")
    if left_out is not None:
        ranked = ranked[ranked != left_out]
    gains = [relevance.get(passage, 0.0) for passage in ranked[:DEPTH].tolist()]
    ideal = sorted(relevance.values(), reverse=True)[:DEPTH]
    is_found = bool(gains) and gains[0] > 0
    return {
        "ndcg": discounted(gains) / discounted(ideal),
        "recall": is_found / len(relevance),
    }


def discounted(gains: Sequence[float]) -> float:
    """Return the discounted cumulative gain of at most :data:`DEPTH` ranked passages."""
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    return float(np.dot(gains, discounts[: len(gains)]))


_REPORT = """\
# Retrieval

{questions:,} questions from `{file}`; {passages:,} passages are ranked for each. In brackets 95 % intervals \
({resamples:,} bootstrap resamples of the questions). Controls: BM25 and the input embeddings compare words alone.

{table}
"""


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Models and questions."""

    measure: Retrieval

    def about(self) -> dict[str, Any]:
        data = {
            "questions": str(self.measure.questions),
            "passages": str(self.measure.passages or ""),
            "relevance": str(self.measure.relevance or ""),
        }
        return {"data": data, "settings": SETTINGS | {"ema": self.ema}}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        return self.measure.measure(model)

    def report(self, results: Mapping[str, Any]) -> str:
        models = results["models"]
        any_model = next(iter(models.values()))
        sizes = {name: any_model[name] for name in ("questions", "passages")}
        return _REPORT.format(**sizes, file=self.measure.questions, resamples=RESAMPLES, table=_table(models))


def _table(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results of models, by label, as a Markdown table."""
    any_model = next(iter(models.values()))
    rows = [["BM25", "words", *_cells(any_model["bm25"])]]
    for label, results in models.items():
        for name, vector in VECTORS.items():
            rows.append([label, vector, *_cells(results[name])])
    return markdown_table(["model", "compares", *METRICS.values()], rows)


def _cells(summaries: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a cell for each metric."""
    return ["{mean:.1%} [{low:.1%}, {high:.1%}]".format_map(summaries[name]) for name in METRICS]

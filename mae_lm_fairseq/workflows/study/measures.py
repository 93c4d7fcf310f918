"""Measures: what a study can measure of a trained model.

A measure is a function of a trained model and of its options, a dataclass whose fields are its keys in a plan. It
returns values by name: numbers, or lists with a number for each layer from the embeddings up. To add one, write both
and a row of :data:`MEASURES` with the names of its values.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, Literal

from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256

# torch, fairseq and scikit-learn are imported where they are used: the list of measures needs none of them.

Measured = dict[str, float | list[float]]


@dataclass(frozen=True)
class Data:
    """Files of a study.

    Attributes:
        data_bin: the data-bin to train on.
        text: held-out text.
        probe_train, probe_dev, probe_test: CoNLL-U files for probes.
        pairs: directory of minimal pairs.
        glue_dir: local copy of GLUE.
    """

    data_bin: Path
    text: Path | None = None
    probe_train: Path | None = None
    probe_dev: Path | None = None
    probe_test: Path | None = None
    pairs: Path | None = None
    glue_dir: Path | None = None


@dataclass(frozen=True)
class Trained:
    """A trained model to measure.

    Attributes:
        path: its checkpoint.
        data: the files of the study.
        masks: where the ``[MASK]`` tokens are, see :func:`~mae_lm_fairseq.measures.readers.open_model`.
        folder: directory for what a measure keeps.
        log: the log of its training.
    """

    path: Path
    data: Data
    masks: str
    folder: Path
    log: Path

    def open(self, with_head: bool = False, random_weights: bool = False):
        """Return the model with its tokenizer, a :class:`~mae_lm_fairseq.measures.readers.Reader`."""
        from mae_lm_fairseq.measures.readers import open_model

        options = {"with_head": with_head, "random_weights": random_weights, "masks": self.masks}
        return open_model(self.path, self.data.data_bin, **options)


class Options:
    """Base of the options of a measure.

    Raises:
        ValueError: if a value is out of range; the message begins with the name of the option.
    """

    needs: ClassVar[Sequence[str]] = ()

    def __post_init__(self):
        for field in fields(self):
            value, minimum = getattr(self, field.name), MINIMA.get(field.name)
            if value is not None and minimum is not None and value < minimum:
                raise ValueError(f"{field.name} {value} must be at least {minimum}")
            if field.name in ("mask_prob", "threshold") and not 0 < value < 1:
                raise ValueError(f"{field.name} {value} must be above 0 and below 1")


MINIMA = {"tokens": 1, "tokens_per_sample": 4, "limit": 1, "seeds": 1, "max_updates": 1, "seed": 0}
"""Lower bounds of options of measures."""


@dataclass(frozen=True)
class Loss(Options):
    """Masked loss at fixed positions, the same for all models.

    Attributes:
        on: the held-out text, or the validation split of the data-bin (``valid``: all of it).
        tokens: amount of text, in tokens.
        tokens_per_sample: maximum sequence length.
        mask_prob: fraction of the tokens to mask.
        seed: seed of the positions.
    """

    on: Literal["text", "valid"] = "text"
    tokens: int = 50_000
    tokens_per_sample: int = 128
    mask_prob: float = 0.15
    seed: int = 1

    @property
    def needs(self) -> tuple[str, ...]:
        return ("text",) if self.on == "text" else ()


def loss(model: Trained, options: Loss) -> Measured:
    """Return loss (nats per masked token), accuracy and, of a text, its unigram entropy."""
    if options.on == "valid":
        from mae_lm_fairseq.measures import inspection

        masking = {"mask_prob": options.mask_prob, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0}
        masking |= {"mask_whole_words": False, "seed": options.seed}
        return {"loss": inspection.masked_loss(*inspection.load(model.path, model.data.data_bin, **masking))}
    from mae_lm_fairseq.measures.evaluation import Evaluation, masked_prediction

    shape = {name: getattr(options, name) for name in ("tokens", "tokens_per_sample", "mask_prob", "seed")}
    found = masked_prediction(model.open(with_head=True), "loss", Evaluation(model.data.text, **shape))
    return {name: found[name] for name in ("loss", "accuracy", "unigram_entropy")}


@dataclass(frozen=True)
class Rank(Options):
    """Effective ranks of hidden states, layer by layer; keeps their second moments.

    Attributes:
        tokens: amount of text, in tokens.
        tokens_per_sample: maximum sequence length.
        mask_prob: fraction of the tokens to mask.
        threshold: fraction of the sum of squares that the directions of the threshold rank hold.
        centred: measure around the mean instead of zero, unlike the paper.
        seed: seed of the masks.
    """

    tokens: int = 20_000
    tokens_per_sample: int = 128
    mask_prob: float = 0.15
    threshold: float = 0.9
    centred: bool = False
    seed: int = 1
    needs: ClassVar = ("text",)


def rank(model: Trained, options: Rank) -> Measured:
    """Return threshold and entropy rank, named TOKENS_INPUT and entropy_TOKENS_INPUT.

    Tokens are ``real``, ``mask`` and, of inputs with both, ``all``. Inputs are ``clean`` text, text with ``[MASK]``
    ``as_trained``, and ``forced`` into the encoder. The second moments are kept, see :class:`Moments`.
    """
    from mae_lm_fairseq.statistics.effective_rank import ranks
    from mae_lm_fairseq.statistics.rank_profile import RankSettings, rank_profile

    reader, kept = model.open(), Moments()
    texts = reader.texts(model.data.text, options.tokens_per_sample, options.tokens)
    settings = RankSettings(options.mask_prob, options.threshold, options.centred, bootstrap=2, seed=options.seed)

    def keep(layer: int, kind: str, tokens: str, moments) -> None:
        kept.add(layer, f"{tokens}_{kind}", moments)

    profile = rank_profile(reader.states, texts, reader.special, settings, _bars("ranks"), keep_moments=keep)
    kept.save(model.folder / f"rank-{model.path.stem}.safetensors")
    found = {}
    for row in profile["ranks"]:
        layer, kind, tokens = row["layer"], row["input"], row["tokens"]
        rows = {tokens: row}
        if tokens == "mask":
            rows["all"] = ranks(kept.together(layer, kind).energies(centred=options.centred)[0], options.threshold)
        for name, of in rows.items():
            found[f"{name}_{kind}", layer] = float(of["threshold"])
            found[f"entropy_{name}_{kind}", layer] = float(of["entropy"])
    return by_layer(found, reader.states.layers)


class Moments:
    """Second moments of hidden states, from which any rank can be computed without the model.

    The safetensors file has, for each name and layer, ``NAME.LAYER.products`` float32[dim, dim] (sum of the outer
    products of the states), ``.sums`` float32[dim] and ``.count``.
    """

    def __init__(self):
        self.tensors: dict[str, Any] = {}

    def add(self, layer: int, name: str, moments) -> None:
        """Add a :class:`~mae_lm_fairseq.statistics.effective_rank.SecondMoments`."""
        for kind in ("products", "sums", "counts"):
            self.tensors[f"{name}.{layer}.{kind.replace('counts', 'count')}"] = getattr(moments, kind).sum(0).float()

    def together(self, layer: int, kind: str):
        """Return the second moments of real tokens and of ``[MASK]`` in an input, as one matrix of states."""
        from mae_lm_fairseq.statistics.effective_rank import SecondMoments

        both = [f"{tokens}_{kind}.{layer}" for tokens in ("real", "mask")]
        moments = SecondMoments(self.tensors[f"{both[0]}.sums"].numel())
        for name in both:
            moments.counts += self.tensors[f"{name}.count"]
            moments.sums += self.tensors[f"{name}.sums"]
            moments.products += self.tensors[f"{name}.products"]
        return moments

    def save(self, path: Path) -> None:
        """Write the file."""
        from safetensors.torch import save_file

        save_file(self.tensors, path)


def by_layer(found: Mapping[tuple[str, int], float], layers: int) -> Measured:
    """Return values by name and layer as lists; NaN, as None, for layers that have no value."""
    names = dict.fromkeys(name for name, _ in found)
    return {name: [found.get((name, layer)) for layer in range(layers + 1)] for name in names}


@dataclass(frozen=True)
class Exclusivity(Options):
    """Share of ``[MASK]`` outside the directions of real tokens, with controls; keeps second moments.

    Attributes:
        tokens: amount of text, in tokens, evenly spaced.
        tokens_per_sample: maximum sequence length.
        mask_prob: fraction of the tokens to mask.
        seed: seed of masks and random groups.
    """

    tokens: int = 50_000
    tokens_per_sample: int = 128
    mask_prob: float = 0.15
    seed: int = 1
    needs: ClassVar = ("text",)


def exclusivity(model: Trained, options: Exclusivity) -> Measured:
    """Return the numbers of :func:`~mae_lm_fairseq.statistics.exclusivity.exclusivity`; of controls, a summary."""
    from mae_lm_fairseq.statistics.exclusivity import exclusivity, halves

    reader, kept = model.open(), Moments()
    texts = reader.texts_of_documents(model.data.text, options.tokens_per_sample, options.tokens)
    ids, words, documents = zip(
        *((text.ids.tolist(), text.words.tolist(), number) for text, number in texts), strict=True
    )
    parts = halves(ids, documents, words)
    settings = options.mask_prob, options.seed, _bars("exclusivity")
    rows = exclusivity(reader.states, parts, reader.special, *settings, keep_moments=kept.add)
    kept.save(model.folder / f"exclusivity-{model.path.stem}.safetensors")
    found = {}
    for row in rows:
        layer, controls = row.pop("layer"), {name: row.pop(name, []) for name in ("types", "groups")}
        found |= {(name, layer): value for name, value in row.items()}
        for name, values in controls.items():
            summary = {"lowest": min, "median": median, "highest": max} if values else {}
            found |= {(f"{name}_{of}", layer): function(values) for of, function in summary.items()}
    return by_layer(found, reader.states.layers)


@dataclass(frozen=True)
class Probe(Options):
    """Linear probes of frozen hidden states for word labels, layer by layer.

    Attributes:
        column: column of the CoNLL-U files to predict.
        limit: number of training sentences, evenly spaced; by default all.
        random_weights: measure the architecture with random weights instead, as a control.
    """

    column: Literal["UPOS", "XPOS", "FEATS", "DEPREL"] = "UPOS"
    limit: int | None = None
    random_weights: bool = False
    needs: ClassVar = ("probe_train", "probe_test")


def probe(model: Trained, options: Probe) -> Measured:
    """Return accuracies in per cent: of every layer, also on words that are ambiguous in training, and of baselines."""
    from mae_lm_fairseq.measures.probes import measure
    from mae_lm_fairseq.text.conllu import read_conllu

    data = {
        "train": read_conllu(model.data.probe_train, options.column, options.limit),
        "test": read_conllu(model.data.probe_test, options.column),
    }
    if model.data.probe_dev:
        data["dev"] = read_conllu(model.data.probe_dev, options.column)
    found = measure(model.open(random_weights=options.random_weights), "probe", data)
    names = [name for name in ("accuracy", "dev_accuracy", "ambiguous_accuracy") if name in found["layers"][0]]
    values: Measured = {name: [100 * row[name] for row in found["layers"]] for name in names}
    values |= {"lookup": 100 * found["lookup"]["accuracy"], "most_frequent_label": 100 * found["majority"]["accuracy"]}
    if found["ambiguous_words"]:
        values["ambiguous_lookup"] = 100 * found["ambiguous_lookup"]
        values["ambiguous_words"] = 100 * found["ambiguous_words"] / found["test_words"]
    return values


@dataclass(frozen=True)
class MinimalPairs(Options):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: directory of the pairs; by default that of ``[data]``.
        limit: number of pairs of each file, evenly spaced; by default all.
        mask_words: while a token is predicted, mask the later subwords of its word, too.
        random_weights: measure the architecture with random weights instead, as a control.
    """

    pairs: Path | None = None
    limit: int | None = None
    mask_words: bool = False
    random_weights: bool = False
    needs: ClassVar = ("pairs",)


def minimal_pairs(model: Trained, options: MinimalPairs) -> Measured:
    """Return the accuracy in per cent, and that of the sentences' lengths."""
    from mae_lm_fairseq.measures.minimal_pairs.files import read_paradigms
    from mae_lm_fairseq.measures.minimal_pairs.measurement import measure

    paradigms = read_paradigms(options.pairs or model.data.pairs, options.limit)
    reader = model.open(with_head=True, random_weights=options.random_weights)
    found = measure(reader, "minimal pairs", paradigms, options.mask_words)
    return {name: 100 * found[of]["overall"]["accuracy"] for name, of in (("accuracy", "model"), ("length", "length"))}


@dataclass(frozen=True)
class Finetune(Options):
    """Fine-tuning on a task of GLUE.

    Attributes:
        task: the task, such as RTE.
        learning_rates: learning rates to try; by default the recipe's.
        seeds: number of fine-tuning seeds, which are averaged.
        max_updates: maximum number of updates.
    """

    task: str
    learning_rates: tuple[float, ...] = ()
    seeds: int = 1
    max_updates: int | None = None
    needs: ClassVar = ("glue_dir",)


def finetune(model: Trained, options: Finetune) -> Measured:
    """Return the metrics of the best learning rate on the development set, in per cent, averaged over the seeds."""
    from mae_lm_fairseq.finetuning.options import GlueOptions
    from mae_lm_fairseq.finetuning.sentences.run import finetune

    return _averaged(finetune(GlueOptions(task=options.task, glue_dir=model.data.glue_dir, **_sweep(model, options))))


@dataclass(frozen=True)
class Tagging(Options):
    """Fine-tuning on labelled words.

    Attributes:
        train, dev: files of labelled words.
        column: column of the labels.
        learning_rates, seeds, max_updates: as for ``finetune``.
    """

    train: Path
    dev: Path
    column: str = "UPOS"
    learning_rates: tuple[float, ...] = ()
    seeds: int = 1
    max_updates: int | None = None


def tagging(model: Trained, options: Tagging) -> Measured:
    """Return the metrics of the best learning rate on the development file, in per cent, averaged over the seeds."""
    from mae_lm_fairseq.finetuning.options import TaggingOptions
    from mae_lm_fairseq.finetuning.tagging.run import finetune

    files = {"train": options.train, "dev": options.dev, "column": options.column}
    return _averaged(finetune(TaggingOptions(**files, **_sweep(model, options))))


def _sweep(model: Trained, options: Finetune | Tagging) -> dict[str, Any]:
    """Return the options of a fine-tuning sweep."""
    return {
        "model": model.path,
        "data_bin": model.data.data_bin,
        "out": model.folder / f"finetuned-{model.path.stem}-{getattr(options, 'task', 'tagging')}",
        "seeds": options.seeds,
        "learning_rates": options.learning_rates or None,
        "max_updates": options.max_updates,
    }


def _averaged(results: Mapping[str, Any]) -> Measured:
    return {name: fmean(metric["values"]) for name, metric in results["metrics"].items()}


@dataclass(frozen=True)
class Seconds(Options):
    """Speed of training: median seconds per update, and tokens per update."""


def seconds(model: Trained, options: Seconds) -> Measured:
    """Return median seconds and mean number of tokens per update, from the log."""
    from mae_lm_fairseq.training.training_log import read_records, seconds_per_update

    tokens = [float(record["wpb"]) for record in read_records(model.log, "train_inner").values()]
    return {"per_update": seconds_per_update(model.log), "tokens_per_update": fmean(tokens)}


@dataclass(frozen=True)
class Kind:
    """A kind of measure.

    Attributes:
        name: its name in plans.
        options: the dataclass of its options.
        function: measures a model.
        numbers: names of its values that are numbers; None if they depend on the options.
        by_layer: names of its values by layer. Models may lack some.
    """

    name: str
    options: type
    function: Callable[[Trained, Any], Measured]
    numbers: Sequence[str] | None = ()
    by_layer: Sequence[str] = ()


_RANKED = (
    "real_clean",
    *(f"{tokens}_{kind}" for kind in ("as_trained", "forced") for tokens in ("real", "mask", "all")),
)
_EXCLUSIVITY = (
    *(f"{name}_{t}" for t in (0.9, 0.99) for name in ("mask", "held_out", "exclusivity", "dimensions")),
    "type_quantile",
    *(f"{control}_{of}" for control in ("types", "groups") for of in ("lowest", "median", "highest")),
)
_BASELINES = ("lookup", "most_frequent_label", "ambiguous_lookup", "ambiguous_words")
MEASURES = {
    kind.name: kind
    for kind in (
        Kind("loss", Loss, loss, ("loss", "accuracy", "unigram_entropy")),
        Kind("rank", Rank, rank, (), [f"{prefix}{kind}" for prefix in ("", "entropy_") for kind in _RANKED]),
        Kind("exclusivity", Exclusivity, exclusivity, (), _EXCLUSIVITY),
        Kind("probe", Probe, probe, _BASELINES, ("accuracy", "dev_accuracy", "ambiguous_accuracy")),
        Kind("minimal-pairs", MinimalPairs, minimal_pairs, ("accuracy", "length")),
        Kind("finetune", Finetune, finetune, None),
        Kind("tagging", Tagging, tagging, None),
        Kind("seconds", Seconds, seconds, ("per_update", "tokens_per_update")),
    )
}
"""Measures by their names in plans."""


def fingerprints(data: Data, options: Iterable[Any]) -> dict[str, str]:
    """Return hashes of the content of all files that a study reads, by path.

    Args:
        data: the files of the study.
        options: options of its measures.

    Raises:
        UserError: if a file does not exist or cannot be read.
    """
    found = {}
    for item in (data, *options):
        for path in (value for field in fields(item) if isinstance(value := getattr(item, field.name), Path)):
            if not path.exists():
                raise UserError(f"{path} does not exist")
            found[str(path)] = directory_sha256(path)
    return found


def _bars(label: str) -> Callable[[Sequence, str], Iterable]:
    """Return a function that iterates over steps with a progress bar."""
    from mae_lm_fairseq.utils.progress import progress_bar

    return lambda steps, name: progress_bar(steps, desc=f"{label}, {name}")

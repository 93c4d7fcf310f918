"""Measures: what a study can measure of a trained model.

A kind of measure is a dataclass whose fields are its keys in a plan. Its method ``measure`` returns values by name:
numbers, or lists with a number for each layer from the embeddings up. Its method ``check`` reads its files before
anything is trained. To add a kind, write the class and name it in :data:`MEASURES`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, Literal

from mae_lm_fairseq.measures.options import Evaluation, MaskedText, Scoring, WordLabels
from mae_lm_fairseq.statistics.rank_settings import RankSettings
from mae_lm_fairseq.utils.command_line import Count, LearningRate, Natural, Options
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import directory_sha256
from mae_lm_fairseq.utils.output import progress_bars

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
        kept: path, without an ending, of what the measure keeps.
        log: the log of its training.
    """

    path: Path
    data: Data
    masks: str
    kept: Path
    log: Path

    def open(self, with_head: bool = False, random_weights: bool = False):
        """Return the model with its tokenizer, a :class:`~mae_lm_fairseq.measures.readers.Reader`."""
        from mae_lm_fairseq.measures.readers import open_model

        options = {"with_head": with_head, "random_weights": random_weights, "masks": self.masks}
        return open_model(self.path, None if self.path.is_dir() else self.data.data_bin, **options)


class Kind(Options):
    """Base of the kinds of measures. The first line of a kind's docstring is its description for users.

    Attributes:
        kind: its name in plans.
        needs: the files of ``[data]`` that it reads.
        also_reads: files of ``[data]`` that it reads if they are given.
        numbers: names of its values that are numbers; None if they depend on the options.
        by_layer: names of its values by layer. Models may lack some.
        shown: names of the values that a report leads with; all if empty.
    """

    kind: ClassVar[str]
    needs: ClassVar[Sequence[str]] = ()
    also_reads: ClassVar[Sequence[str]] = ()
    numbers: ClassVar[Sequence[str] | None] = ()
    by_layer: ClassVar[Sequence[str]] = ()
    shown: ClassVar[Sequence[str]] = ()

    def values(self) -> list[str] | None:
        """Return the names of all its values with these options; None if they depend on more."""
        return None if self.numbers is None else [*self.numbers, *self.by_layer]

    def files(self, data: Data) -> dict[str, Path]:
        """Return the files that it reads, besides the data-bin, by the name of their key."""
        of_data = {name: getattr(data, name) for name in (*self.needs, *self.also_reads)}
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: path for found in (of_data, own) for name, path in found.items() if isinstance(path, Path)}

    def check(self, data: Data) -> None:
        """Read the files of the measure.

        Raises:
            UserError: if one cannot be read.
        """
        from mae_lm_fairseq.text.tokenizer_files import find_tokenizer

        if find_tokenizer(data.data_bin) is None:
            raise UserError(f"{data.data_bin} has no tokenizer, which is needed to read text")

    def measure(self, model: Trained) -> Measured:
        """Measure a model."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Loss(Kind, MaskedText):
    """Masked loss at fixed positions, the same for all models.

    Attributes:
        on: the held-out text, or the validation split of the data-bin (``valid``: all of it), which has the loss alone.
    """

    kind: ClassVar = "loss"
    numbers: ClassVar = ("loss", "accuracy", "unigram_entropy")
    shown: ClassVar = ("loss", "accuracy")
    on: Literal["text", "valid"] = "text"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("text",) if self.on == "text" else ()

    def values(self) -> list[str] | None:
        return super().values() if self.on == "text" else ["loss"]

    def check(self, data: Data) -> None:
        if self.on == "text":
            super().check(data)

    def measure(self, model: Trained) -> Measured:
        """Return loss (nats per masked token), accuracy and, of a text, its unigram entropy."""
        if self.on == "valid":
            from mae_lm_fairseq.measures.evaluation import load, masked_loss

            masking = {"mask_prob": self.mask_prob, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0}
            masking |= {"mask_whole_words": False, "seed": self.seed}
            return {"loss": masked_loss(*load(model.path, model.data.data_bin, **masking))}
        from mae_lm_fairseq.measures.evaluation import masked_prediction

        found = masked_prediction(model.open(with_head=True), "loss", model.data.text, self)
        return {name: found[name] for name in self.numbers}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Kind, MaskedText):
    """Loss, accuracy and pseudo-perplexity on the held-out text, as ``mae-lm evaluate`` measures them.

    Attributes:
        pseudo_tokens: tokens to use for pseudo-perplexity, which predicts each of them twice.
    """

    kind: ClassVar = "evaluate"
    needs: ClassVar = ("text",)
    numbers: ClassVar = (
        *("loss", "unigram_entropy", "accuracy", "predicted"),
        *("pseudo_perplexity_per_token", "tokens", "pseudo_perplexity_per_word", "words"),
    )
    shown: ClassVar = ("loss", "accuracy", "pseudo_perplexity_per_token")
    pseudo_tokens: Count = 5_000

    def measure(self, model: Trained) -> Measured:
        """Return the numbers of :func:`~mae_lm_fairseq.measures.evaluation.measure`."""
        from mae_lm_fairseq.measures.evaluation import measure

        evaluation = Evaluation(text=model.data.text, **vars(self))
        return measure(model.open(with_head=True), self.kind, evaluation)


_RANKED = (
    "real_clean",
    *(f"{tokens}_{kind}" for kind in ("as_trained", "forced") for tokens in ("real", "mask", "all")),
)


@dataclass(frozen=True, kw_only=True)
class Rank(Kind, RankSettings, MaskedText):
    """Effective ranks of hidden states, layer by layer; keeps their second moments."""

    kind: ClassVar = "rank"
    needs: ClassVar = ("text",)
    by_layer: ClassVar = [f"{prefix}{kind}" for prefix in ("", "entropy_") for kind in _RANKED]
    shown: ClassVar = ("real_clean", "real_as_trained", "mask_as_trained", "all_as_trained")
    tokens: Count = 20_000
    bootstrap: ClassVar = 2  # the least: a study tests over seeds

    def measure(self, model: Trained) -> Measured:
        """Return threshold and entropy rank, named TOKENS_INPUT and entropy_TOKENS_INPUT.

        Tokens are ``real``, ``mask`` and, of inputs with both, ``all``. Inputs are ``clean`` text, text with ``[MASK]``
        ``as_trained``, and ``forced`` into the encoder. The second moments are kept, see :class:`Moments`.
        """
        from mae_lm_fairseq.statistics.effective_rank import ranks
        from mae_lm_fairseq.statistics.rank_profile import rank_profile

        reader, kept = model.open(), Moments()
        texts = reader.texts(model.data.text, self.tokens_per_sample, self.tokens)
        progress = progress_bars("ranks")
        profile = rank_profile(reader.states, texts, reader.special, self, progress, keep_moments=kept.add)
        kept.save(model.kept.with_suffix(".safetensors"))
        found = {}
        for row in profile["ranks"]:
            layer, kind, tokens = row["layer"], row["input"], row["tokens"]
            rows = {tokens: row}
            if tokens == "mask":
                rows["all"] = ranks(kept.together(layer, kind).energies(centred=self.centred)[0], self.threshold)
            for name, of in rows.items():
                found[f"{name}_{kind}", layer] = float(of["threshold"])
                found[f"entropy_{name}_{kind}", layer] = float(of["entropy"])
        return _by_layer(found, reader.states.layers)


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


def _by_layer(found: Mapping[tuple[str, int], float], layers: int) -> Measured:
    """Return values by name and layer as lists; NaN, as None, for layers that have no value."""
    names = dict.fromkeys(name for name, _ in found)
    return {name: [found.get((name, layer)) for layer in range(layers + 1)] for name in names}


@dataclass(frozen=True, kw_only=True)
class Exclusivity(Kind, MaskedText):
    """Share of ``[MASK]`` outside the directions of real tokens, with controls; keeps second moments."""

    kind: ClassVar = "exclusivity"
    needs: ClassVar = ("text",)
    by_layer: ClassVar = (
        *(f"{name}_{t}" for t in (0.9, 0.99) for name in ("mask", "held_out", "exclusivity", "dimensions")),
        "type_quantile",
        *(f"{control}_{of}" for control in ("types", "groups") for of in ("lowest", "median", "highest")),
    )
    shown: ClassVar = ("exclusivity_0.9", "types_highest", "type_quantile")

    def measure(self, model: Trained) -> Measured:
        """Return the numbers of :mod:`~mae_lm_fairseq.statistics.exclusivity`; of controls, a summary."""
        from mae_lm_fairseq.measures.ranks import exclusive_directions

        reader, kept = model.open(), Moments()
        rows = exclusive_directions(reader, model.data.text, self, progress_bars("exclusivity"), kept.add)
        kept.save(model.kept.with_suffix(".safetensors"))
        found = {}
        for row in rows:
            layer, controls = row.pop("layer"), {name: row.pop(name, []) for name in ("types", "groups")}
            found |= {(name, layer): value for name, value in row.items()}
            for name, values in controls.items():
                summary = {"lowest": min, "median": median, "highest": max} if values else {}
                found |= {(f"{name}_{of}", layer): function(values) for of, function in summary.items()}
        return _by_layer(found, reader.states.layers)


@dataclass(frozen=True, kw_only=True)
class Probe(Kind, WordLabels):
    """Linear probes of frozen hidden states for word labels, layer by layer.

    Attributes:
        random_weights: measure the architecture with random weights instead, as a control.
    """

    kind: ClassVar = "probe"
    needs: ClassVar = ("probe_train", "probe_test")
    also_reads: ClassVar = ("probe_dev",)
    numbers: ClassVar = ("lookup", "most_frequent_label", "ambiguous_lookup", "ambiguous_words")
    by_layer: ClassVar = ("accuracy", "dev_accuracy", "ambiguous_accuracy")
    shown: ClassVar = ("accuracy", "ambiguous_accuracy")
    random_weights: bool = False

    def check(self, data: Data) -> None:
        from mae_lm_fairseq.measures.probing import check_labels, check_sklearn

        super().check(data)
        check_sklearn()
        check_labels(self._sentences(data)["train"], data.probe_train, self.column)

    def _sentences(self, data: Data) -> dict[str, list]:
        from mae_lm_fairseq.text.conllu import read_conllu

        files = {"train": data.probe_train, "test": data.probe_test, "dev": data.probe_dev}
        return {
            name: read_conllu(path, self.column, self.limit if name == "train" else None)
            for name, path in files.items()
            if path
        }

    def measure(self, model: Trained) -> Measured:
        """Return accuracies in per cent: of each layer, also on words that are ambiguous in training; of baselines."""
        from mae_lm_fairseq.measures.probes import measure

        found = measure(model.open(random_weights=self.random_weights), "probe", self._sentences(model.data))
        names = [name for name in self.by_layer if name in found["layers"][0]]
        values: Measured = {name: [100 * row[name] for row in found["layers"]] for name in names}
        values["lookup"] = 100 * found["lookup"]["accuracy"]
        values["most_frequent_label"] = 100 * found["majority"]["accuracy"]
        if found["ambiguous_words"]:
            values["ambiguous_lookup"] = 100 * found["ambiguous_lookup"]
            values["ambiguous_words"] = 100 * found["ambiguous_words"] / found["test_words"]
        return values


@dataclass(frozen=True, kw_only=True)
class MinimalPairs(Kind, Scoring):
    """Accuracy on minimal pairs, such as BLiMP's.

    Attributes:
        pairs: directory of the pairs; by default that of ``[data]``.
        random_weights: measure the architecture with random weights instead, as a control.
    """

    kind: ClassVar = "minimal-pairs"
    needs: ClassVar = ("pairs",)
    numbers: ClassVar = ("accuracy", "length")
    pairs: Path | None = None
    random_weights: bool = False

    def check(self, data: Data) -> None:
        super().check(data)
        self._paradigms(data)

    def _paradigms(self, data: Data) -> list:
        from mae_lm_fairseq.measures.minimal_pairs.files import read_paradigms

        return read_paradigms(self.pairs or data.pairs, self.limit)

    def measure(self, model: Trained) -> Measured:
        """Return the accuracy in per cent, and that of the sentences' lengths."""
        from mae_lm_fairseq.measures.minimal_pairs.measurement import measure

        reader = model.open(with_head=True, random_weights=self.random_weights)
        found = measure(reader, "minimal pairs", self._paradigms(model.data), self.mask_words)
        return {
            "accuracy": 100 * found["model"]["overall"]["accuracy"],
            "length": 100 * found["length"]["overall"]["accuracy"],
        }


@dataclass(frozen=True, kw_only=True)
class Sweep(Kind):
    """Base of fine-tuning: the metrics of the best learning rate, in per cent, averaged over the seeds.

    Attributes:
        learning_rates: learning rates to try; by default the recipe's.
        seeds: number of fine-tuning seeds, which are averaged.
        max_updates: maximum number of updates.
        trained_layers: train only the last N layers of the encoder, as ``--trained-layers``; by default, all.
    """

    numbers: ClassVar = None
    learning_rates: tuple[LearningRate, ...] = ()
    seeds: Count = 1
    max_updates: Count | None = None
    trained_layers: Natural | None = None

    def _options(self, model: Trained) -> dict[str, Any]:
        """Return the options of a fine-tuning sweep."""
        import torch

        layers = self.trained_layers
        return {
            "model": model.path,
            "data_bin": model.data.data_bin,
            "out": model.kept,
            "seeds": self.seeds,
            "learning_rates": self.learning_rates or None,
            "max_updates": self.max_updates,
            "threads": torch.get_num_threads(),
            "extra": () if layers is None else ("--trained-layers", str(layers)),
        }


def _averaged(results: Mapping[str, Any]) -> Measured:
    return {name: fmean(metric["values"]) for name, metric in results["metrics"].items()}


@dataclass(frozen=True, kw_only=True)
class Finetune(Sweep):
    """Fine-tuning on a task of GLUE.

    Attributes:
        task: the task, such as RTE.
    """

    kind: ClassVar = "finetune"
    needs: ClassVar = ("glue_dir",)
    task: str

    def check(self, data: Data) -> None:
        from mae_lm_fairseq.finetuning.sentences.glue import GlueFiles
        from mae_lm_fairseq.finetuning.sentences.tasks import TASKS

        super().check(data)
        if self.task not in TASKS:
            raise UserError(f"task {self.task} is not one of {', '.join(TASKS)}")
        sets = GlueFiles(TASKS[self.task], data.glue_dir)
        for split in sets.splits:
            sets.read(split)

    def measure(self, model: Trained) -> Measured:
        """Return the metrics on the development set."""
        from mae_lm_fairseq.finetuning.driver import finetune
        from mae_lm_fairseq.finetuning.options import GlueOptions

        options = self._options(model)
        return _averaged(finetune(GlueOptions(task=self.task, glue_dir=model.data.glue_dir, **options)))


@dataclass(frozen=True, kw_only=True)
class Tagging(Sweep):
    """Fine-tuning on labelled words.

    Attributes:
        train, dev: files of labelled words.
        column: column of the labels.
    """

    kind: ClassVar = "tagging"
    train: Path
    dev: Path
    column: str = "UPOS"

    def check(self, data: Data) -> None:
        from mae_lm_fairseq.finetuning.tagging.files import column_of, read_words
        from mae_lm_fairseq.finetuning.tagging.labels import learn_labels

        super().check(data)
        train = read_words(self.train, self.column)
        learn_labels(train).targets(read_words(self.dev, column_of(train, self.column)))

    def measure(self, model: Trained) -> Measured:
        """Return the metrics on the development file."""
        from mae_lm_fairseq.finetuning.driver import finetune
        from mae_lm_fairseq.finetuning.options import TaggingOptions

        files = {"train": self.train, "dev": self.dev, "column": self.column}
        return _averaged(finetune(TaggingOptions(**files, **self._options(model))))


@dataclass(frozen=True, kw_only=True)
class Seconds(Kind):
    """Speed of training: median seconds per update, and tokens per update."""

    kind: ClassVar = "seconds"
    numbers: ClassVar = ("per_update", "tokens_per_update")

    def check(self, data: Data) -> None:
        """Do nothing: the log is written by the training."""

    def measure(self, model: Trained) -> Measured:
        """Return median seconds and mean number of tokens per update, from the log."""
        from mae_lm_fairseq.training.training_log import read_records, seconds_per_update

        tokens = [float(record["wpb"]) for record in read_records(model.log, "train_inner").values()]
        if not tokens:  # the updates since the last checkpoint are fewer than --log-interval
            return dict.fromkeys(self.numbers)
        return {"per_update": seconds_per_update(model.log), "tokens_per_update": fmean(tokens)}


MEASURES = {
    one.kind: one for one in (Loss, Evaluate, Rank, Exclusivity, Probe, MinimalPairs, Finetune, Tagging, Seconds)
}
"""Kinds of measures by their names in plans."""


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

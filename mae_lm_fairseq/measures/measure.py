"""Measures: what a study and a verb of ``mae-lm`` can measure of a trained model.

A measure is one class. Its fields are its options, in a plan and on the command line, and a table lists its values.
:func:`~mae_lm_fairseq.measures.registry.register_measure` makes it known.
"""

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from mae_lm_fairseq.measures.figures import Line, Panel, plot_panels
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer, missing_tokenizer
from mae_lm_fairseq.utils.command_line import Argument, Count, Natural, Options, Probability
from mae_lm_fairseq.utils.errors import UserError, meant

if TYPE_CHECKING:
    from mae_lm_fairseq.measures.readers import Reader


@dataclass(frozen=True)
class Data:
    """Files of a study, or of a verb that measures.

    Attributes:
        data_bin: the data-bin to train on; it has the tokenizer of checkpoints.
        text: held-out text.
        probe_train, probe_dev, probe_test: CoNLL-U files for probes.
        pairs: directory of minimal pairs.
        glue_dir: local copy of GLUE.
    """

    data_bin: Path | None
    text: Path | None = None
    probe_train: Path | None = None
    probe_dev: Path | None = None
    probe_test: Path | None = None
    pairs: Path | None = None
    glue_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ModelToMeasure:
    """A model to measure: a trained one, or its architecture with random weights.

    Attributes:
        label: its name in the progress display.
        path: checkpoint, bundle, or directory of ``transformers``.
        data: the files to measure it on.
        masks: where the ``[MASK]`` tokens are, see :func:`~mae_lm_fairseq.measures.readers.open_model`.
        ema: use the moving average of a checkpoint's weights.
        random_weights: replace the trained weights by random ones, as before training.
        kept: path, without an ending, of what the measure keeps; None to keep nothing.
        log: the log of its training.
        timed: the updates in the log whose duration counts; None for all.
        trained_length: maximum length of a sequence in training, in tokens, if a verb has opened it and it is known.
        ends_lines: whether lines end with ``</s>`` even if it is of ``transformers``, as those of a model beside it do.
    """

    label: str
    path: Path
    data: Data
    masks: str = "trained"
    ema: bool = False
    random_weights: bool = False
    kept: Path | None = None
    log: Path | None = None
    timed: range | None = None
    trained_length: int | None = None
    ends_lines: bool = False

    def open(self, with_head: bool = False) -> "Reader":
        """Return the model with its tokenizer."""
        from mae_lm_fairseq.measures.readers import open_model  # needs torch

        reader = open_model(
            self.path,
            self.data.data_bin,
            self.ema,
            with_head=with_head,
            random_weights=self.random_weights,
            masks=self.masks,
        )
        return replace(reader, ends_lines=reader.ends_lines or self.ends_lines)

    def untrained(self) -> "ModelToMeasure":
        """Return the model with random weights, as before training."""
        return replace(self, label=f"{self.label}, random weights", random_weights=True)


class Baseline(NamedTuple):
    """A value that figures draw beside another one, where it is the same number in all models."""

    value: str
    label: str


@dataclass(frozen=True)
class Value:
    """A value of a measure.

    Attributes:
        name: its name in results and contrasts.
        description: what figures call it, with its unit; by default its name.
        by_layer: whether it is a list with a number for each layer, from the embeddings up. Models may lack it.
        optional: whether files or models may lack it, as they may lack values by layer.
        shown: whether a report leads with it.
        baseline: what figures draw beside it.
    """

    name: str
    description: str = ""
    by_layer: bool = False
    optional: bool = False
    shown: bool = False
    baseline: Baseline | None = None


class Measure(Options):
    """Base of the measures. The first line of a measure's docstring is its description for users.

    Attributes:
        kind: its name in plans.
        needs: the files of ``[data]`` that it reads, with some options perhaps fewer, see :meth:`needed`.
        also_reads: files of ``[data]`` that it reads if they are given.
        with_head: whether it needs the head that predicts masked tokens.
        values: its values, in the order of a report; None if they depend on the files that it reads. A report leads
            with all of them if none is ``shown``.
        random_weights: whether to measure the model's architecture with random weights; an option of some measures.
    """

    kind: ClassVar[str]
    needs: ClassVar[Sequence[str]] = ()
    also_reads: ClassVar[Sequence[str]] = ()
    with_head: ClassVar[bool] = False
    values: ClassVar[Sequence[Value] | None] = ()
    random_weights: ClassVar[bool] = False

    def value_names(self) -> list[str] | None:
        """Return the names of all its values with these options; None if they depend on more."""
        if self.values is None:
            return None
        return [value.name for value in self.values]

    def value(self, name: str) -> Value:
        """Return a value by its name; one that no table lists is a number."""
        for value in self.values or ():
            if value.name == name:
                return value
        return Value(name)

    @property
    def shown_names(self) -> list[str]:
        """The names of the values that a report leads with; empty if these are all."""
        return [value.name for value in self.values or () if value.shown]

    def needed(self) -> Sequence[str]:
        """Return the files of ``[data]`` that it reads with these options."""
        return self.needs

    def files(self, data: Data) -> dict[str, Path]:
        """Return the files that it reads, besides the data-bin, by the name of their key."""
        candidates = [(name, getattr(data, name)) for name in (*self.needed(), *self.also_reads)]
        candidates += vars(self).items()
        return {name: value for name, value in candidates if isinstance(value, Path)}

    def check(self, data: Data) -> None:
        """Read the files of the measure, before anything is trained or measured.

        Raises:
            UserError: if one cannot be read.
        """
        if data.data_bin and find_tokenizer(data.data_bin) is None:
            raise missing_tokenizer(data.data_bin)

    def check_masks(self, masks: str) -> None:
        """Check that it can measure a model whose ``[MASK]`` tokens are there, see :class:`ModelToMeasure`.

        Raises:
            UserError: if it cannot.
        """

    def measure(self, model: ModelToMeasure) -> Any:
        """Measure a model, show progress, and return the result, as JSON-serialisable data.

        Raises:
            UserError: if the model or a file cannot be read or measured.
        """
        raise NotImplementedError

    def recorded(self, result: Any) -> dict[str, float | list[float]]:
        """Return the values of a result: numbers, or lists with a number for each layer from the embeddings up."""
        return result

    def values_of(self, model: ModelToMeasure) -> dict[str, Any]:
        """Measure a model, and return the values, see :meth:`recorded`; numbers of NumPy and PyTorch become Python's.

        Raises:
            UserError: see :meth:`measure`; or if the values are not those that the measure declares, or no numbers; the
                message names measure, file and value.
        """
        recorded = self.recorded(self.measure(model))
        begin = f"measure {self.kind} ({inspect.getsourcefile(self.measure)})"
        if not isinstance(recorded, Mapping):
            raise UserError(f"{begin}: the result {recorded!r:.80} is not a dictionary of values")
        values = {name: _plain(value) for name, value in recorded.items()}
        names = self.value_names()
        for name, value in values.items():
            if names is not None and name not in names:
                raise UserError(f"{begin}: the result has {name!r}, which values does not declare{meant(name, names)}")
            if not _are_numbers(value):
                raise UserError(f"{begin}: {name} is {value!r:.80}; return a number, or a list of numbers by layer")
        for value in map(self.value, names or ()):
            if value.name not in values and not (value.by_layer or value.optional):
                raise UserError(f"{begin}: the result lacks {value.name!r}; return it, or declare it as optional")
        return values

    def in_words(self, name: str) -> str:
        """Return what a figure calls a value."""
        return self.value(name).description or name.replace("_", " ")

    def figure(
        self, path: Path, title: str, x_label: str, lines: Mapping[str, Mapping[str, Line]], same: Mapping[str, float]
    ) -> bool:
        """Plot values of several models, and return whether there is anything to plot.

        Args:
            x_label: label of the x axis: layers or updates.
            lines: the lines of the models, by value and model.
            same: the numbers that are equal in all models; of these, baselines are drawn.
        """
        panels = []
        for name in self.shown_names or lines:
            models = lines.get(name, {})
            if any(line.x.size > 1 for line in models.values()):
                baseline = self._baseline(name, same)
                panels.append(Panel("", x_label, models, y_label=self.in_words(name), baseline=baseline))
        if panels:
            plot_panels(path, title, *panels)
        return bool(panels)

    def _baseline(self, name: str, same: Mapping[str, float]) -> tuple[str, float] | None:
        baseline = self.value(name).baseline
        if baseline is None or baseline.value not in same:
            return None
        return baseline.label, same[baseline.value]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays and tensors become numbers or lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _are_numbers(value: Any) -> bool:
    """Return whether a value is a number or a list of numbers, of which any may be undefined."""
    numbers = value if isinstance(value, list) else [value]
    return all(isinstance(number, int | float | None) for number in numbers)


def values_by_layer(layers: int) -> defaultdict[str, list[float | None]]:
    """Return a dictionary for values of some layers, the embeddings included; None for layers without a value."""
    return defaultdict(lambda: [None] * layers)


@dataclass(frozen=True, kw_only=True)
class MaskedText(Options):
    """A sample of a text, some of whose tokens are masked.

    Attributes:
        tokens: number of tokens to read, evenly spaced in the text.
        tokens_per_sample: maximum sequence length in tokens (default: that of the training; of models with several, the
            shortest; 128 if it is unknown).
        mask_prob: fraction of the tokens to mask.
        seed: seed of the masked positions.
    """

    tokens: Count = 50_000
    tokens_per_sample: Annotated[int, Argument("N", at_least=4)] | None = None
    mask_prob: Probability = 0.15
    seed: Natural = 1

"""Verbs that measure trained models: the options that all of them have, and the function that runs them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, make_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from mae_lm_fairseq.measures.measure import Data, MaskedText, Measure, ModelToMeasure
from mae_lm_fairseq.training.keys import check_maker
from mae_lm_fairseq.utils.command_line import Argument, Directory, File, Options
from mae_lm_fairseq.utils.directories import write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import output_directory
from mae_lm_fairseq.utils.output import escaped, markdown_table
from mae_lm_fairseq.utils.versions import versions

UNKNOWN_LENGTH = 128
"""Length of the sequences to measure on, in tokens, if that of the training is unknown."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Base of the options of a verb: a measure, whose options are the verb's too, and trained models.

    :func:`main` runs a verb, by these methods. A verb overrides those that differ.

    Attributes:
        measure: what is measured.
        models: a bundle, a checkpoint (with ``--data-bin``), or a local directory of ``transformers`` that mae-lm
            import takes.
        data_bin: data-bin with the checkpoints' tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        labels: names of the models, in their order.
        out: output directory.
    """

    measure: Measure
    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    data_bin: Directory | None = None
    ema: bool = False
    labels: Annotated[tuple[str, ...], Argument("NAME")] = ()
    out: Directory

    def data(self) -> Data:
        """Return the files to measure on."""
        names = (*self.measure.needs, *self.measure.also_reads)
        return Data(self.data_bin, **{name: getattr(self, name) for name in names})

    def output(self) -> AbstractContextManager:
        """Return a context that creates the directory of the output, and removes it if it stays empty.

        Raises:
            UserError: if it has the results of a command that trains.
        """
        check_maker(self.out)
        return output_directory(self.out)

    def about(self) -> dict[str, Any]:
        """Return what the results say besides the versions and the models."""
        files = {name: str(path) for name, path in vars(self.data()).items() if path}
        settings = {"ema": self.ema}
        for name, value in (vars(self.measure) | vars(self)).items():
            if name not in ModelOptions.__dataclass_fields__ and not isinstance(value, Path):
                settings[name] = value
        return {"data": files, "settings": settings}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        """Measure a model, with its controls; return what the results say of it besides its path."""
        return self.measure.values_of(model)

    def report(self, results: Mapping[str, Any]) -> str:
        """Return the report, as Markdown."""
        title = escaped(type(self.measure).__doc__.splitlines()[0])
        recorded = dict.fromkeys(chain.from_iterable(results["models"].values()))
        recorded.pop("model", None)
        # The values depend on the files if no table lists them.
        names = self.measure.shown_names or self.measure.value_names() or recorded
        rows = []
        for label, values in results["models"].items():
            cells = [_cell(values.get(name)) for name in names]
            rows.append([label, *cells])
        table = markdown_table(["model", *names], rows)
        return f"# {title}\n\n{table}\n"

    def write(self, results: Mapping[str, Any]) -> None:
        """Write the results and the report."""
        write_results(self.out, results, self.report(results))
        print(f"{self.out}: results.json, report.md")


def _cell(value: float | Sequence[float | None] | None) -> str:
    """Return a number, or that of the last layer."""
    last = value[-1] if isinstance(value, list) else value
    return "-" if last is None else f"{last:.4g}"


def main(options: ModelOptions) -> None:
    """Run a verb that measures. Files are read and models opened once, before any measurement."""
    with options.output():
        options.measure.check(options.data())
        models = models_to_measure(options)
        options = replace(options, measure=_at_common_length(options.measure, models))
        results = {"versions": versions(), **options.about(), "models": {}}
        for model in models:
            results["models"][model.label] = {"model": str(model.path), **options.compare(model)}
        options.write(results)


def models_to_measure(options: ModelOptions) -> list[ModelToMeasure]:
    """Return the models, which are opened once, one at a time, to reject unsuitable ones before any measurement.

    Raises:
        UserError: if there are not as many different labels as models; or a model cannot be read, lacks a head that the
            measure needs, or does not take sequences of its length.
    """
    models = []
    for label, path in zip(_labels(options), options.models, strict=True):
        model = ModelToMeasure(label=label, path=path, data=options.data(), ema=options.ema)
        models.append(_opened_once(model, options.measure))
    ends_lines = any(model.ends_lines for model in models)  # so that all of them predict the same tokens
    return [replace(model, ends_lines=ends_lines) for model in models]


def _opened_once(model: ModelToMeasure, measure: Measure) -> ModelToMeasure:
    """Return a model with what is known of it once it has been opened."""
    reader = model.open(measure.with_head)
    if isinstance(measure, MaskedText) and measure.tokens_per_sample:
        reader.check_length(measure.tokens_per_sample)
    return replace(model, trained_length=reader.trained_length, ends_lines=reader.ends_lines)


def _labels(options: ModelOptions) -> Sequence[str]:
    labels = options.labels or _labels_of_paths(options.models)
    if len(labels) != len(options.models) or len(set(labels)) < len(labels):
        listed = " ".join(labels)
        raise UserError(f"--labels: {len(options.models)} models need as many different labels, not {listed}")
    return labels


def _labels_of_paths(paths: Sequence[Path]) -> list[str]:
    """Return the name of each directory; or with the one above it, as of a checkpoint, if several have the same."""
    names, with_parent = [], []
    for path in paths:
        label = f"{path.absolute().parent.name}/{path.name.removesuffix('.pt')}"
        with_parent.append(label)
        names.append(path.name if path.is_dir() else label)
    return names if len(set(names)) == len(names) else with_parent


def _at_common_length(measure: Measure, models: Sequence[ModelToMeasure]) -> Measure:
    """Return a measure of masked text at the length that all models are measured at, other measures as they are.

    Print the length, see ``tokens_per_sample``, and which models were trained with another.
    """
    if not isinstance(measure, MaskedText):
        return measure
    known = {model.label: model.trained_length for model in models if model.trained_length}
    length = measure.tokens_per_sample or min(known.values(), default=UNKNOWN_LENGTH)
    others = [f"{label} was trained with {other}" for label, other in known.items() if other != length]
    print("; ".join([f"sequences of up to {length} tokens", *others]))
    return replace(measure, tokens_per_sample=length)


def verb_of(measure: type[Measure]) -> type[ModelOptions]:
    """Return the options of a verb for a measure that states none: the models, its files and its own options."""
    files = [(name, File) for name in measure.needs]
    files += [(name, File | None, None) for name in measure.also_reads]
    help_texts = "\n".join(f"    {name}: file to measure on." for name, *_ in files)
    namespace = {"__doc__": f"{measure.__doc__.splitlines()[0]}\n\nAttributes:\n{help_texts}\n"}
    fields = [("measure", measure), *files]
    return make_dataclass(
        measure.__name__, fields, bases=(ModelOptions,), namespace=namespace, frozen=True, kw_only=True
    )

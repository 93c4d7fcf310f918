"""Verbs that measure trained models: the options that all of them have, and the function that runs them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, make_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from mae_lm_fairseq.measures.measure import Data, MaskedText, Measure, ModelToMeasure
from mae_lm_fairseq.training.keys import check_maker
from mae_lm_fairseq.utils.command_line import Argument, Directory, File
from mae_lm_fairseq.utils.directories import write_results
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import output_directory
from mae_lm_fairseq.utils.output import escaped, markdown_table
from mae_lm_fairseq.utils.versions import versions


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Measure):
    """Base of the options of a verb: trained models to measure.

    A verb's class inherits from this one and from its measure, so that its options are a measure with these options.
    :func:`main` calls, in this order, ``output``, ``models_to_measure``, ``at_length_of`` if a text is masked,
    ``about``, ``compare`` for each model, and ``write``, which by default writes the ``report``. Verbs override those
    that differ.

    Attributes:
        models: a bundle, a checkpoint (with ``--data-bin``), or a local directory of ``transformers`` that mae-lm
            import takes.
        data_bin: data-bin with the checkpoints' tokenizer.
        ema: use the checkpoint's EMA weights (``--store-ema``).
        labels: names of the models, in their order.
        out: output directory.
    """

    models: Annotated[tuple[Path, ...], Argument("MODEL", positional=True)]
    data_bin: Directory | None = None
    ema: bool = False
    labels: Annotated[tuple[str, ...], Argument("NAME")] = ()
    out: Directory

    def data(self) -> Data:
        """Return the files to measure on."""
        files = {name: getattr(self, name) for name in (*self.needs, *self.also_reads)}
        return Data(self.data_bin, **files)

    def output(self) -> AbstractContextManager:
        """Return a context that creates the directory of the output, and removes it if it stays empty.

        Raises:
            UserError: if it has the results of a command that trains.
        """
        check_maker(self.out)
        return output_directory(self.out)

    def models_to_measure(self) -> list[ModelToMeasure]:
        """Return the models. Files are read and models opened once, to reject unsuitable ones before any measurement.

        Raises:
            UserError: if there are not as many different labels as models, or a file cannot be read, or a model cannot,
                lacks a head that the measure needs, or does not take sequences of its length.
        """
        self.check(self.data())
        models = [self._opened_once(label, path) for label, path in zip(self._labels(), self.models, strict=True)]
        ends_lines = any(model.ends_lines for model in models)  # so that all of them predict the same tokens
        return [replace(model, ends_lines=ends_lines) for model in models]

    def _opened_once(self, label: str, path: Path) -> ModelToMeasure:
        """Return a model with what is known of it once it has been opened."""
        model = ModelToMeasure(label=label, path=path, data=self.data(), ema=self.ema)
        reader = model.open(self.with_head)
        if isinstance(self, MaskedText) and self.tokens_per_sample:
            reader.check_length(self.tokens_per_sample)
        return replace(model, trained_length=reader.trained_length, ends_lines=reader.ends_lines)

    def _labels(self) -> Sequence[str]:
        labels = self.labels or _labels_of_paths(self.models)
        if len(labels) != len(self.models) or len(set(labels)) < len(labels):
            listed = " ".join(labels)
            raise UserError(f"--labels: {len(self.models)} models need as many different labels, not {listed}")
        return labels

    def about(self) -> dict[str, Any]:
        """Return what the results say besides the versions and the models."""
        files = {name: str(path) for name, path in vars(self.data()).items() if path}
        settings = {"ema": self.ema}
        for name, value in vars(self).items():
            if name not in ModelOptions.__dataclass_fields__ and not isinstance(value, Path):
                settings[name] = value
        return {"data": files, "settings": settings}

    def compare(self, model: ModelToMeasure) -> dict[str, Any]:
        """Measure a model, with its controls; return its entry in the results."""
        return {"model": str(model.path), **self.values_of(model)}

    def report(self, results: Mapping[str, Any]) -> str:
        """Return the report, as Markdown."""
        title = escaped(type(self).__doc__.splitlines()[0])
        recorded = dict.fromkeys(chain.from_iterable(results["models"].values()))
        recorded.pop("model", None)
        names = self.shown_names or self.value_names() or recorded  # which depend on the files if no table lists them
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


def _labels_of_paths(paths: Sequence[Path]) -> list[str]:
    """Return the name of each directory; or with the one above it, as of a checkpoint, if several have the same."""
    names, with_parent = [], []
    for path in paths:
        label = f"{path.absolute().parent.name}/{path.name.removesuffix('.pt')}"
        with_parent.append(label)
        names.append(path.name if path.is_dir() else label)
    return names if len(set(names)) == len(names) else with_parent


def _cell(value: float | Sequence[float | None] | None) -> str:
    """Return a number, or that of the last layer."""
    last = value[-1] if isinstance(value, list) else value
    return "-" if last is None else f"{last:.4g}"


def main(options: ModelOptions) -> None:
    """Run a verb that measures."""
    with options.output():
        models = options.models_to_measure()
        if isinstance(options, MaskedText):
            options = options.at_length_of(models)
        results = {"versions": versions(), **options.about()}
        results["models"] = {model.label: options.compare(model) for model in models}
        options.write(results)


def verb_of(measure: type[Measure]) -> type[ModelOptions]:
    """Return the options of a verb for a measure that states none: the models, its files and its own options."""
    files = [(name, File) for name in measure.needs]
    files += [(name, File | None, None) for name in measure.also_reads]
    help_texts = "\n".join(f"    {name}: file to measure on." for name, *_ in files)
    namespace = {"__doc__": f"{measure.__doc__.splitlines()[0]}\n\nAttributes:\n{help_texts}\n"}
    return make_dataclass(
        measure.__name__, files, bases=(ModelOptions, measure), namespace=namespace, frozen=True, kw_only=True
    )

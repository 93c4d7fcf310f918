"""The plan of a study: data, models, measures and contrasts, read from TOML.

docs/studies.md explains every key. Paths are relative to the current directory.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.measures.figures import Format
from mae_lm_fairseq.measures.measure import Data, MaskedText, Measure, Value
from mae_lm_fairseq.measures.registry import MEASURES, OURS, register_ours
from mae_lm_fairseq.measures.seconds import Cost
from mae_lm_fairseq.study.endpoints import ENDPOINTS, OF_LAYERS, OVER_TIME
from mae_lm_fairseq.training.settings import recipe
from mae_lm_fairseq.training.user_directory import OPTION
from mae_lm_fairseq.utils.command_line import Argument, Count, LearningRate, Natural, Options
from mae_lm_fairseq.utils.errors import UserError, meant
from mae_lm_fairseq.utils.files import read_bytes
from mae_lm_fairseq.utils.typed import Document, Key, unknown_key

Item = TypeVar("Item")
SHIPPED = {path.stem: path for path in sorted(Path(__file__).with_name("plans").glob("*.toml"))}
"""Plans of this package by name."""
CONTRASTS = "contrasts"
"""Name of the figure of all contrasts, beside the figures that have the names of measures."""
MOST_BYTES = 1 << 20
"""Maximum size of a plan."""
LONGEST_NAME = 200
"""Bytes of a name that becomes that of a file; file systems have 255 with all that is added."""


@dataclass(frozen=True)
class Train(Options):
    """Length of the trainings, in updates.

    Attributes:
        updates: number of updates, at which the learning rate reaches zero.
        warmup: number of warm-up updates.
        checkpoints: numbers of updates after which a model is measured; the last update is always one. After 0, the
            ``start`` of a model is.
        equal: what all trainings have as much of as the first one; the numbers of updates of the others follow.
    """

    updates: Count
    warmup: Natural = 0
    checkpoints: tuple[Natural, ...] = ()
    equal: Literal["updates", "tokens", "flops", "seconds"] = "updates"


@dataclass(frozen=True)
class Model(Options):
    """A model to train.

    Attributes:
        name: its name in tables and figures.
        arch: its architecture.
        options: options of fairseq-train, which take precedence over those of the plan.
        seeds: the seeds, or their number N for 1 to N.
        updates: its number of updates, if it is not that of ``[train]``.
        learning_rates: learning rates, of which ``[rates]`` chooses one; by default the one of options or recipe.
        start: a checkpoint or bundle to start from, with equal weights for all seeds.
        encoder: configuration of an encoder of transformers, which takes the place of the architecture's.
        random: keep the random weights of each seed, without training; measured where others are after the last update.
        masks: where the ``[MASK]`` tokens are when the model is measured: as in pretraining, or nowhere (random tokens
            stand in their place).
    """

    name: str
    arch: Literal[*ARCHITECTURES]
    options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | tuple[int, ...] = 1
    updates: Count | None = None
    learning_rates: tuple[LearningRate, ...] = ()
    start: Path | None = None
    encoder: Path | None = None
    random: bool = False
    masks: Literal["trained", "nowhere"] = "trained"

    @property
    def directory(self) -> str:
        """Beginning of the names of its directories: the name with dashes for all but letters, digits and points."""
        words = re.findall(r"(?:[^\W_]|\.)+", self.name)
        return "-".join(words) or "model"

    @property
    def all_seeds(self) -> tuple[int, ...]:
        if isinstance(self.seeds, int):
            return tuple(range(1, self.seeds + 1))
        return self.seeds


@dataclass(frozen=True)
class PlannedMeasure:
    """A measure of a plan, with its name and when it is measured.

    Attributes:
        name: its name in results and contrasts.
        at: the checkpoints at which it is measured: all, the last, or their numbers of updates.
        measure: the measure.
    """

    name: str
    at: Literal["all", "last"] | tuple[int, ...]
    measure: Measure

    def checkpoints(self, of_plan: Sequence[int]) -> list[int]:
        """Return the checkpoints of the plan at which it is measured."""
        if isinstance(self.at, tuple):
            return sorted(self.at)
        if self.at == "last":
            return [of_plan[-1]]
        return [*of_plan]


@dataclass(frozen=True)
class Contrast(Options):
    """A quantity to test: an endpoint of a model, or of a model less that of another one, over paired seeds.

    Attributes:
        name: its name in the report.
        of: the measured value, as MEASURE.VALUE.
        model: the model.
        less: the model to subtract.
        endpoint: a name of :data:`~mae_lm_fairseq.study.endpoints.ENDPOINTS`.
        predicted: the prediction: the sign, equivalence within ``margin``, or not below ``-margin``. Without one, the
            test against zero is two-sided, and there is no verdict.
        margin: the margin, in the unit of the value.
        primary: whether the contrast gets a verdict, corrected by Holm over all primary contrasts of the plan.
        claim: the prediction in words.
    """

    name: str
    of: str
    model: str
    less: str | None = None
    endpoint: Literal[*ENDPOINTS] = "last"
    predicted: Literal["positive", "negative", "equivalent", "not worse"] | None = None
    margin: Annotated[float, Argument(at_least=0)] | None = None
    primary: bool = False
    claim: str = ""

    def in_words(self) -> str:
        """Return what is compared: the model, or the two models."""
        return f"{self.model} less {self.less}" if self.less else self.model


@dataclass(frozen=True)
class Rates(Options):
    """Rule that chooses the learning rate of every model with several.

    Attributes:
        lowest: the value whose mean is lowest at the chosen rate, after the last update, as MEASURE.VALUE.
        seeds: number of seeds that are trained at all rates.
        halve: a value, by layer, of which the last layer must not get worse in training, as MEASURE.VALUE: if it ends
            more than ``by`` below its best checkpoint, the model is trained at half of the chosen rate instead, with
            all seeds.
        by: see ``halve``.
    """

    lowest: str = "loss.loss"
    seeds: Count = 1
    halve: str | None = None
    by: Annotated[float, Argument(at_least=0)] = 0.0

    def is_damage(self, difference: float) -> bool:
        """Return whether the last layer has got worse, given its end less its best checkpoint."""
        return difference < -self.by


@dataclass(frozen=True)
class Plan:
    """A study, checked in itself; :mod:`~mae_lm_fairseq.study.checks` checks it against files and fairseq.

    ``updates`` are the models' numbers of updates, by name, if they are not that of ``[train]``. If ``equal`` asks for
    equal costs, they follow from ``costs``, those of equal numbers of updates of each model.
    """

    document: Document
    title: str
    data: Data
    train: Train
    options: Mapping[str, Any]
    models: tuple[Model, ...]
    measures: tuple[PlannedMeasure, ...]
    contrasts: tuple[Contrast, ...]
    rates: Rates | None
    looks: tuple[int, ...] = ()
    formats: tuple[Format, ...] = ()
    updates: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def differ_in_cost(self) -> bool:
        """Whether the plan asks for equal costs, or for other numbers of updates, so that the report states costs."""
        return self.train.equal != "updates" or any(model.updates for model in self.models)

    @property
    def checkpoints(self) -> list[int]:
        """Numbers of updates after which models are measured, ascending; the last update is one."""
        return sorted({*self.train.checkpoints, self.train.updates})

    def updates_of(self, model: Model) -> int:
        """Return the number of updates of a model."""
        return self.updates.get(model.name, self.train.updates)

    def scaled(self, updates: int, model: Model) -> int:
        """Return the updates of a model that are the same fraction of its training as ``updates`` are of the plan's.

        It is at least 1, unless ``updates`` are 0.
        """
        nearest = round(updates * self.updates_of(model) / self.train.updates)
        return max(nearest, min(updates, 1))

    def checkpoints_of(self, model: Model, planned: PlannedMeasure | None = None) -> list[int]:
        """Return the numbers of updates after which a model is measured, by a measure or by any, ascending."""
        checkpoints = planned.checkpoints(self.checkpoints) if planned else self.checkpoints
        return sorted({self.scaled(updates, model) for updates in checkpoints})

    def with_equal_cost(self, costs: Mapping[str, float]) -> "Plan":
        """Return the plan with as many updates of each model as cost as much as those of the first one.

        Args:
            costs: the costs of equal numbers of updates, by the names of the models that are trained, in their order.
        """
        of_first, *_ = costs.values()
        whole_cost = self.train.updates * of_first
        updates = {name: max(1, round(whole_cost / cost)) for name, cost in costs.items()}
        return replace(self, updates=updates, costs=costs)

    def model(self, name: str) -> Model:
        return next(model for model in self.models if model.name == name)

    def find_measure(self, text: str) -> PlannedMeasure | None:
        """Return the measure of a value that is written as MEASURE.VALUE; None if the plan does not have it.

        Both names may have dots, so that the longest name of a measure counts.
        """
        named = [planned for planned in self.measures if f"{text}.".startswith(f"{planned.name}.")]
        return max(named, key=lambda planned: len(planned.name), default=None)

    def measure_and_value(self, text: str) -> tuple[PlannedMeasure, str]:
        """Return the measure and the name of a value that is written as MEASURE.VALUE, and that the plan has."""
        planned = self.find_measure(text)
        return planned, text.removeprefix(planned.name).removeprefix(".")

    def seeds(self, contrast: Contrast) -> list[int]:
        """Return the seeds that the models of a contrast share, in the order of the plan."""
        seeds = self.model(contrast.model).all_seeds
        other_seeds = self.model(contrast.less or contrast.model).all_seeds
        return [seed for seed in seeds if seed in other_seeds]


def read_plan(name: str) -> Plan:
    """Read a shipped plan by its name, or a plan file.

    Raises:
        UserError: if the file cannot be read or the plan is invalid; the message names key and line.
    """
    path = SHIPPED.get(name, Path(name))
    if path.suffix != ".toml" and not path.exists():
        raise UserError(f"{name} is neither a file nor a shipped plan: {', '.join(SHIPPED)}")
    try:
        text = read_bytes(path, MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8") from None
    return parse_plan(text, path.name if name in SHIPPED else name)


def parse_plan(text: str, name: str) -> Plan:
    """Parse a plan; ``name`` is its file, for error messages.

    Raises:
        UserError: see :func:`read_plan`.
    """
    document = Document(text, name)
    content = document.content
    tables = {"title", "data", "train", "options", "model", "measure", "contrast", "rates", "looks", "formats"}
    unknown = sorted(content.keys() - tables)
    if unknown:
        raise document.error((unknown[0],), unknown_key(unknown[0], sorted(tables)))
    for key in ("data", "train", "model"):
        if key not in content:
            table = "[[model]]" if key == "model" else f"[{key}]"
            raise document.error((), f"the table {table} is missing")

    def read(key: str, kind: Any, default: Any = None) -> Any:
        return document.read(kind, content.get(key, default), (key,))

    plan = Plan(
        document=document,
        title=read("title", str, Path(name).stem),
        data=read("data", Data),
        train=read("train", Train),
        options=read("options", Mapping[str, Any], {}),
        models=_read_array(document, "model", partial(document.read, Model)),
        measures=(),
        contrasts=_read_array(document, "contrast", partial(document.read, Contrast)),
        rates=read("rates", Rates) if "rates" in content else None,
        looks=read("looks", tuple[int, ...], []),
        formats=read("formats", tuple[Format, ...], []),
    )
    plan = replace(plan, updates={model.name: model.updates for model in plan.models if model.updates})
    # The options and values of measures need torch, for which other mistakes do not wait.
    for read_measure in (_read_name, _read_measure):
        measures = _read_array(document, "measure", partial(read_measure, document))
        if plan.differ_in_cost:
            measures += (PlannedMeasure(Cost.kind, "last", Cost()),)
        plan = replace(plan, measures=measures)
        _check(plan)
    return replace(plan, measures=tuple(_at_trained_length(plan, planned) for planned in plan.measures))


def _at_trained_length(plan: Plan, planned: PlannedMeasure) -> PlannedMeasure:
    """Let a measure of text have the length that the models are trained with, the shortest of them, by default."""
    measure = planned.measure
    if not isinstance(measure, MaskedText) or measure.tokens_per_sample:
        return planned
    lengths = []
    for model in plan.models:
        options = {**plan.options, **model.options}
        length = options.get("tokens-per-sample") or recipe(model.arch)["tokens"].value
        lengths.append(int(length))
    return replace(planned, measure=replace(measure, tokens_per_sample=min(lengths)))


def listing() -> str:
    """Return the shipped plans, the measures with their options, and the endpoints."""
    lines = ["plans"]
    for name, path in SHIPPED.items():
        lines += [f"  {name:20}{read_plan(name).title}", f"  {'':20}{path}"]
    lines += ["", "measures"]
    for kind, measure in MEASURES.items():
        lines.append(f"  {kind:20}{_first_line(measure)}")
        options = ", ".join(option.name for option in fields(measure))
        if options:
            lines.append(f"  {'':20}options: {options}")
        values = ", ".join(value.name for value in measure.values or ()) or "the task's metrics"
        lines.append(f"  {'':20}values: {values}")
    lines += ["", "endpoints"]
    for name, function in ENDPOINTS.items():
        lines.append(f"  {name:26}{_first_line(function)}")
    return "\n".join(lines).replace("`", "")


def _first_line(documented: Any) -> str:
    return documented.__doc__.splitlines()[0]


def _read_array(document: Document, key: str, read: Callable[[Any, tuple], Item]) -> tuple[Item, ...]:
    """Read an array of tables by a function of a table and its key."""
    tables = document.content.get(key, [])
    if not isinstance(tables, list):
        raise document.error((key,), f"must be an array of tables, [[{key}]]")
    return tuple(read(table, (key, number)) for number, table in enumerate(tables))


class _NotRead(Measure):
    """A measure whose options are not read, so that its values are not known."""

    values: ClassVar = None

    def value(self, name: str) -> Value:
        return Value(name, by_layer=True)


def _read_name(document: Document, table: Any, key: Key) -> PlannedMeasure:
    """Read a measure but for its options."""
    if not isinstance(table, Mapping) or "kind" not in table:
        raise document.error(key, "kind is missing")
    kind = table["kind"]
    kinds = dict.fromkeys([*OURS, *MEASURES])
    if kind not in kinds:
        problem = f"{kind!r} is not one of {', '.join(kinds)}, nor registered by {OPTION}{meant(str(kind), kinds)}"
        raise document.error((*key, "kind"), problem)
    at = document.read(Literal["all", "last"] | tuple[int, ...], table.get("at", "all"), (*key, "at"))
    name = document.read(str, table.get("name", kind), (*key, "name"))
    return PlannedMeasure(name, at, _NotRead())


def _read_measure(document: Document, table: Any, key: Key) -> PlannedMeasure:
    register_ours()
    planned = _read_name(document, table, key)
    options = {name: value for name, value in table.items() if name not in ("kind", "name", "at")}
    return replace(planned, measure=document.read(MEASURES[table["kind"]], options, key))


def _check(plan: Plan) -> None:
    """Check a plan in itself.

    Raises:
        UserError: if it contradicts itself; names key and line.
    """
    _check_checkpoints(plan)
    directories = [model.directory for model in plan.models]
    names_of_measures = [planned.name for planned in plan.measures]
    _check_file_names(plan, "model", directories)
    _check_file_names(plan, "measure", names_of_measures)
    _check_names_differ(plan, "model", [model.name for model in plan.models], directories)
    _check_names_differ(plan, "measure", names_of_measures)
    _check_names_differ(plan, "contrast", [contrast.name for contrast in plan.contrasts])
    for number, model in enumerate(plan.models):
        _check_model(plan, model, ("model", number))
    for number, planned in enumerate(plan.measures):
        _check_measure(plan, planned, ("measure", number))
    looks = [*plan.looks]
    if looks != sorted(set(looks)) or any(look < 2 for look in looks):
        raise plan.document.error(("looks",), f"{looks} must be ascending numbers of seeds, from 2")
    for number, contrast in enumerate(plan.contrasts):
        _check_contrast(plan, contrast, ("contrast", number))

    if plan.rates:
        _check_value(plan, plan.rates.lowest, ("rates", "lowest"), "last")
        if plan.rates.halve:
            halve = _check_value(plan, plan.rates.halve, ("rates", "halve"), "end_less_best_checkpoint")
            if not halve.by_layer:
                problem = f"{plan.rates.halve} is not by layer: name a value by layer for which higher is better"
                raise plan.document.error(("rates", "halve"), problem)


def _check_checkpoints(plan: Plan) -> None:
    error = partial(plan.document.error, ("train", "checkpoints"))
    train = plan.train
    last = max(train.checkpoints, default=0)
    if last > train.updates:
        raise error(f"{last} is above updates, {train.updates}")
    lack_a_start = [model.name for model in plan.models if model.start is None and not model.random]
    if 0 in train.checkpoints and lack_a_start:
        raise error("0 updates need a start of every model, which is measured")


def _check_names_differ(plan: Plan, table: str, names: Sequence[str], written: Sequence[str] | None = None) -> None:
    """Check that names differ, also on file systems that do not tell large letters, or forms of accents, apart.

    Args:
        written: the names as they are written to files; by default, as they are.
    """
    folded = [unicodedata.normalize("NFC", name).casefold() for name in written or names]
    for number, name in enumerate(names):
        if folded[number] in folded[:number]:
            earlier = names[folded.index(folded[number])]
            problem = f"{name!r} is the name of another {table}"
            if earlier != name:
                problem = f"files cannot tell {name!r} from {earlier!r}, another {table}"
            raise plan.document.error((table, number, "name"), f"{problem}; choose another one")


def _check_file_names(plan: Plan, table: str, names: Sequence[str]) -> None:
    """Check that names can be those of figures or directories."""
    for number, name in enumerate(names):
        problem = _no_file_name(name)
        if problem:
            key = (table, number, "name")
            raise plan.document.error(key, f"{name!r} {problem}; it names a file, so choose another one")


def _no_file_name(name: str) -> str:
    """Return why a name cannot be that of a figure or a directory, which would be elsewhere or hidden; else nothing."""
    if not name or name.startswith("."):
        return "is empty or begins with a dot"
    if "/" in name or not name.isprintable():
        return "has a slash, a line break or another control character"
    if len(name.encode()) > LONGEST_NAME:
        return f"is longer than {LONGEST_NAME} bytes"
    return ""


def _check_model(plan: Plan, model: Model, key: tuple) -> None:
    error = plan.document.error
    seeds = model.all_seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise error((*key, "seeds"), f"{[*seeds]} must be different seeds")
    for option in ("start", "learning_rates", "updates"):
        if model.random and getattr(model, option):
            raise error((*key, option), "does not apply to a model with random = true; remove it")
    if model.updates and plan.train.equal != "updates":
        raise error((*key, "updates"), f"contradicts equal = {plan.train.equal!r} of [train]; remove one of them")
    if len(model.learning_rates) > 1 and plan.rates is None:
        raise error((*key, "learning_rates"), "several rates need [rates], the rule that chooses one")


def _check_measure(plan: Plan, planned: PlannedMeasure, key: tuple) -> None:
    error = plan.document.error
    if planned.name.casefold() == CONTRASTS:
        raise error((*key, "name"), f"{planned.name!r} is the name of the figure of contrasts; choose another one")
    at = planned.at
    if isinstance(at, tuple) and (not at or not {*at} <= {*plan.checkpoints}):
        raise error((*key, "at"), f"{[*at]} must be some of the checkpoints {plan.checkpoints}")
    measure = planned.measure
    for file in measure.needed():
        is_in_options = getattr(measure, file, None) is not None
        if getattr(plan.data, file) is None and not is_in_options:
            raise error((*key, "kind"), f"{measure.kind} needs {file} in [data]")


def _check_contrast(plan: Plan, contrast: Contrast, key: tuple) -> None:
    error = plan.document.error
    names = [model.name for model in plan.models]
    for role in ("model", "less"):
        name = getattr(contrast, role)
        if name not in [*names, None]:
            raise error((*key, role), f"{name!r} is not a model of this plan: {', '.join(names)}")
    if contrast.less == contrast.model:
        raise error((*key, "less"), f"{contrast.name} subtracts {contrast.model} from itself; name another model")
    value = _check_value(plan, contrast.of, (*key, "of"), contrast.endpoint)
    if contrast.endpoint in OF_LAYERS and not value.by_layer:
        raise error((*key, "endpoint"), f"{contrast.endpoint} needs a value by layer, which {contrast.of} is not")
    if (contrast.predicted in ("equivalent", "not worse")) != (contrast.margin is not None):
        raise error((*key, "predicted"), "the predictions equivalent and not worse need a margin, and others have none")
    if contrast.primary and contrast.predicted is None:
        raise error((*key, "predicted"), "a primary contrast needs a prediction")
    seeds = plan.seeds(contrast)
    if len(seeds) < 2:
        problem = f"{contrast.name}, {contrast.in_words()}, has the seeds {seeds}, but a test needs two in common"
        raise error((*key, "model"), f"{problem}; change seeds of [[model]]")
    if contrast.primary and plan.looks and len(seeds) not in plan.looks:
        raise error(("looks",), f"{contrast.name} has {len(seeds)} seeds, which is none of the looks {[*plan.looks]}")


def _check_value(plan: Plan, text: str, key: tuple, endpoint: str) -> Value:
    """Return a value that is written as MEASURE.VALUE, and is measured at the checkpoints that an endpoint needs."""
    error = plan.document.error
    if plan.find_measure(text) is None:
        measures = ", ".join(planned.name for planned in plan.measures) or "none"
        raise error(key, f"{text!r} must be MEASURE.VALUE; the measures of this plan: {measures}")
    planned, name = plan.measure_and_value(text)
    at = planned.checkpoints(plan.checkpoints)
    is_over_time = endpoint in OVER_TIME
    if plan.train.updates not in at or (is_over_time and len(at) < 2):
        needs = "the last and others" if is_over_time else "the last"
        raise error(key, f"{planned.name} is measured after {at} updates, not after {needs}, as needed here")
    known = planned.measure.value_names()
    if known is not None and name not in known:
        raise error(key, f"{planned.name} has no value {name!r}; it has {', '.join(known)}")
    return planned.measure.value(name)


def without_defaults(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    values = {}
    for option in fields(item):
        value = getattr(item, option.name)
        if value != option.default:
            values[option.name] = value
    return values

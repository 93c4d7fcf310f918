"""Content of ``results.json``: what is finished of a study, as other programs read it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mae_lm_fairseq.study.history import Change
from mae_lm_fairseq.study.looks import Look


@dataclass(frozen=True)
class Choice:
    """The learning rate that a model is trained at with all seeds.

    Attributes:
        rate: the learning rate, half of the chosen one after damage; None for that of the options or the recipe.
        is_known: whether the rule has the results that it needs.
        damage: last layer at the end less its best checkpoint, at the chosen rate, if the rule asks.
    """

    rate: float | None = None
    is_known: bool = True
    damage: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The finished parts of a training.

    Attributes:
        model: name of the model.
        learning_rate: the learning rate; None for that of the options or the recipe.
        directory: name of its directory in ``runs``; earlier versions did not write it.
        commands: the commands that have trained it.
        commits, machines, versions: what trained and measured it.
        seconds: duration of training and of measuring.
        measures: the values by the name of the measure, the number of updates, as text, and the name of the value.
            A value is a number or a list by layer; numbers that are not defined are None.
    """

    model: str
    learning_rate: float | None
    seed: int
    directory: str = ""
    commands: tuple[str, ...]
    commits: tuple[str, ...]
    machines: tuple[str, ...]
    versions: tuple[str, ...]
    seconds: Mapping[str, float]
    measures: Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class ResultsFile:
    """Content of ``results.json``.

    Attributes:
        plan: text of the plan.
        files: fingerprints of the files that the plan names, by path.
        threads: number of threads of each run.
        changes: changes of the plan since the study began.
        rates: the learning rates, by the names of the models.
        runs: the trainings of which something is finished.
        costs: if the plan asks for equal costs, those of equal numbers of updates of each model; for ``seconds``, the
            measured seconds per update.
        extended: what was added to the plan, in results of earlier versions, which accepted no other changes.
    """

    title: str
    plan: str
    files: Mapping[str, str]
    threads: int
    changes: tuple[Change, ...] = ()
    looks: tuple[Look, ...] = ()
    rates: Mapping[str, Choice]
    runs: tuple[TrainingResult, ...]
    costs: Mapping[str, float] = field(default_factory=dict)
    extended: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content as JSON."""
        content = asdict(self)
        del content["extended"]
        if not self.costs:
            del content["costs"]
        return content

"""Options of fairseq-train that do not change what a training computes, and the options in which two trainings differ.

Both the keys of runs and the message of a run that resumes leave these options out.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

LOGGING = {
    *("log-interval", "log-format", "log-file", "tensorboard-logdir", "no-progress-bar", "reset-logging"),
    *("aim-repo", "aim-run-hash", "wandb-project", "azureml-logging", "suppress-crashes", "profile"),
}
SAVING = {
    *("save-interval", "save-interval-updates", "no-save", "no-epoch-checkpoints", "no-last-checkpoints"),
    *("keep-interval-updates", "keep-interval-updates-pattern", "keep-last-epochs", "keep-best-checkpoints"),
    *("no-save-optimizer-state", "write-checkpoints-asynchronously", "load-checkpoint-on-all-dp-ranks"),
}
"""Without effect unless fairseq validates when it saves: the best checkpoint depends on it."""
WITHOUT_EFFECT = {
    *LOGGING,
    *("save-dir", "keep-at", "keep-dir", "user-dir", "plasma-path", "use-plasma-view"),
    *("num-workers", "data-buffer-size", "dataset-impl"),
    *("distributed-init-method", "distributed-port", "distributed-rank", "distributed-no-spawn", "device-id"),
    *("distributed-num-procs", "nprocs-per-node", "heartbeat-timeout", "ddp-timeout", "all-gather-list-size"),
    *("empty-cache-freq", "debug-param-names"),
}
OTHER_NAMES = {
    "max-sentences": "batch-size",
    "max-sentences-valid": "batch-size-valid",
    "combine-val": "combine-valid-subsets",
    "nval": "max-valid-steps",
    "local_rank": "device-id",
    "save-async": "write-checkpoints-asynchronously",
}
"""Names that the parser takes for another option. With one dash it knows ``-a`` alone, for ``--arch``."""
_OF_A_START = {
    *("data", "restore-file", "finetune-from-model", "continue-once"),
    *("reset-optimizer", "reset-lr-scheduler", "reset-dataloader", "reset-meters"),
}
"""Options that act when a training begins; a run that resumes has begun."""
_OF_OTHER_PROGRAMS = ("common_eval", "generation", "eval_lm", "interactive", "scoring")
"""Groups of fairseq's configuration."""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the options that change what a training computes and differ, as in ``mask_prob 0.3 -> 0.15``.

    Args:
        before: a configuration of fairseq, as plain values by group.
        after: another one. Options that one of them does not have are left out.
    """
    values_before = _values(before)
    changes = []
    for name, value in _values(after).items():
        if name in values_before and values_before[name] != value:
            changes.append(f"{name} {_shown(values_before[name])} -> {_shown(value)}")
    return changes


def _values(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by option; fairseq repeats some in several groups."""
    ignored = WITHOUT_EFFECT | SAVING | _OF_A_START
    values: dict[str, Any] = {}
    for group, options in configuration.items():
        if group in _OF_OTHER_PROGRAMS:
            continue
        for name, value in _options(options):
            option = option_of(group, name)
            if option.replace("_", "-") not in ignored:
                values.setdefault(option, value)
    return values


def option_of(group: str, name: str) -> str:
    """Return the option for a name in a group of fairseq's configuration; ``_name`` is the group's own."""
    if name != "_name":
        return name
    return "arch" if group == "model" else group


def _options(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of a group, which is a Namespace if it has no options of its own."""
    if isinstance(group, Mapping):
        yield from group.items()
    elif isinstance(group, Namespace) and hasattr(group, "_name"):
        yield "_name", group._name


def _shown(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        return str(value[0])
    return str(value)

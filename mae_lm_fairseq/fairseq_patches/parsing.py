"""Patches of how fairseq reads its options."""

import argparse
import os
import tomllib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fairseq import options, tasks, utils
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from fairseq.trainer import Trainer

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.hooks import ModelHooks
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings, option
from mae_lm_fairseq.fairseq_patches.patching import patch
from mae_lm_fairseq.utils.command_line import HINTS, UNRECOGNIZED, choice_meant, suggestions
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.own_code import import_directory, module_of_same_name

_WARNINGS = (
    r"\s*(hydra\.experimental|The version_base|In '.*': Usage|'.*' is validated against ConfigStore|The strict flag"
    r"|'pin_memory' argument|.torch\.cuda\.amp\.autocast)"
)
_TASK = "masked_autoencoder_lm"
OF_ROBERTA = tomllib.loads(Path(__file__).with_name("roberta_options.toml").read_text(encoding="utf-8"))
"""Options of fairseq's ``--arch roberta`` that have another name here, or none, and why."""


@patch(options, "parse_args_and_arch")
def read_options(parse: Callable, parser: Any, input_args: Any = None, *args, **kwargs) -> Any:
    """Do not confuse ``--bf16`` with ``--tpu``; end in one message, with what options of RoBERTa are called here.

    On the command line, fairseq sets ``tpu`` if ``--bf16`` is given and then fails because torch_xla is missing, even
    on a GPU. Under Hydra, ``common.bf16=true`` is not affected. Errors come after a page of usage, and call a type
    ``<lambda>``.
    """
    parser.error = partial(_end_in_one_message, parser)
    parsed = parse(parser, input_args, *args, **kwargs)
    arguments = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(arguments, "bf16", False):
        arguments.tpu = parser.parse_known_args(input_args)[0].tpu
    return parsed


def _end_in_one_message(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    hints = {}
    for field in TASK_DATACLASS_REGISTRY[_TASK].__dataclass_fields__:
        name = option(field)
        hints[name] = f"{name} needs --task {_TASK}"
    for name in ("--encoder", "--recipe", "--dry-run"):
        hints[name] = f"mae-lm pretrain has {name}"
    hints |= HINTS
    for name, reason in OF_ROBERTA.items():
        hints[name] = f"{name} {reason}"

    _, _, unknown = message.partition(UNRECOGNIZED)
    explanations = suggestions(unknown.split(), parser._option_string_actions, hints)
    problem = message.replace("invalid <lambda> value", "invalid value")
    parser.exit(2, f"{parser.prog}: error: {problem}{explanations}{choice_meant(message)}\n")


def suppress_warnings() -> None:
    """Suppress the warnings of Hydra and torch about fairseq's use of them, which every command printed."""
    warnings.filterwarnings("ignore", _WARNINGS)


@patch(Trainer, "__init__")
def check_options_of_the_trainer(init: Callable, trainer: Trainer, cfg: Any, *args, **kwargs) -> None:
    """Check options when the trainer is created, and call the model's ``begin_training`` if it has
    :class:`~mae_lm_fairseq.fairseq_patches.hooks.ModelHooks`.

    ``fairseq-hydra-train`` loads this package after it has started training, too late for the checks of the commands.
    """
    check_settings(cfg)
    init(trainer, cfg, *args, **kwargs)
    model = trainer.get_model()
    if isinstance(model, ModelHooks):
        model.to(trainer.device).begin_training(trainer.device)  # of several processes, fairseq moves it later


@patch(utils, "import_user_module")
def refuse_second_copy(import_: Callable, args: Any) -> None:
    """Reject another copy of this package in ``--user-dir``, take any path of this one, and hide no other module.

    fairseq mixes the copies, or stops with "not globally unique", also for a symbolic link to this one. It also leaves
    the parent of the directory first on the search path, so that a directory ``json`` there hides Python's own.
    """
    user_dir = getattr(args, "user_dir", None)
    if user_dir is None:
        return
    package = Path(user_dir).resolve()
    if package == PACKAGE:
        return
    if package.name == PACKAGE.name and package.exists():
        raise SystemExit(
            f"error: two copies of {PACKAGE.name}: --user-dir is {package}, but Python has loaded {PACKAGE}; "
            "uninstall one of them, or pass the other to --user-dir"
        )
    path = Path(os.path.abspath(user_dir))
    if path.is_dir() and module_of_same_name(path) is None:
        import_directory(path)
    import_(args)


@patch(tasks, "register_task")
def refuse_taken_tasks(register: Callable, name: str, *args, **kwargs) -> Callable:
    """Reject a second task of the same name, which fairseq ignores."""
    if name in TASK_REGISTRY:
        known = TASK_REGISTRY[name]
        raise UserError(f"{name} is the name of {known.__module__}.{known.__qualname__}; choose another name")
    return register(name, *args, **kwargs)

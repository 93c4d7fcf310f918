"""Patches of how fairseq reads its options."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import options, utils
from fairseq.dataclass import utils as dataclass_utils
from fairseq.optim import lr_scheduler
from fairseq.trainer import Trainer

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.copies import check_one_copy
from mae_lm_fairseq.fairseq_patches.option_checks import BOTH_PRECISIONS, check_command_line, check_settings, read_list
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program, first_line


def read_options() -> None:
    """Report invalid options with an error message, and do not confuse ``--bf16`` with ``--tpu``.

    A ``--user-dir`` that cannot be loaded, or an invalid list of numbers, ended in a traceback. On the command line,
    fairseq sets ``tpu`` if ``--bf16`` is given and then fails because torch_xla is missing, even on a GPU. Under Hydra,
    ``common.bf16=true`` is not affected.
    """
    wrap(options, "get_parser", _get_parser)
    wrap(options, "parse_args_and_arch", _parse_args_and_arch)
    wrap(dataclass_utils, "eval_str_list", read_list)


def _get_parser(get: Callable, *args, **kwargs) -> Any:
    with errors_end_the_program():
        return get(*args, **kwargs)


def _parse_args_and_arch(parse: Callable, parser: Any, input_args: Any = None, *args, **kwargs) -> Any:
    with errors_end_the_program():
        try:
            parsed = parse(parser, input_args, *args, **kwargs)
        except ValueError as error:
            if "Cannot combine --fp16" not in str(error):
                raise
            raise UserError(BOTH_PRECISIONS) from None
        arguments = parsed[0] if isinstance(parsed, tuple) else parsed
        check_command_line(arguments)
    if getattr(arguments, "bf16", False):
        arguments.tpu = parser.parse_known_args(input_args)[0].tpu
    return parsed


def check_options_of_the_trainer() -> None:
    """Check options when the trainer is created, and call the model's ``begin_training(device)`` if it has one.

    ``fairseq-hydra-train`` loads this package after it has started training, too late for the checks of the commands.
    """
    wrap(Trainer, "__init__", _init_trainer)


def _init_trainer(init: Callable, trainer: Trainer, cfg: Any, *args, **kwargs) -> None:
    check_settings(cfg)
    init(trainer, cfg, *args, **kwargs)
    model = trainer.get_model()
    if hasattr(model, "begin_training"):
        model.begin_training(trainer.device)


def explain_invalid_schedules() -> None:
    """Report options of ``--lr-scheduler`` that do not fit, which ended in a traceback."""
    wrap(lr_scheduler, "build_lr_scheduler", _build_lr_scheduler)


def _build_lr_scheduler(build: Callable, cfg: Any, optimizer: Any) -> Any:
    try:
        return build(cfg, optimizer)
    except TypeError:  # from --lr-scheduler manual, whose keys must be strings
        reason = "--epoch2lr and --update2lr need keys in quotes, as in \"{'1-100': 1e-3}\""
    except (AssertionError, ValueError, SyntaxError) as error:
        reason = first_line(error) if str(error) else "one of its options is out of range"
    name = cfg.lr_scheduler if isinstance(cfg, Namespace) else cfg._name
    raise UserError(f"--lr-scheduler {name}: {reason}")


def refuse_second_copy() -> None:
    """Reject a second copy of this package.

    fairseq mixes the copies, or stops with "not globally unique" and a traceback. It also treats another path of the
    same directory, such as a symbolic link, as another copy.
    """
    wrap(utils, "import_user_module", _import_user_module)


def _import_user_module(import_: Callable, args: Any) -> None:
    user_dir = getattr(args, "user_dir", None)
    check_one_copy(user_dir)
    if user_dir is None or Path(user_dir).resolve() != PACKAGE.resolve():
        import_(args)

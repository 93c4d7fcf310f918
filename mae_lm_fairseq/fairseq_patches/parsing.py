"""Patches of how fairseq reads its options."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq import options, utils
from fairseq.dataclass import utils as dataclass_utils
from fairseq.trainer import Trainer

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.fairseq_patches.copies import check_one_copy
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program


def read_options() -> None:
    """Report invalid options with an error message, and do not confuse ``--bf16`` with ``--tpu``.

    A ``--user-dir`` that cannot be loaded, a list such as ``--lr 1e-3,x``, or a decay without an end ended in a
    traceback. On the command line, fairseq sets ``tpu`` if ``--bf16`` is given and then fails because torch_xla is
    missing, even on a GPU. Under Hydra, ``common.bf16=true`` is not affected.
    """
    wrap(options, "get_parser", _get_parser)
    wrap(options, "parse_args_and_arch", _parse_args_and_arch)
    wrap(dataclass_utils, "eval_str_list", _read_list)


def _get_parser(get: Callable, *args, **kwargs) -> Any:
    with errors_end_the_program():
        return get(*args, **kwargs)


def _parse_args_and_arch(parse: Callable, parser: Any, input_args: Any = None, *args, **kwargs) -> Any:
    parsed = parse(parser, input_args, *args, **kwargs)
    arguments = parsed[0] if isinstance(parsed, tuple) else parsed
    with errors_end_the_program():
        if getattr(arguments, "lr_scheduler", None) == "polynomial_decay" and arguments.total_num_update is None:
            raise UserError(
                "--lr-scheduler polynomial_decay needs --total-num-update, usually the value of --max-update"
            )
    if getattr(arguments, "bf16", False):
        arguments.tpu = parser.parse_known_args(input_args)[0].tpu
    return parsed


def _read_list(evaluate: Callable, text: Any, kind: type = float) -> list:
    try:
        return evaluate(text, kind)
    except (ValueError, TypeError, SyntaxError):
        raise ArgumentTypeError(f"{text!r} is neither a number nor a list of numbers such as 1,2") from None


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
        model.to(trainer.device).begin_training(trainer.device)  # of several processes, fairseq moves it later


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

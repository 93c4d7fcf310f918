"""The work of ``mae-lm pretrain``: the configuration of a recipe on this machine, and the start of fairseq-train."""

import contextlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.optim import fused_adam

from mae_lm_fairseq.fairseq_patches.option_checks import check_settings, option
from mae_lm_fairseq.fairseq_patches.started_processes import join_started_processes
from mae_lm_fairseq.models.architectures import core_config
from mae_lm_fairseq.tasks.options import check_length
from mae_lm_fairseq.text.data_bin import DICTIONARY
from mae_lm_fairseq.trained.huggingface.from_scratch import encoder_options
from mae_lm_fairseq.training.batch_size import BatchSize, batch_size_on_gpus
from mae_lm_fairseq.training.command import Settings, arguments, as_options, split_global_batch, training_module
from mae_lm_fairseq.training.estimate import describe_length, vocabulary_size, warnings_about
from mae_lm_fairseq.training.settings import describe_amount, recipe, settings
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.meta_device import on_meta_device
from mae_lm_fairseq.utils.signals import ENDING
from mae_lm_fairseq.wrapped.network import contradictions

_START = f"""
import os, signal, sys

def end(number, frame):
    name = signal.Signals(number).name
    os.write(2, f"{{name}}: training has not begun, so there is nothing to save\\n".encode())
    os._exit(128 + number)

for number in {[int(number) for number in ENDING]}:
    if signal.getsignal(number) != signal.SIG_IGN or number != signal.SIGHUP:
        signal.signal(number, end)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
sys.argv[0] = "fairseq-train"
"""
"""Beginning of the program that trains; its imports take seconds, in which a signal also ends it with a message."""


def main(options: Any) -> None:
    """Print what will be trained, and replace this process by fairseq-train, which checks paths and options."""
    data = options.data_bin
    preset, flags = options.preset, options.flags
    words, cfg, batch = configure(preset, data, options.save_dir, flags, options.recipe, options.encoder)
    if options.dry_run:
        check_start(parse_configuration(words), shards_of(data)[0])
    number, rank = processes(cfg)
    if rank == 0:
        print(f"{preset}: {describe_amount(cfg, number)}")
        for sentence in (*batch.reasons, *describe_length(cfg, number, shards_of(data), options.dry_run)):
            print(sentence)
        for warning in (*batch.warnings, *warnings_about(cfg)):
            print(f"warning: {warning}", file=sys.stderr)
        print(shlex.join(["fairseq-train", *words]), flush=True)
    if options.dry_run:
        return
    # Logging in this process is not set up as fairseq-train expects, because other modules of fairseq were imported
    # first. Signals wait until it handles them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    program = f"{_START}from {training_module()} import cli_main; cli_main()"
    os.execv(sys.executable, [sys.executable, "-P", "-c", program, *words])


def shards_of(data: str) -> list[Path]:
    """Return the data-bins of an argument as fairseq splits it."""
    return [Path(data)] if "://" in data else list(map(Path, data.split(os.pathsep)))


def parse_configuration(words: list[str]):
    """Return the configuration (a DictConfig) that fairseq-train builds from its arguments."""
    parser = fairseq_options.get_training_parser()
    return convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, words))


def checked_configuration(words: list[str]):
    """Return the configuration that fairseq-train builds from its arguments.

    Raises:
        UserError: if fairseq's parser refuses them.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parse_configuration(words)
    except SystemExit:
        raise UserError(printed.getvalue().strip().rpartition("error: ")[2]) from None


def processes(cfg) -> tuple[int, int]:
    """Return the number of training processes, and the rank of this one (of the first one that it starts)."""
    cfg = deepcopy(cfg)
    join_started_processes(cfg)
    distributed = cfg.distributed_training
    distributed_utils.infer_init_method(distributed)
    return distributed.distributed_world_size, distributed.distributed_rank or 0


def precision(cfg) -> dict[str, Any]:
    """Return the option for fp16 on a GPU, unless the configuration of fairseq-train chooses a precision."""
    options = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")
    is_chosen = cfg.model.autocast != "none" or any(cfg.common[name] for name in options)
    return {"fp16": True} if _uses_gpu(cfg) and not is_chosen else {}


def _uses_gpu(cfg) -> bool:
    return torch.cuda.is_available() and not cfg.common.cpu


def optimizer(cfg, extra: Sequence[str]) -> dict[str, Any]:
    """Return the option for ``fused_adamw`` on a GPU without apex, where fairseq's ``adam`` is slow."""
    names = {word.split("=")[0] for word in extra}
    needs_adam = cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16
    is_chosen = not names.isdisjoint(("--optimizer", "--use-old-adam", "--fp16-adam-stats"))
    has_apex = fused_adam.get_fused_adam_class() is not None
    if needs_adam or is_chosen or has_apex or not _uses_gpu(cfg):
        return {}
    return {"_name": "fused_adamw"}


def configure(
    architecture: str,
    data: str,
    save_dir: str,
    extra: Sequence[str],
    name: str | None = None,
    encoder: Path | None = None,
) -> tuple[list[str], Any, BatchSize]:
    """Return all arguments of fairseq-train, its configuration, except for the batch size of validation, and the batch.

    The arguments are the recipe's, those of a configuration of ``transformers``, this machine's, and the user's, which
    come last and take precedence.

    Raises:
        UserError: if the architecture does not exist, the configuration cannot be used, sequences are longer than the
            network allows, or the sequences of an update cannot be divided by the processes or are unknown.
    """
    chosen = settings(architecture, name)
    if encoder is not None:
        chosen["model"] |= encoder_options(encoder, architecture, shards_of(data)[0])
    chosen["checkpoint"]["save_dir"] = save_dir
    # 0 marks options that the user did not set.
    unset = ["--batch-size", "0", "--update-freq", "0"]
    cfg = parse_configuration(arguments(data, as_options(chosen), [*unset, *extra]))
    if encoder is not None:
        _check_encoder(cfg, encoder)
    is_chosen = bool(cfg.dataset.batch_size)
    cfg.dataset.batch_size = cfg.dataset.batch_size or chosen["dataset"]["batch_size"]
    of_machine = {"common": precision(cfg), "optimizer": optimizer(cfg, extra)}
    _set(cfg, of_machine)
    batch = BatchSize(cfg.dataset.batch_size)
    if cfg.optimization.update_freq == [0]:
        if cfg.dataset.max_tokens:
            raise UserError(
                f"--max-tokens {cfg.dataset.max_tokens}: --update-freq cannot be computed, as the number of "
                "sequences in a batch varies; add --update-freq"
            )
        sequences = recipe(architecture, name)["sequences"].value
        batch, accumulated = _divide_update(cfg, sequences, shards_of(data)[0], is_chosen)
        of_machine["optimization"] = {"update_freq": [accumulated]}
    of_machine["dataset"] = {"batch_size": batch.sequences}
    for group, values in of_machine.items():
        chosen[group] |= values
    _set(cfg, of_machine)
    return arguments(data, as_options(chosen), extra), cfg, batch


def _check_encoder(cfg: Any, encoder: Path) -> None:
    """Check that no option contradicts the configuration of ``transformers`` that the encoder has."""
    network = core_config(cfg.model)
    for name, needed in contradictions(network):
        raise UserError(
            f"{option(name)} {getattr(network, name)} contradicts {encoder}, where it is {needed}; remove the option, "
            "or change the configuration"
        )
    check_length(cfg.task, network.max_positions, f"max_position_embeddings of {encoder}")


def check_start(cfg: Any, data_bin: Path) -> None:
    """Check what a training checks before it reads text or a checkpoint: options, task and network.

    The latter two need a data-bin, and are left out if it does not exist yet. No weights are computed.

    Raises:
        UserError: if the training would end with this message.
    """
    check_settings(cfg)
    if not (data_bin / DICTIONARY).exists():
        return
    task = tasks.setup_task(cfg.task)
    with on_meta_device():
        task.build_model(cfg.model)


def _divide_update(cfg: Any, sequences: int, data_bin: Path, is_chosen: bool) -> tuple[BatchSize, int]:
    """Return the batch size and the number of accumulated batches of an update.

    Args:
        cfg: the configuration with the batch size of the user, or of the recipe.
        sequences: sequences of the update, over all processes.
        is_chosen: whether the user chose the batch size.
    """
    number, _ = processes(cfg)
    batch = BatchSize(cfg.dataset.batch_size)
    size, accumulated = split_global_batch(sequences, number, batch.sequences, smaller=not is_chosen)
    if _uses_gpu(cfg) and not is_chosen:
        cfg.optimization.update_freq = [accumulated]
        batch = batch_size_on_gpus(cfg, vocabulary_size(data_bin), number, size * accumulated)
        size, accumulated = split_global_batch(sequences, number, batch.sequences, smaller=True)
    return batch._replace(sequences=size), accumulated


def _set(cfg: Any, options: Settings) -> None:
    for group, values in options.items():
        for name, value in values.items():
            cfg[group][name] = value

"""Patches of how fairseq starts and ends processes, and of what they send to each other."""

import atexit
import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq.data import iterators
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from mae_lm_fairseq import register
from mae_lm_fairseq.fairseq_patches.hooks import TaskHooks
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.fairseq_patches.preemption import saves_before_it_ends, signal_received, trains
from mae_lm_fairseq.fairseq_patches.started_processes import gpus_hidden, join_started_processes
from mae_lm_fairseq.utils.errors import Interrupted, UserError, errors_end_the_program, first_line
from mae_lm_fairseq.utils.files import removed_if_empty


def start_training_with_checks() -> None:
    """Join processes started together, check options before training starts, and end with an error message.

    fairseq does not join processes without GPUs that ``torchrun`` or Slurm have started: each would train alone.
    ``fairseq-train`` starts its processes and reads all data before it checks some of its options. With this patch,
    errors that the user can fix are also reported by each of the processes that fairseq starts for several GPUs. The
    first process calls ``check_data(cfg)`` of the task, if it has one, before it starts others. At the end, it prints
    the ``closing_summary(cfg)`` of the task, if it has one, and removes ``--save-dir`` if it is new and empty.

    fairseq also logs its whole configuration, in a line of more than 10,000 characters. On a terminal, it would move
    what was printed before off the screen, so only files and pipes get it.
    """
    wrap(distributed_utils, "call_main", _call_main)
    distributed_utils.distributed_main = distributed_main


def _call_main(call: Callable, cfg: Any, *args, **kwargs) -> Any:
    training = next(filter(trains, args), None)
    _keep_configuration_off_terminals()
    with errors_end_the_program(), saves_before_it_ends(training), _lost_connections():
        join_started_processes(cfg)
        with gpus_hidden(cfg):
            check_settings(cfg)
            rank = cfg.distributed_training.distributed_rank
            if training:
                _check_end(cfg)
            task = TASK_REGISTRY.get(getattr(cfg.task, "_name", None))
            is_asked = training and task is not None and issubclass(task, TaskHooks)
            with _no_empty_save_dir(cfg, training):
                if is_asked and rank == 0:
                    task.check_data(cfg.task)
                result = call(cfg, *args, **kwargs)
        if is_asked and not (rank or cfg.distributed_training.distributed_rank):
            print(task.closing_summary(cfg), flush=True)
        return result


@contextlib.contextmanager
def _no_empty_save_dir(cfg: Any, training: Callable | None) -> Iterator[None]:
    """Remove the directory that the first process of a training has created for checkpoints, if it is empty."""
    if training is None or cfg.distributed_training.distributed_rank:
        yield
        return
    with removed_if_empty(Path(cfg.checkpoint.save_dir)):
        yield


def _keep_configuration_off_terminals() -> None:
    """Let handlers of the root logger that write to a terminal skip configurations."""
    for handler in logging.root.handlers:
        writes = isinstance(handler, logging.StreamHandler) and not handler.stream.closed
        if writes and handler.stream.isatty():
            handler.addFilter(_is_no_configuration)


def _is_no_configuration(record: logging.LogRecord) -> bool:
    return not isinstance(record.msg, DictConfig)


def _check_end(cfg: Any) -> None:
    limits = cfg.optimization
    is_decaying = getattr(cfg.lr_scheduler, "_name", None) == "polynomial_decay"
    is_limited = limits.max_update or limits.max_epoch or limits.stop_time_hours or limits.stop_min_lr >= 0
    if is_decaying and not is_limited and cfg.checkpoint.patience < 1:  # it would train on with a learning rate of 0
        raise UserError("--max-update 0 is no limit, and training would never end; set --max-update or --max-epoch")


fairseq_distributed_main = distributed_utils.distributed_main


def distributed_main(number: int, main: Callable, *arguments) -> None:
    """Run fairseq's ``distributed_main`` with patches in one of several processes.

    A spawned process imports its main function by name; fairseq's own would run without patches.
    """
    with errors_end_the_program(), saves_before_it_ends(main), _lost_connections():
        register()
        _keep_configuration_off_terminals()
        fairseq_distributed_main(number, main, *arguments)


@contextlib.contextmanager
def _lost_connections() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.distributed.DistError) and "gloo" not in str(error):
            raise
        reason = re.sub(r"^\[\S+] ", "", first_line(error))  # without the line of gloo's source
        if "Timed out" in reason:
            reason += " (--ddp-timeout)"
        message = (
            f"lost the connection to another process of this job: {reason}; the same command resumes from the last "
            "checkpoint"
        )
        number = signal_received()
        if number:  # which has ended the other process, too
            raise Interrupted(f"{number.name}: {message}", number) from error
        raise UserError(message) from error


def send_checkpoints_to_all_processes() -> None:
    """Let a job of several processes resume from a checkpoint.

    The first process reads the checkpoint and sends it to the others, which unpack it with ``torch.load``. Since torch
    2.6, that rejects two of fairseq's objects: the configuration as an OmegaConf object, and a small class that stands
    for a tensor.
    """
    torch.serialization.add_safe_globals([distributed_utils._TensorPlaceholder])
    wrap(distributed_utils, "broadcast_object", _broadcast_plain_object)


def _broadcast_plain_object(broadcast: Callable, obj: Any, *args, **kwargs) -> Any:
    if isinstance(obj, dict) and OmegaConf.is_config(obj.get("cfg")):
        obj = {**obj, "cfg": OmegaConf.to_container(obj["cfg"], enum_to_str=True)}
    return broadcast(obj, *args, **kwargs)


def stop_loading_batches_at_exit() -> None:
    """Stop fairseq's batch-loading threads at exit.

    A run that ended in the middle of an epoch could abort at exit ("terminate called...", exit code 134). At exit,
    Python stops threads when they next acquire the interpreter lock; inside a torch operation, this unwinds C++ code
    that does not allow it.
    """
    atexit.unregister(stop_loading_threads)
    atexit.register(stop_loading_threads)


def stop_loading_threads() -> None:
    """Stop the threads that load batches ahead. Call it before leaving without Python's exit functions."""
    deadline = time.monotonic() + 10
    for thread in threading.enumerate():
        if isinstance(thread, iterators.BackgroundConsumer):
            thread._max_len = 0
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get(timeout=0.05)  # it may be waiting for a free slot

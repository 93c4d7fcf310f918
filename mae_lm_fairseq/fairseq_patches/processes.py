"""Patches of how fairseq starts and ends its processes, and of what they send each other."""

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from fairseq.data import iterators
from fairseq.distributed import utils as distributed_utils
from hydra.core.utils import JobReturn
from omegaconf import OmegaConf

from mae_lm_fairseq import register
from mae_lm_fairseq.fairseq_patches.option_checks import check_settings
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.errors import UserError, errors_end_the_program


def start_training_with_checks() -> None:
    """``fairseq-train`` starts its processes, and reads all data, before it looks at some of its options.

    Here options that cannot work are refused first. An error that the user can fix ends the command with an error
    message, not with a traceback, in each of the processes that fairseq starts for several GPUs too; torch's launcher,
    which stops the other processes then, would raise an exception of its own.
    """
    wrap(distributed_utils, "call_main", _call_main)
    distributed_utils.distributed_main = distributed_main


def _call_main(call: Callable, cfg: Any, *args, **kwargs) -> Any:
    with errors_end_the_program():
        check_settings(cfg)
        try:
            return call(cfg, *args, **kwargs)
        except torch.multiprocessing.ProcessExitedException as error:
            # Exceptions arrive as another class, and signals as negative codes: the process has printed its error.
            if error.exit_code != 1:
                raise
            raise SystemExit(1) from error


fairseq_distributed_main = distributed_utils.distributed_main


def distributed_main(*arguments) -> None:
    """Run fairseq's ``distributed_main`` in one of several processes.

    A spawned process finds its function by name. That of fairseq it would find without its patches.
    """
    with errors_end_the_program():
        register()
        fairseq_distributed_main(*arguments)


def report_errors_under_hydra() -> None:
    """``fairseq-hydra-train`` printed a traceback, and Hydra's advice to print a longer one.

    It loads this package when training has started, so that only what Hydra does afterwards can be patched: it takes
    the job's result, and raises the job's error.
    """
    JobReturn.return_value = property(_job_result, JobReturn.return_value.fset)


_hydra_job_result = JobReturn.return_value.fget


def _job_result(job: JobReturn) -> Any:
    with errors_end_the_program():
        if isinstance(job._return_value, UserError):  # before Hydra prints its own words
            raise job._return_value
        return _hydra_job_result(job)


def send_checkpoints_to_all_processes() -> None:
    """A job of several processes could not resume: the first one reads the checkpoint and sends it to the others.

    They unpack it with torch.load, which since torch 2.6 refuses two things that fairseq puts into it: the
    configuration as an OmegaConf object, and a small class that stands for a tensor.
    """
    torch.serialization.add_safe_globals([distributed_utils._TensorPlaceholder])
    wrap(distributed_utils, "broadcast_object", _broadcast_plain_object)


def _broadcast_plain_object(broadcast: Callable, obj: Any, *args, **kwargs) -> Any:
    if isinstance(obj, dict) and OmegaConf.is_config(obj.get("cfg")):
        obj = {**obj, "cfg": OmegaConf.to_container(obj["cfg"], enum_to_str=True)}
    return broadcast(obj, *args, **kwargs)


def stop_loading_batches_at_exit() -> None:
    """A run that ended in the middle of an epoch could abort at exit ("terminate called...", exit code 134).

    fairseq's thread that loads batches ahead is still at work then. Python stops such threads as soon as they want
    the interpreter, and inside one of torch's operations that unwinds C++ code which does not allow it.
    """
    atexit.unregister(stop_loading_threads)
    atexit.register(stop_loading_threads)


def stop_loading_threads() -> None:
    """Stop the threads that load batches ahead; for processes that leave without Python's exit functions."""
    deadline = time.monotonic() + 10
    for thread in threading.enumerate():
        if isinstance(thread, iterators.BackgroundConsumer):
            thread._max_len = 0
            while thread.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get(timeout=0.05)  # it may be waiting for room

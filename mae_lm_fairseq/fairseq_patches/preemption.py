"""Saving before the end: a training that a signal asks to end saves the update in progress first.

A thread notes the signal. The training loop looks for it after each update, saves ``checkpoint_last.pt`` without a
validation, and ends with exit code 128 plus the number of the signal. The next start makes up for the validation, so
that the best checkpoint, ``--patience`` and the schedule are those of a run that was not interrupted.

Several processes must end after the same update, although not all of them may have received the signal. They agree on
it over a store, see :class:`Agreement`.
"""

import copy
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from torch import distributed
from torch.multiprocessing import ProcessExitedException
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from mae_lm_fairseq.fairseq_patches.keeping import keep_weights
from mae_lm_fairseq.fairseq_patches.patching import wrap
from mae_lm_fairseq.utils.signals import heed_parent_only, ignore_until_the_end, requests_to_end, say, signals_blocked

UNVALIDATED = "unvalidated"
"""Name, in a checkpoint's position in the data, of the epoch whose update was saved without a validation."""
_BATCHES = 10
"""Batches of a validation after which several processes look for a signal."""


def save_before_ending() -> None:
    """Save the update in progress when a signal asks a training to end, and end without a validation.

    fairseq ends at once, and loses all updates since the last checkpoint. With several processes and GPUs, the process
    that has started the others leaves them behind. A signal for a group of processes, such as that of a terminal or of
    Slurm, ends the data workers, so that no further update can be made. The functions ``train`` and
    ``validate_and_save`` of fairseq's program are wrapped when it starts, see :func:`saves_before_it_ends`.
    """
    wrap(Trainer, "valid_step", _abandon_validation)
    wrap(_MultiProcessingDataLoaderIter, "__init__", _shield_data_workers)
    wrap(torch.multiprocessing, "spawn", _wait_for_spawned)


class Ending:
    """The end of this process that a signal asks for.

    Attributes:
        number: the signal; None while there is none.
        has_begun: whether training has begun, so that an update is in progress.
        is_saved: whether that update is saved.
        agreement: with the other processes of the job, if there are any.
        spawned: processes that train in place of this one; None if it trains itself.
    """

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.has_begun = self.is_saved = False
        self.agreement: Agreement | None = None
        self.spawned: Sequence[Any] | None = None

    def ask(self, number: signal.Signals) -> None:
        """End this process after the update in progress, or at once if there is none."""
        if self.number is not None:
            return
        self.number = number
        if self.spawned is not None:
            self.send_to_spawned(number)
        elif self.has_begun:
            if is_first_process():
                say(f"{number.name}: the update in progress will be saved; another signal ends the training at once")
        else:
            say(f"{number.name}: training has not begun, so there is nothing to save")
            _end_at_once(128 + number)

    def insist(self, number: signal.Signals) -> None:
        """End this process at once, unless it ends by itself in a moment."""
        if self.is_saved:
            return
        self.send_to_spawned(signal.SIGKILL)
        say(f"{number.name}: ended without saving; the same command resumes from the last checkpoint")
        _end_at_once(128 + number)

    def is_due(self) -> bool:
        """Return whether training ends here. All processes of a job call this equally often."""
        if self.agreement is None:
            return self.number is not None
        number = self.agreement.reached(self.number)
        if number is None:
            return False
        self.number = number
        return True

    def send_to_spawned(self, number: signal.Signals) -> None:
        """Send a signal to the processes that train in place of this one."""
        for process in self.spawned or ():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _end_at_once(code: int) -> None:
    """End this process and its data workers, which would report that it has gone."""
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(code)


class Agreement:
    """The step after which all processes of a job end, which one of them announces one step ahead.

    Each step of a process needs all others: in an update they exchange gradients, and each waits for the result. So
    none can complete a step that another one has not begun, and all read an announcement before they go beyond the step
    that it names. Reading it does not wait for the device, as exchanging a tensor would.
    """

    _KEY = "last step and signal"

    def __init__(self, store: distributed.Store):
        self._store, self._steps = store, 0

    def reached(self, number: signal.Signals | None) -> signal.Signals | None:
        """Count a step; return the signal that ends all processes after it, or None.

        Args:
            number: the signal that this process has received.
        """
        self._steps += 1
        if number is not None:  # the announcement that comes first counts
            announcement = f"{self._steps + 1} {number:d}"
            self._store.compare_set(self._KEY, "", announcement)
        if not self._store.check([self._KEY]):
            return None
        last, announced = map(int, self._store.get(self._KEY).split())
        return signal.Signals(announced) if self._steps >= last else None


def _shared_store(trainer: Trainer) -> distributed.Store:
    """Return a store that all processes of a job can reach.

    torchrun's store ends with torchrun, which does not handle SIGUSR1, so the first process opens another one.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return distributed.distributed_c10d._get_default_store()
    host = os.environ["MASTER_ADDR"]
    if trainer.data_parallel_rank == 0:
        store = distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        from_first_process(trainer, store.port)
        return store
    port = from_first_process(trainer, None)
    return distributed.TCPStore(host, port, is_master=False)


def from_first_process(trainer: Trainer, content: Any) -> Any:
    """Return the first process's content in every process of a job, once that has arrived here."""
    if trainer.data_parallel_world_size == 1:
        return content
    group = trainer.data_parallel_process_group
    return distributed_utils.broadcast_object(content, src_rank=0, group=group, dist_device=trainer.device)


class Position(NamedTuple):
    """Position of an update in the data, in place of fairseq's iterator, for a checkpoint of that update.

    Attributes:
        is_end: whether the epoch ends with the update.
        state: the state of the iterator.
    """

    epoch: int
    is_end: bool
    state: Mapping[str, Any]

    def end_of_epoch(self) -> bool:
        """Return whether the epoch ends here, as fairseq's iterator does."""
        return self.is_end

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state of the iterator."""
        return self.state


class Abandoned(Exception):
    """A validation ends because a signal ends the training."""


_ending: Ending | None = None


@contextmanager
def saves_before_it_ends(main: Callable | None) -> Iterator[None]:
    """Let a training that begins in the block save the update in progress when a signal asks this process to end.

    Args:
        main: fairseq's main function; None, or that of another program than ``fairseq-train``, changes nothing.
    """
    global _ending
    if _ending is not None or not trains(main):
        yield
        return
    program = sys.modules[main.__module__]  # python -m gives it another name
    wrap(program, "train", _begin_to_train)
    wrap(program, "validate_and_save", _save_if_asked_to_end)
    _ending = Ending()
    try:
        with requests_to_end(_ending.ask, _ending.insist):
            yield
    finally:
        if _ending.number is not None:
            ignore_until_the_end()
        _ending = None


def trains(main: Callable | None) -> bool:
    """Return whether a function is the main function of ``fairseq-train``."""
    return "validate_and_save" in getattr(main, "__globals__", {})


def ask_to_end() -> bool:
    """Ask this process to end as SIGTERM does, if it trains and no signal has done so; return whether it trains."""
    if _ending is not None:
        _ending.ask(signal.SIGTERM)
    return _ending is not None


def signal_received() -> signal.Signals | None:
    """Return the signal that asks this process, which trains, to end; None if there is none."""
    return _ending and _ending.number


def is_first_process() -> bool:
    """Return whether this process reports for all processes of its job."""
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank())


def begin(trainer: Trainer) -> None:
    """Note that an update, or the validation of one, is in progress from here."""
    if _ending is None or _ending.has_begun:
        return
    if trainer.data_parallel_world_size > 1:
        _ending.agreement = Agreement(_shared_store(trainer))
    _ending.has_begun = True


def _begin_to_train(train: Callable, cfg: Any, trainer: Trainer, *args) -> Any:
    begin(trainer)
    return train(cfg, trainer, *args)


def _save_if_asked_to_end(
    validate_and_save: Callable,
    cfg: Any,
    trainer: Trainer,
    task: Any,
    epoch_itr: Any,
    valid_subsets: list[str],
    end_of_epoch: bool,
) -> Any:
    keep_weights(trainer, epoch_itr.state_dict)
    try:
        if _ending is None or not _ending.is_due():
            return validate_and_save(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
    except Abandoned:
        pass
    _save(cfg, trainer, epoch_itr, end_of_epoch)
    _ending.is_saved = True
    if is_first_process():
        update = trainer.get_num_updates()
        saved = f"saved update {update}"
        if cfg.checkpoint.no_save:
            saved = f"update {update} was not saved (--no-save)"
        say(f"{_ending.number.name}: {saved}; the same command resumes")
    raise SystemExit(128 + _ending.number)


def _save(cfg: Any, trainer: Trainer, epoch_itr: Any, end_of_epoch: bool) -> None:
    """Save ``checkpoint_last.pt`` only; return in all processes when the first one has saved it.

    A process that ended before would let torchrun, or fairseq's launcher, end the one that saves.
    """
    unvalidated = {"epoch": epoch_itr.epoch, "end_of_epoch": end_of_epoch}
    position = Position(epoch_itr.epoch, end_of_epoch, {**epoch_itr.state_dict(), UNVALIDATED: unvalidated})
    only_last = copy.deepcopy(cfg.checkpoint)
    only_last.no_last_checkpoints = False
    only_last.no_epoch_checkpoints = True
    only_last.save_interval_updates = only_last.keep_interval_updates = only_last.keep_last_epochs = 0
    checkpoint_utils.save_checkpoint(only_last, trainer, position, None)
    from_first_process(trainer, "saved")


def make_up_for_validation(trainer: Trainer, extra_state: dict[str, Any], validate_and_save: Callable) -> None:
    """Validate and save as fairseq would have done after the update of a checkpoint, if a signal prevented it.

    Args:
        extra_state: the checkpoint's; the loss of the validation is put there.
        validate_and_save: fairseq's function.
    """
    state = dict(extra_state.get("train_iterator", {}))
    unvalidated = state.pop(UNVALIDATED, None)
    if unvalidated is None:
        return
    begin(trainer)
    is_end = unvalidated["end_of_epoch"]
    position = Position(unvalidated["epoch"], is_end, state)
    subsets = trainer.cfg.dataset.valid_subset.split(",")
    losses, _ = validate_and_save(trainer.cfg, trainer, trainer.task, position, subsets, is_end)
    extra_state["val_loss"] = losses[0]


def _abandon_validation(step: Callable, trainer: Trainer, *args, **kwargs) -> Any:
    if _ending is not None and _ending.has_begun and _is_abandoned(trainer):
        raise Abandoned
    return step(trainer, *args, **kwargs)


_batches = 0
"""Batches of validations in this process."""


def _is_abandoned(trainer: Trainer) -> bool:
    global _batches
    if _ending.agreement is None:
        return _ending.is_due()
    _batches += 1
    if _batches % _BATCHES:
        return False
    if trainer.cuda:  # a process may be several batches ahead of what its device has exchanged with the others
        torch.cuda.synchronize()
    return _ending.is_due()


def _shield_data_workers(start: Callable, iterator: Any, loader: torch.utils.data.DataLoader) -> None:
    if _ending is None or loader.worker_init_fn not in (None, heed_parent_only):
        start(iterator, loader)
        return
    loader.worker_init_fn = heed_parent_only
    with signals_blocked():
        start(iterator, loader)


def _wait_for_spawned(spawn: Callable, *args, **options) -> Any:
    """Start processes that train in place of this one, pass signals on to them, and wait for their end."""
    if _ending is None:
        return spawn(*args, **options)
    _ending.spawned = ()
    resource_tracker.ensure_running()  # it would unblock signals
    with signals_blocked():  # until the processes have their handlers, after seconds of imports
        context = spawn(*args, **{**options, "join": False})
    _ending.spawned = context.processes
    if _ending.number is not None:  # received before they were known
        _ending.send_to_spawned(_ending.number)
    try:
        while not context.join():
            pass
    except ProcessExitedException as error:
        if _ending.number is not None:
            raise SystemExit(128 + _ending.number) from error
        if error.exit_code > 128:  # a signal that only they have received
            raise SystemExit(error.exit_code) from error
        raise

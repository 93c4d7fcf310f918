"""Patches of fairseq, and of torch, NumPy and OmegaConf below it; one module per subsystem.

Each patch is a function whose docstring describes the problem it fixes; :func:`patches` lists them. A patch replaces an
attribute of a module or class that fairseq looks up at call time, so the import order does not matter, and no function
of fairseq is wrapped twice. The problems were seen with fairseq-fixed 0.12.3.1 and torch 2.6 to 2.13.
"""

from collections.abc import Callable


def patches() -> tuple[Callable[[], None], ...]:
    """Return the patches in the order in which they are applied.

    Raises:
        ImportError: if fairseq is missing or broken.
    """
    from mae_lm_fairseq.fairseq_patches import (
        best_checkpoints,
        data,
        loading,
        metrics,
        parsing,
        preemption,
        processes,
        resuming,
        saving,
        started_processes,
        updates,
        weights,
    )

    return (
        data.restore_numpy_compat,
        data.accumulate_batches_that_have_sequences,
        data.check_splits,
        data.report_splits_without_validation,
        data.name_missing_files_of_gpt2,
        loading.read_checkpoints_as_data,
        loading.check_checkpoints_before_restoring,
        resuming.resume_from_newest_checkpoint,
        resuming.keep_counts,
        saving.save_atomically,
        best_checkpoints.keep_as_many_as_asked,
        weights.save_float32_weights,
        weights.average_each_weight_once,
        weights.read_moving_averages_as_data,
        parsing.read_options,
        parsing.suppress_warnings,
        parsing.check_options_of_the_trainer,
        parsing.refuse_second_copy,
        parsing.refuse_taken_tasks,
        processes.start_training_with_checks,
        processes.send_checkpoints_to_all_processes,
        processes.stop_loading_batches_at_exit,
        preemption.save_before_ending,
        started_processes.need_a_job_step,
        started_processes.limit_waiting,
        started_processes.use_pytorch_ddp_without_gpus,
        metrics.stop_at_updates_that_fail,
        metrics.define_every_correlation,
        updates.read_options_at_once,
        updates.seed_generators_in_use,
        updates.log_from_the_host,
    )


def apply() -> None:
    """Apply every patch. Calling it again has no effect."""
    for patch in patches():
        patch()

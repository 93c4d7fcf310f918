"""Every patch of fairseq, and of torch, NumPy and Hydra under it, one module for each subsystem.

A patch is one function, whose docstring says what goes wrong without it; :func:`apply` is their list. Each replaces
what fairseq reaches through a module or a class when it calls it, so that it does not matter who imported what first,
and no function of fairseq is wrapped twice. Seen with fairseq-fixed 0.12.3.1 and torch 2.6 to 2.13.
"""


def apply() -> None:
    """Apply every patch. A second call changes nothing.

    Raises:
        ImportError: fairseq is missing or broken.
    """
    from mae_lm_fairseq.fairseq_patches import data, divergence, loading, options, processes, resuming, saving

    for patch in (
        data.restore_numpy_compat,
        loading.read_checkpoints_as_data,
        loading.check_checkpoints_before_restoring,
        resuming.resume_from_newest_checkpoint,
        saving.save_atomically,
        saving.explain_unwritable_directories,
        options.read_options,
        options.check_options_of_the_trainer,
        options.refuse_second_copy,
        processes.start_training_with_checks,
        processes.report_errors_under_hydra,
        processes.send_checkpoints_to_all_processes,
        processes.stop_loading_batches_at_exit,
        divergence.stop_at_loss_that_is_not_finite,
    ):
        patch()

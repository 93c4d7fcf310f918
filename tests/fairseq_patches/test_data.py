"""The batches of an update, and what is loaded before a training starts."""

from types import SimpleNamespace

import pytest

from mae_lm_fairseq.fairseq_patches.data import accumulate_batches_that_have_sequences, check_splits


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([["a", "b"]], [["a", "b"]]),
        ([["a", "b"], ["c", {}]], [["a", "b"], ["c"]]),  # fairseq counts no token of an update whose last one is empty
        ([["a"], [{}]], [["a"], [{}]]),  # without any batch, the process would not exchange gradients
        ([["a"], [{}, {}]], [["a"], [{}]]),
    ],
)
def test_an_empty_batch_stays_where_there_is_no_other(batches, kept):
    assert [*accumulate_batches_that_have_sequences.__wrapped__(lambda: iter(batches))] == kept


@pytest.mark.parametrize(("epoch", "count"), [(1, 3), (2, 5), (3, 2), (4, 2)])
def test_the_task_is_told_how_many_batches_an_update_of_the_epoch_has(epoch, count):
    told = []
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(
            dataset=SimpleNamespace(disable_validation=True), optimization=SimpleNamespace(update_freq=[3, 5, 2])
        ),
        task=SimpleNamespace(
            number_batches=lambda *numbers: told.append(numbers), check_data=print, closing_summary=print
        ),
        get_num_updates=lambda: 9,
    )
    iterator = check_splits.__wrapped__(lambda trainer, epoch: "iterator", trainer, epoch)
    assert told == [(iterator, 9, count)]

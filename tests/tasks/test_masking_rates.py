"""Masking rates that move with the update or differ from sequence to sequence."""

import hashlib
import shutil

import numpy as np
import pytest
from fairseq import tasks
from fairseq.data import MaskTokensDataset
from omegaconf import OmegaConf

from mae_lm_fairseq.tasks.masking_rates import RateSchedule, TrainingSequence, schedule_updates
from mae_lm_fairseq.tasks.splits import load_sequences
from tests.support.refusals import refused
from tests.support.training import RECIPE, batches, parse, set_up

SCHEDULE = ["--mask-prob 0.4 --mask-prob-end 0.1 --mask-prob-updates 40"]
SPLIT = "valid"  # trained on here, because it is small
RANGE = ["--mask-prob-range 0.1,0.6"]


@pytest.fixture
def task_for(data_bin):
    def make(*arguments, data=data_bin, epoch=1):
        task = set_up(data, *arguments).task
        task.load_dataset(SPLIT, epoch=epoch)
        return task

    return make


def training_iterator(task, updates=0, per_update=1, epoch=1, **options):
    """Return the iterator of an epoch as the patched trainer gets it: numbered before the epoch begins."""
    settings = {"max_sentences": 3, "max_positions": task.max_positions(), "data_buffer_size": 10, "epoch": epoch}
    iterator = task.get_batch_iterator(task.dataset(SPLIT), disable_iterator_cache=True, **settings | options)
    task.number_batches(iterator, updates, per_update)
    return iterator


def train_on(task, *arguments, **options):
    return list(training_iterator(task, *arguments, **options).next_epoch_itr(shuffle=True))


def content(batch):
    return [tensor.tolist() for tensor in (batch["id"], batch["net_input"]["src_tokens"], batch["target"])]


def rate_of(batch, pad):
    return batch["target"].ne(pad).sum().item() / batch["ntokens"]


def by_hand(task, batch, epoch, rate):
    """Return inputs and targets of a batch by fairseq's dataset of a fixed rate, sequence by sequence."""
    dictionary, pad = task.dictionary, task.dictionary.pad()
    blocks, rows = load_sequences(task.cfg, task.dictionary, SPLIT, 1, combine=False), []
    for index in batch["id"].tolist():
        for wanted in (False, True):
            options = {"seed": task.cfg.seed, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0}
            dataset = MaskTokensDataset(
                blocks, dictionary, pad, task.mask_idx, wanted, mask_prob=rate(index), **options
            )
            dataset.set_epoch(epoch)
            rows.append(dataset[index].tolist())
    return rows


def unpadded(batch, pad):
    rows = zip(batch["net_input"]["src_tokens"].tolist(), batch["target"].tolist(), strict=True)
    lengths = batch["net_input"]["src_lengths"].tolist()
    return [values[:length] for pair, length in zip(rows, lengths, strict=True) for values in pair]


def test_a_schedule_reaches_its_end_and_stays_there():
    linear, cosine = (RateSchedule(0.3, 0.1, 100, shape) for shape in ("linear", "cosine"))
    expected = {0: (0.3, 0.3), 25: (0.25, 0.2 + 0.1 / 2**0.5), 50: (0.2, 0.2), 100: (0.1, 0.1), 1000: (0.1, 0.1)}
    for updates, rates in expected.items():
        assert (linear.at(updates), cosine.at(updates)) == pytest.approx(rates, rel=1e-12), updates
    for rate in (linear, cosine):
        for updates in (30, 100, 250):
            # The mean treats updates as continuous: half an update's step, 0.002 at most, of error.
            mean = np.mean([rate.at(number) for number in range(updates)])
            assert rate.mean(updates) == pytest.approx(mean, abs=0.002)


def test_a_sequence_that_was_read_at_another_rate_is_masked_anew(task_for):
    """The trainer reads the first batch before it is numbered."""
    task = task_for(*SCHEDULE)
    dataset, pad = task.dataset(SPLIT), task.dictionary.pad()
    predicted = [int(dataset[index]["target"].ne(pad).sum()) for index in (3, TrainingSequence(3, 40), 3)]
    assert predicted[0] == predicted[2] > 2 * predicted[1] > 0


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_each_batch_has_the_masks_of_its_update(task_for, shape):
    """Equal to fairseq's masks at the rate of the update; three batches of an update have the same rate."""
    task = task_for(*SCHEDULE, "--mask-prob-schedule", shape)
    schedule = RateSchedule(0.4, 0.1, 40, shape)
    for number, batch in enumerate(train_on(task, 7, 3)):
        rate = schedule.at(7 + number // 3)
        assert unpadded(batch, task.dictionary.pad()) == by_hand(task, batch, 1, lambda index, rate=rate: rate)


def test_each_sequence_has_a_rate_from_the_range(task_for):
    """The rates depend on seed, epoch and index alone, not on the batch or the update."""
    task = task_for(*RANGE)
    rates = {}
    for epoch in (1, 2):
        batches = train_on(task, 7, 3, epoch=epoch)

        def rate(index, epoch=epoch):
            return np.random.default_rng((2, 1, epoch, index)).uniform(0.1, 0.6)

        for batch in batches[:3]:
            assert unpadded(batch, task.dictionary.pad()) == by_hand(task, batch, epoch, rate)
        rates[epoch] = [rate_of(batch, task.dictionary.pad()) for batch in batches]
        assert np.mean(rates[epoch]) == pytest.approx(0.35, abs=0.06)  # 0.14 / the root of 50 sequences, times 3


@pytest.mark.integration  # starts data workers
@pytest.mark.parametrize("options", [SCHEDULE, RANGE], ids=["schedule", "range"])
@pytest.mark.parametrize("workers", [0, 2])
def test_masks_of_a_batch_do_not_depend_on_the_way_there(task_for, options, workers):
    expected = [content(batch) for batch in train_on(task_for(*options), 5, 6)]
    assert len(expected) > 12

    task = task_for(*options)  # whose caches are empty
    contents = [content(batch) for batch in train_on(task, 5, 6, num_workers=workers)]
    assert contents == expected

    resumed = training_iterator(task_for(*options), 5 + 1, 6, num_workers=workers)  # 1 update of 6 batches is done
    resumed.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 6, "shuffle": True})
    assert [content(batch) for batch in resumed.next_epoch_itr()] == expected[6:]

    # In two processes, an update has three batches of each.
    for rank in (0, 1):
        of_rank = train_on(task_for(*options), 5, 3, num_shards=2, shard_id=rank, num_workers=workers)
        assert [content(batch) for batch in of_rank if batch] == expected[rank::2]


@pytest.mark.parametrize("options", [SCHEDULE, RANGE], ids=["schedule", "range"])
def test_masks_in_later_epochs_and_shards(task_for, data_bin, tmp_path, options):
    """The iterator of unsharded data is the same in every epoch, and is numbered anew."""
    task = task_for(*options)
    iterator = training_iterator(task, 0, 1)
    first = [content(batch) for batch in iterator.next_epoch_itr()]
    task.number_batches(iterator, len(first), 1)
    second = [content(batch) for batch in iterator.next_epoch_itr()]
    assert second == [content(batch) for batch in train_on(task_for(*options), len(first), 1, epoch=2)]

    shard = shutil.copytree(data_bin, tmp_path / "shard")
    task = task_for(*options, data=f"{data_bin}:{shard}", epoch=2)
    assert second == [content(batch) for batch in train_on(task, len(first), 1, epoch=2)]


@pytest.mark.parametrize("extra", [["--mask-whole-words"], ["--mask-multiple-length 2"], ["--mask-stdev 1"]])
def test_other_masking_options_follow_the_rate(task_for, extra):
    task = task_for(*SCHEDULE, *extra)
    rates = [
        np.mean([rate_of(batch, task.dictionary.pad()) for batch in train_on(task, updates, 1000)])
        for updates in (0, 40)
    ]
    # Spans overlap, so that they cover less than the rate.
    assert 0.25 < rates[0] < 0.42
    assert 0.07 < rates[1] < 0.12


@pytest.mark.parametrize("options", [SCHEDULE, ["--mask-prob 0.4", *RANGE]], ids=["schedule", "range"])
def test_validation_has_the_masks_of_the_fixed_rate(data_bin, options):
    masks = []
    for words in (options, ["--mask-prob 0.4"]):
        task = set_up(data_bin, *words).task
        task.load_dataset(SPLIT)
        masks.append([content(batch) for batch in batches(task, SPLIT)])
    assert masks[0] == masks[1]


def test_masks_of_a_fixed_rate_are_what_they_were(task_for):
    """The checksum is of the revision before there were other rates."""
    digest = hashlib.sha256()
    for extra in ([], ["--mask-whole-words --random-token-prob 0.1 --leave-unmasked-prob 0.1"]):
        task = task_for(*extra)
        for epoch in (1, 2):
            for batch in train_on(task, 3, 2, epoch=epoch):
                for values in content(batch):
                    digest.update(repr(values).encode())
    assert digest.hexdigest() == "dc430bc19a02909a9f3b884ef51b52d7c0e235c3562ed34ab1cef27bab51153c"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--mask-prob-end 0.05 --mask-prob-updates 0"], "--mask-prob-updates"),
        (["--mask-prob-end 1.5 --max-update 9"], "--mask-prob-end 1.5"),
        (["--mask-prob-schedule cosine"], "--mask-prob-schedule .* --mask-prob-end"),
        (["--mask-prob-updates 10"], "--mask-prob-updates .* --mask-prob-end"),
        ([*SCHEDULE, *RANGE], "--mask-prob-range .* --mask-prob-end"),
        *((["--mask-prob-range", text], f"--mask-prob-range {text}") for text in ("0.5,0.1", "0,0.5", "0.3", "x,y")),
    ],
)
def test_contradictory_rates_are_named(data_bin, arguments, named):
    with refused(named):
        set_up(data_bin, *arguments)


FIXED = ["fixed" if word == "polynomial_decay" else word for word in RECIPE if word not in ("--total-num-update", "40")]


@pytest.mark.parametrize(
    ("recipe", "options", "updates"),
    [
        (RECIPE, ["--max-update 30"], 40),  # that of the learning rate, which the recipe gives
        (RECIPE, ["--total-num-update 50 --max-update 30 --mask-prob-updates 20"], 20),
        (FIXED, ["--max-update 30"], 30),
    ],
)
def test_a_schedule_has_the_length_of_the_learning_rates(data_bin, recipe, options, updates):
    cfg = parse(data_bin, *recipe, "--arch mae_lm_tiny --mask-prob-end 0.05", *options)
    assert tasks.setup_task(cfg.task).rate.updates == updates
    assert schedule_updates(OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)["task"])) == updates


def test_a_schedule_needs_a_length(data_bin):
    cfg = parse(data_bin, *FIXED, "--arch mae_lm_tiny --mask-prob-end 0.05")
    with refused("--mask-prob-updates"):
        tasks.setup_task(cfg.task)

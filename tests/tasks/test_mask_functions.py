"""Functions of --mask-function: their masks, what they work with, and what is refused."""

import numpy as np
import pytest
import torch

from mae_lm_fairseq.tasks.mask_functions import MASK_FUNCTIONS, register_mask_function
from mae_lm_fairseq.tasks.masking_rates import TrainingSequence
from mae_lm_fairseq.tasks.splits import load_sequences
from tests.support.refusals import refused
from tests.support.training import batches, set_up

SPLIT = "valid"


def span(sequence, generator):
    """Predict one span: its first token is kept, its last one becomes the most frequent token, others [MASK]."""
    words = np.flatnonzero(~sequence.is_special)
    count = round(sequence.rate * len(words))
    first = generator.integers(len(words) - count + 1)
    positions = words[first : first + count]
    replacement = np.full(count, sequence.mask)
    replacement[-1:] = sequence.counts.argmax()
    replacement[:1] = sequence.tokens[positions[:1]]
    return positions, replacement


@pytest.fixture
def task_for(data_bin, monkeypatch):
    def make(function, *options):
        monkeypatch.setitem(MASK_FUNCTIONS, "mine", function)
        task = set_up(data_bin, "--mask-function mine --mask-prob 0.4", *options).task
        task.load_dataset(SPLIT)
        return task

    return make


def rows(task, epoch: int = 1, **options) -> dict[int, tuple[list, list]]:
    """Return inputs and targets of an epoch by the index of the sequence, without padding."""
    by_index = {}
    for batch in batches(task, SPLIT, epoch, **options):
        inputs = batch["net_input"]
        lengths = inputs["src_lengths"].tolist()
        for index, length, *values in zip(
            batch["id"].tolist(), lengths, inputs["src_tokens"].tolist(), batch["target"].tolist(), strict=True
        ):
            by_index[index] = tuple(row[:length] for row in values)
    return by_index


def test_inputs_and_targets_are_those_of_the_function(task_for):
    task = task_for(span)
    sequences = load_sequences(task.cfg, task.dictionary, SPLIT, 1, combine=False)
    pad, frequent = task.dictionary.pad(), np.array(task.dictionary.count).argmax()
    masked = rows(task)
    assert len(masked) == len(sequences) > 10
    for index, (source, target) in masked.items():
        tokens = sequences[index].tolist()
        predicted = [place for place, token in enumerate(target) if token != pad]
        assert [target[place] for place in predicted] == [tokens[place] for place in predicted]
        expected = list(tokens)
        for place in predicted:
            expected[place] = task.mask_idx
        expected[predicted[-1]] = frequent
        expected[predicted[0]] = tokens[predicted[0]]
        assert source == expected
        words = sum(token not in (task.dictionary.bos(), task.dictionary.eos()) for token in tokens)
        assert len(predicted) == round(0.4 * words)


@pytest.mark.integration  # starts data workers
def test_masks_depend_on_seed_epoch_and_index_alone(task_for):
    first = rows(task_for(span))
    assert rows(task_for(span), batch_size=3, workers=2) == first
    for other in (rows(task_for(span), epoch=2), rows(task_for(span, "--seed 2"))):
        same = [index for index, row in other.items() if row == first[index]]
        assert len(same) < len(first) / 2  # short sequences have few spans


def test_a_schedule_gives_the_rate(task_for):
    task = task_for(span, "--mask-prob-end 0.1 --mask-prob-updates 40")
    dataset, pad = task.dataset(SPLIT), task.dictionary.pad()
    predicted = [int(dataset[index]["target"].ne(pad).sum()) for index in (3, TrainingSequence(3, 40))]
    assert predicted[0] > 2 * predicted[1] > 0


def test_the_encoder_sees_a_part_of_the_masks(task_for):
    task = task_for(span, "--mask-in-encoder 0.5")
    early, masks = 0, 0
    for batch in batches(task, SPLIT):
        is_mask = batch["net_input"]["src_tokens"].eq(task.mask_idx)
        assert not (batch["net_input"]["early_masks"] & ~is_mask).any()
        early += int(batch["net_input"]["early_masks"].sum())
        masks += int(is_mask.sum())
    assert early / masks == pytest.approx(0.5, abs=0.1)  # counts of each sequence are rounded at random


def test_no_position_is_no_prediction(task_for):
    def every_second(sequence, generator):
        if len(sequence.tokens) % 2:
            return np.array([]), sequence.mask
        return span(sequence, generator)

    task = task_for(every_second)
    for source, target in rows(task).values():
        if len(source) % 2:
            assert set(target) == {task.dictionary.pad()}
            assert task.mask_idx not in source


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            lambda sequence, generator: (
                np.random.permutation(np.flatnonzero(~sequence.is_special))[:2],
                sequence.mask,
            ),
            "generator",
        ),
        (lambda sequence, generator: ([1], 1), "puts 1 in place"),  # <pad>
        (lambda sequence, generator: ([1], len(sequence.counts)), "in place of a token"),
        (lambda sequence, generator: 1 / 0, r"test_mask_functions\.py, line \d+\): ZeroDivisionError"),
        (lambda sequence, generator: None, r"test_mask_functions\.py, line \d+\): .*must return two things"),
        (lambda sequence, generator: ([9999], sequence.mask), r"IndexError: .*9999"),
        (lambda sequence, generator: ([-1], sequence.mask), "IndexError: position -1"),
        (lambda sequence, generator: ([1, 2], [sequence.mask] * 3), "ValueError: .*predicted positions"),
        (lambda sequence, generator: ([], sequence.mask), r"test_mask_functions\.py, line \d+\): .*predicts nothing"),
        (lambda sequence, generator: ([0, 1], sequence.mask), r"test_mask_functions\.py, line \d+\): .*<s>"),
        (lambda sequence, generator: (sequence.is_special, sequence.mask), "predicts <s> or </s>"),
    ],
)
def test_a_function_that_does_something_else_is_named(task_for, function, problem):
    with refused(f"--mask-function mine .*{problem}"):
        task_for(function)


@pytest.mark.parametrize(
    "options",
    [
        "--leave-unmasked-prob 0.1",
        "--random-token-prob 0.1",
        "--random-token-prob 0.1 --freq-weighted-replacement",
        "--mask-whole-words",
        "--mask-multiple-length 3",
        "--mask-stdev 1.0",
        "--repeat-tokens 2",
    ],
)
def test_options_that_the_function_decides_on_are_refused(task_for, options):
    with refused(f"{options.split()[0]} .*--mask-function mine"):
        task_for(span, options)


def test_expanded_masks_are_refused(task_for):
    with refused("--mask-function mine .*--mask-states 2"):
        task_for(span, "--mask-states 2")


def test_an_unknown_function_is_refused(data_bin):
    with refused(r"--mask-function os\.system"):
        set_up(data_bin, "--mask-function os.system")


def test_a_name_is_registered_once(monkeypatch):
    monkeypatch.setitem(MASK_FUNCTIONS, "span", span)
    register_mask_function("span", span)  # as a module that is imported again does
    with refused(r"span .*\.span"):
        register_mask_function("span", rows)


def test_training_on_spans_differs(task_for, data_bin):
    """The loss of a training depends on the function."""
    losses = []
    for task in (task_for(span), set_up(data_bin, "--mask-prob 0.4").task):
        _, _, model, criterion = set_up(data_bin)
        batch = batches(task, SPLIT)[0]
        losses.append(criterion(model, batch)[0].item())
    assert not torch.isclose(*map(torch.tensor, losses), rtol=1e-3)

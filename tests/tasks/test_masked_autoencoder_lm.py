"""The task: complete batches, masks per epoch and seed, and consistent data."""

import json
import multiprocessing
import re
import shutil

import numpy as np
import pytest
import torch
from fairseq.data import data_utils

from mae_lm_fairseq.core.packing import NEEDED_BY_SOME
from mae_lm_fairseq.tasks.splits import load_sequences
from tests.support.processes import wait_for
from tests.support.refusals import refused
from tests.support.training import batches, set_up


@pytest.fixture
def task_for(data_bin):
    def make(*arguments, data=data_bin, splits=("train",)):
        task = set_up(data, *arguments).task
        for split in splits:
            task.load_dataset(split)
        return task

    return make


def lines_of(data_bin, task, split="train"):
    lines = data_utils.load_indexed_dataset(str(data_bin / split), task.dictionary)
    return [lines[i] for i in range(len(lines))]


def original(batch, pad):
    target, tokens = batch["target"], batch["net_input"]["src_tokens"]
    return torch.where(target.ne(pad), target, tokens)


@pytest.mark.parametrize("tokens_per_sample", [8, 128])
@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc", "eos"])
def test_tokens_in_are_tokens_trained_on(task_for, data_bin, tokens_per_sample, mode):
    task = task_for(
        "--tokens-per-sample", tokens_per_sample, "--sample-break-mode", mode, "--max-positions", tokens_per_sample
    )
    lines = lines_of(data_bin, task)
    # In complete_doc, a lone </s> ends a document and is not text.
    expected = torch.cat([line for line in lines if mode != "complete_doc" or len(line) > 1])
    trained = []
    for batch in batches(task):
        for row in original(batch, task.dictionary.pad()):
            row = row[row.ne(task.dictionary.pad())]
            assert row[0] == task.dictionary.bos()
            assert len(row) <= tokens_per_sample
            trained.append(row[1:])
    assert sum(map(len, trained)) == len(expected)
    assert torch.equal(torch.cat(trained).bincount(), expected.bincount())


def masks_by_sample(task, epoch, workers):
    masks = {}
    for batch in batches(task, epoch=epoch, workers=workers):
        for sample, target in zip(batch["id"].tolist(), batch["target"], strict=True):
            masks[sample] = target.ne(task.dictionary.pad()).nonzero().flatten().tolist()
    return masks


@pytest.mark.integration  # starts data workers
def test_masks_change_every_epoch_alike_with_any_number_of_workers(task_for):
    by_workers = {}
    for workers in (0, 2):
        task = task_for()
        by_workers[workers] = [masks_by_sample(task, epoch, workers) for epoch in (1, 2, 3)]
    first, second, third = by_workers[0]
    changed = [first[sample] != second[sample] and second[sample] != third[sample] for sample in first]
    assert np.mean(changed) > 0.9
    assert by_workers[2] == by_workers[0]
    assert masks_by_sample(task_for(), epoch=3, workers=1) == third  # a run that starts there


def early_masks_by_sample(task, epoch, workers, batch_size=8):
    masks = {}
    for batch in batches(task, epoch=epoch, workers=workers, batch_size=batch_size):
        early = batch["net_input"]["early_masks"]
        assert not early[batch["net_input"]["src_tokens"].ne(task.mask_idx)].any()
        for sample, row in zip(batch["id"].tolist(), early, strict=True):
            masks[sample] = row.nonzero().flatten().tolist()
    return masks


@pytest.mark.integration  # starts data workers
def test_early_masks_change_every_epoch_and_depend_on_the_sample_alone(task_for):
    options = ("--mask-in-encoder 0.5 --mask-prob 0.5",)
    wanted = [early_masks_by_sample(task_for(*options), epoch, workers=0) for epoch in (1, 2)]
    changed = [wanted[0][sample] != wanted[1][sample] for sample in wanted[0]]
    assert np.mean(changed) > 0.9
    task = task_for(*options)
    for epoch in (1, 2):
        assert early_masks_by_sample(task, epoch, workers=2) == wanted[epoch - 1]
        assert early_masks_by_sample(task_for(*options), epoch, workers=0, batch_size=5) == wanted[epoch - 1]
    assert early_masks_by_sample(task_for(*options, "--seed 2"), 1, workers=0) != wanted[0]  # the masks also differ


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_the_fraction_of_masks_in_the_encoder(task_for, fraction):
    task = task_for("--mask-in-encoder", fraction, "--mask-prob 0.5")
    without = batches(task_for("--mask-prob 0.5"))
    masks = early = 0
    for batch, plain in zip(batches(task), without, strict=True):
        tokens, layout = batch["net_input"]["src_tokens"], batch["layout"]
        assert torch.equal(tokens, plain["net_input"]["src_tokens"])
        assert torch.equal(batch["target"], plain["target"])
        seen = torch.zeros_like(tokens).flatten().index_fill(0, layout.visible.index, 1).view_as(tokens).bool()
        is_mask = tokens.eq(task.mask_idx)
        assert torch.equal(seen & is_mask, batch["net_input"]["early_masks"])
        assert torch.equal(seen & ~is_mask, ~is_mask & tokens.ne(task.dictionary.pad()))
        masks, early = masks + int(is_mask.sum()), early + int((seen & is_mask).sum())
    # The number of early masks per sequence (of about 15 masks) is randomly rounded to an integer.
    assert early / masks == pytest.approx(fraction, abs=0.02)


def test_mask_in_encoder_0_changes_nothing(task_for):
    """The layout is the one without the option."""
    task = task_for("--mask-in-encoder 0")
    for batch in batches(task):
        assert "early_masks" not in batch["net_input"]
        tokens = batch["net_input"]["src_tokens"].flatten()
        expected = (tokens.ne(task.mask_idx) & tokens.ne(task.dictionary.pad())).nonzero().flatten()
        assert torch.equal(batch["layout"].visible.index, expected)
        assert batch["layout"].early_in_visible.numel() == 0


@pytest.mark.integration  # starts data workers
def test_data_workers_end_with_their_epoch(task_for, monkeypatch):
    """If left to the garbage collector, they would end only after torch's check interval, five seconds by default."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 200.0)
    batches(task_for(), workers=2)
    wait_for(lambda: not multiprocessing.active_children(), seconds=100)


def test_truncated_lines_leave_no_remainders(task_for):
    task = task_for("--shorten-method truncate --tokens-per-sample 8 --sample-break-mode eos")
    assert len(task.dataset("train")) == len(data_utils.load_indexed_dataset(str(task.cfg.data) + "/train"))


def test_validation_masks_are_constant(task_for):
    task = task_for(splits=("train", "valid"))
    iterators = [
        task.get_batch_iterator(task.dataset("valid"), max_sentences=8, epoch=epoch, num_workers=1) for epoch in (1, 2)
    ]
    targets = [
        [batch["target"] for batch in iterator.next_epoch_itr(shuffle=False, set_dataset_epoch=False)]
        for iterator in iterators
    ]
    assert all(torch.equal(a, b) for a, b in zip(*targets, strict=True))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--mask-prob", (0.15, 0.5)),
        ("--mask-prob", (0.5, 0.8)),
        ("--leave-unmasked-prob", (0.0, 0.5)),
        ("--random-token-prob", (0.0, 0.5)),
        ("--tokens-per-sample", (32, 16)),
        ("--sample-break-mode", ("complete_doc", "none")),
        ("--shorten-method", ("none", "truncate")),
    ],
)
def test_options_change_the_batches(task_for, option, values):
    more = ["--tokens-per-sample 16"] if option == "--shorten-method" else []
    first, second = (batches(task_for(*more, option, value, splits=["valid"]), "valid") for value in values)
    assert len(first) != len(second) or any(
        not torch.equal(a["net_input"]["src_tokens"], b["net_input"]["src_tokens"])
        for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("times", [2, 3])
def test_repeated_tokens(task_for, times):
    """Equal to a loop over the tokens of shorter sequences; copies are masked independently."""
    length = 1 + 31 // times  # tokens of a sequence of 32 before they are repeated
    task, short = (
        task_for(*options, "--mask-prob 0.5", splits=["valid"])
        for options in (["--repeat-tokens", times], ["--tokens-per-sample", length])
    )
    blocks, pad = load_sequences(short.cfg, short.dictionary, "valid", 1, combine=False), task.dictionary.pad()
    repeated = batches(task, "valid")
    complete = copied = 0
    for batch in repeated:
        for row, index in enumerate(batch["id"].tolist()):
            inputs, targets = batch["net_input"]["src_tokens"][row].tolist(), batch["target"][row].tolist()
            position = 0
            for token in blocks[index].tolist():
                copies = 1 if token in (task.dictionary.bos(), task.dictionary.eos()) else times
                masks = 0
                for place in range(position, position + copies):
                    assert (inputs[place], targets[place]) in ((token, pad), (task.mask_idx, token))
                    masks += inputs[place] == task.mask_idx
                position += copies
                if copies > 1:
                    complete, copied = complete + (masks == copies), copied + 1
            assert position == batch["net_input"]["src_lengths"][row] <= 32
            assert all(value == pad for value in inputs[position:] + targets[position:])
    assert sum(len(batch["id"]) for batch in repeated) == len(blocks)
    # Five standard deviations; that a fixed number of positions is masked lowers the fraction by less.
    assert complete / copied == pytest.approx(0.5**times, abs=5 * (0.5**times / copied) ** 0.5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--repeat-tokens 0"], "--repeat-tokens 0 .* 10$"),
        (["--repeat-tokens 11"], "--repeat-tokens 11 .* 10$"),
        (["--repeat-tokens 2 --mask-whole-words"], "--mask-whole-words"),
        (["--repeat-tokens 2 --mask-multiple-length 2"], "--mask-multiple-length"),
        (["--repeat-tokens 2 --mask-stdev 1"], "--mask-stdev"),
        (["--mask-in-encoder", -0.5], "--mask-in-encoder"),
        (["--reset-mask-states"], "--reset-mask-states .* --mask-in-encoder 0"),
        *(
            (["--mask-states 2", name, 0.1], "--leave-unmasked-prob .* --random-token-prob .*--mask-states 2")
            for name in ("--leave-unmasked-prob", "--random-token-prob")
        ),
        (
            ["--mask-in-encoder 0.5 --arch mae_lm_roberta_tiny"],
            "--mask-in-encoder 0.5 .* --mask-join embeddings",
        ),
        (["--freq-weighted-replacement"], "--freq-weighted-replacement"),
        *((["--tokens-per-sample", length], f"^--tokens-per-sample {length} ") for length in (3, 0, -5)),
        (["--tokens-per-sample 65 --max-positions 64"], "--tokens-per-sample 65"),
    ],
)
def test_contradictory_options_are_named(data_bin, arguments, named):
    with refused(named):
        set_up(data_bin, *arguments)


def test_a_sample_may_be_as_long_as_the_position_table(data_bin):
    _, task, model, criterion = set_up(data_bin, "--tokens-per-sample 64 --max-positions 64 --sample-break-mode none")
    batch = batches(task)[0]
    assert batch["net_input"]["src_tokens"].shape[1] == 64
    assert torch.isfinite(criterion(model, batch)[0])


@pytest.mark.parametrize(
    ("arch", "needs"),
    [
        ("mae_lm_roberta_tiny", frozenset()),
        ("mae_lm_tiny", {"visible"}),
        ("mae_lm_3ml_cross_tiny", {"visible", "masked", "decoded"}),
        ("mae_lm_exlm_tiny", {"masked", "decoded"}),
    ],
)
def test_batches_have_the_layouts_that_the_model_needs(data_bin, arch, needs):
    task = set_up(data_bin, "--arch", arch).task
    layout = batches(task)[0]["layout"]
    assert {name for name in NEEDED_BY_SOME if getattr(layout, name) is not None} == needs


@pytest.fixture
def copied(data_bin, tmp_path):
    return shutil.copytree(data_bin, tmp_path / "data-bin")


@pytest.mark.parametrize("shards", ["{}:", ":{}", "{0}::{0}"])
def test_empty_names_of_shards_are_refused(task_for, data_bin, shards):
    with refused(re.escape(shards.format(data_bin))):
        task_for(data=shards.format(data_bin))


def test_further_parts_of_a_split_are_checked_and_used(task_for, copied):
    for suffix in ("bin", "idx"):
        shutil.copy(copied / f"train.{suffix}", copied / f"train1.{suffix}")
    task = task_for(data=copied)
    once = len(task.dataset("train"))
    task.load_dataset("train", combine=True)
    assert len(task.dataset("train")) == pytest.approx(2 * once, abs=1)
    (copied / "train1.bin").write_bytes(b"")
    with refused(r"train1\.bin"):
        task.load_dataset("train", combine=True)


def without_data(directory):
    (directory / "train.bin").unlink()


def without_dictionary(directory):
    (directory / "dict.txt").unlink()


def with_a_short_dictionary(directory):
    """fairseq-preprocess pads the dictionary to a multiple of 8 with words that occur in no text."""
    lines = (directory / "dict.txt").read_text().splitlines()
    (directory / "dict.txt").write_text("\n".join(lines[:-8]) + "\n")


def with_another_dictionary(directory):
    first, second, *others = (directory / "dict.txt").read_text().splitlines()
    (directory / "dict.txt").write_text("\n".join([second, first, *others]) + "\n")


def with_a_manifest_of_another_dictionary(directory):
    manifest = {"versions": {}, "options": {}, "tokenizer_sha256": "", "dictionary_sha256": "another", "splits": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (without_data, r"train\.bin"),
        (without_dictionary, r"dict\.txt"),
        (with_a_short_dictionary, r"train\.bin"),
        (with_a_manifest_of_another_dictionary, "dict"),
    ],
)
def test_data_that_do_not_belong_together_are_refused(task_for, copied, damage, named):
    damage(copied)
    with refused(named):
        task_for(data=copied)


def test_a_model_of_another_dictionary_is_refused(task_for, copied):
    state = task_for().state_dict()
    task_for().load_state_dict(state)
    with_another_dictionary(copied)
    with refused(r"dict\.txt"):
        task_for(data=copied).load_state_dict(state)


def test_shards_are_taken_in_turn(task_for, data_bin, copied):
    task = task_for(data=f"{data_bin}:{copied}")
    task.load_dataset("train", epoch=2)
    (copied / "train.idx").unlink()
    task.load_dataset("train", epoch=3)
    with refused(str(copied)):
        task.load_dataset("train", epoch=4)
    with refused(str(copied)):
        task.load_dataset("train", epoch=1, combine=True)  # as training does, to find it before epoch 2


@pytest.mark.parametrize("change", [with_another_dictionary, with_a_manifest_of_another_dictionary])
def test_a_shard_of_another_dictionary_is_refused(task_for, data_bin, copied, change):
    """Also if all of its ids are in the dictionary of the first shard."""
    task = task_for(data=f"{data_bin}:{copied}")
    change(copied)
    with refused(f"{copied} .* {data_bin}"):
        task.load_dataset("train", epoch=2)

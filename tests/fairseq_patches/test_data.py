"""The batches of an update, and what is loaded before a training starts."""

from types import SimpleNamespace

import pytest
from fairseq.data import encoders
from omegaconf import OmegaConf

import mae_lm_fairseq
from mae_lm_fairseq.fairseq_patches.data import accumulate_batches_that_have_sequences, check_splits
from tests.support.refusals import refused
from tests.support.tokenizers import fairseq_files, paragraphs

mae_lm_fairseq.register()


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


@pytest.mark.parametrize("content", [None, b"<html>not found</html>", b"\xff"])
def test_files_of_gpt2_that_cannot_be_read_are_named(tmp_path, content):
    """fairseq's server answers with a page in HTML for a file that it does not have, and fairseq keeps that."""
    names = {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
    paths = {option: tmp_path / name for option, name in names.items()}
    files = fairseq_files(paragraphs(50), 280)
    for path, file in zip(paths.values(), files, strict=False):
        path.write_bytes(file)
    cfg = OmegaConf.create({"_name": "gpt2", **{option: str(path) for option, path in paths.items()}})
    bpe = encoders.build_bpe(cfg)
    assert bpe.decode(bpe.encode("the of")) == "the of"
    if content is None:
        paths["gpt2_encoder_json"].unlink()
    else:
        paths["gpt2_encoder_json"].write_bytes(content)
    with refused(r"encoder\.json and .*vocab\.bpe: .*gpt2_encoder_json.*bpe=None"):
        encoders.build_bpe(cfg)

"""Task and criterion of token classification: weights, labels, loss and options."""

import math

import pytest
import torch
import torch.nn.functional as F
from fairseq.logging import metrics

from mae_lm_fairseq.core.heads import TokenClassificationHead
from mae_lm_fairseq.text.word_files import read_words
from mae_lm_fairseq.text.word_windows import IGNORED
from mae_lm_fairseq.trained.validation import WORD_HEAD
from tests.support.tagging import sentences, set_up_tagging, write_columns, write_conllu, write_tokenizer
from tests.support.training import batches


@pytest.fixture(scope="module")
def data_bin(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tagging") / "data-bin")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    return write_columns(tmp_path_factory.mktemp("tagging") / "train.conll", sentences(20))


def test_an_epoch_has_every_label_once(data_bin, train):
    task = set_up_tagging(data_bin, train, "2", "--tokens-per-sample", 12).task
    numbers = {name: number for number, name in enumerate(task.labels.names)}
    expected = [numbers[label] for sentence in read_words(train, "2").sentences for label in sentence.labels]
    targets = torch.cat([batch["target"][batch["target"] != IGNORED] for batch in batches(task)])
    assert sorted(targets.tolist()) == sorted(expected)


def test_labels_are_in_the_checkpoint(data_bin, train, tmp_path):
    task = set_up_tagging(data_bin, train, "2").task
    assert task.labels.names == ("B-person", "B-place", "I-person", "I-place", "O")
    saved = task.state_dict()
    other = set_up_tagging(data_bin, write_conllu(tmp_path / "a.conllu", sentences(20)), "UPOS").task
    assert other.labels.names == ("NOUN", "PROPN", "VERB", "X")
    other.load_state_dict(saved)
    assert other.labels == task.labels


def test_loss_accuracy_and_padding(data_bin, train):
    _, task, model, criterion = set_up_tagging(data_bin, train, "2")
    task.load_dataset("train")
    dataset, model = task.dataset("train"), model.eval()
    samples = [dataset[index] for index in range(4)]
    batch = dataset.collater(samples)
    loss, words, logged = criterion(model, batch)
    alone = [criterion(model, dataset.collater([sample])) for sample in samples]
    assert words == sum(count for _, count, _ in alone) == int(batch["target"].ne(IGNORED).sum())
    # Matrix products of other shapes, in float32.
    torch.testing.assert_close(loss, sum(sample_loss for sample_loss, _, _ in alone), rtol=1e-5, atol=0)
    logits, _ = model(**batch["net_input"], features_only=True, classification_head_name=WORD_HEAD)
    expected = F.cross_entropy(logits.transpose(1, 2), batch["target"], reduction="sum", ignore_index=IGNORED)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    right = int((logits.argmax(-1) == batch["target"]).sum())
    with metrics.aggregate(new_root=True) as meters:
        criterion.reduce_metrics([logged, logged])
    assert meters["accuracy"].avg == pytest.approx(100 * right / words)
    assert meters["loss"].avg == pytest.approx(loss.item() / words / math.log(2))


def test_initial_weights_and_dropout_of_the_head():
    torch.manual_seed(1)
    head = TokenClassificationHead(4096, 3, dropout=0.5, init_std=0.05)
    states = torch.ones(2, 3, 4096)
    assert head(states).shape == (2, 3, 3)
    # The standard deviation of 12288 drawn values is within 5 % of the true one.
    assert head.classifier.weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert not head.classifier.bias.any()
    assert not torch.equal(head(states), head(states))
    assert torch.equal(head.eval()(states), head(states))

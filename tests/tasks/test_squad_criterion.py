import math

import pytest
import torch
from fairseq.logging import metrics

from mae_lm_fairseq.core.heads import SpanHead
from mae_lm_fairseq.trained.validation import ANSWER_HEAD
from tests.support.answering import set_up_answering, write_squad, write_tokenizer
from tests.support.comparisons import assert_equal


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """Return data set, model in evaluation mode, and criterion; the inputs differ in length."""
    directory = tmp_path_factory.mktemp("criterion")
    squad = write_squad(directory / "squad.json", version_2=True)
    data_bin = write_tokenizer(directory / "data-bin")
    _, task, model, criterion = set_up_answering(data_bin, squad, "--version-2", "--tokens-per-sample", 40)
    task.load_dataset("train")
    return task.dataset("train"), model.eval(), criterion


def test_loss_equals_hugging_face(setting):
    transformers = pytest.importorskip("transformers")
    dataset, model, criterion = setting
    batch = dataset.collater([dataset[0]])
    config = transformers.RobertaConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=10)
    theirs = transformers.RobertaForQuestionAnswering(config).eval()
    theirs.qa_outputs.load_state_dict(model.classification_heads[ANSWER_HEAD].qa_outputs.state_dict())
    features, _ = model(**batch["net_input"], features_only=True)
    states = transformers.modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=features)
    theirs.roberta.forward = lambda *arguments, **options: states
    start, end = batch["target"].unbind(1)
    expected = theirs(batch["net_input"]["src_tokens"], start_positions=start, end_positions=end)
    loss, samples, _ = criterion(model, batch)
    logits, _ = model(**batch["net_input"], features_only=True, classification_head_name=ANSWER_HEAD)
    assert_equal(logits, torch.stack([expected.start_logits, expected.end_logits], -1))
    assert samples == 1
    torch.testing.assert_close(loss, expected.loss, rtol=1e-6, atol=0)  # another order of summation


def test_padding_does_not_change_the_loss(setting):
    dataset, model, criterion = setting
    chosen = [dataset[index] for index in dataset.sizes.argsort()[[0, -1]]]
    assert len(chosen[0]["tokens"]) < len(chosen[1]["tokens"])
    together, samples, _ = criterion(model, dataset.collater(chosen))
    apart = sum(criterion(model, dataset.collater([sample]))[0] for sample in chosen)
    assert samples == 2
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=0)  # matrix products of other shapes, in float32


def test_logged_values(setting):
    dataset, model, criterion = setting
    batch = dataset.collater([dataset[index] for index in range(4)])
    loss, samples, logged = criterion(model, batch)
    logits, _ = model(**batch["net_input"], features_only=True, classification_head_name=ANSWER_HEAD)
    is_padding = batch["net_input"]["src_tokens"].eq(1)
    best = logits.masked_fill(is_padding[..., None], -torch.inf).argmax(1)
    right = [bool(torch.equal(*pair)) for pair in zip(best, batch["target"], strict=True)]
    with metrics.aggregate(new_root=True) as meters:
        criterion.reduce_metrics([logged, logged])
    assert meters["accuracy"].avg == pytest.approx(100 * sum(right) / samples)
    assert meters["loss"].avg == pytest.approx(loss.item() / samples / math.log(2))


def test_initial_weights_of_the_head():
    torch.manual_seed(1)
    head = SpanHead(4096, init_std=0.05)
    assert head(torch.randn(2, 3, 4096)).shape == (2, 3, 2)
    # The standard deviation of 8192 drawn values is within 5 % of the true one.
    assert head.qa_outputs.weight.std().item() == pytest.approx(0.05, rel=0.05)
    assert not head.qa_outputs.bias.any()

"""The loss, against fairseq's ``masked_lm``, and the values logged beside it."""

import contextlib
import math
from unittest.mock import Mock

import pytest
import torch
from fairseq import criterions, utils
from fairseq.logging import metrics

from mae_lm_fairseq.core import alignment
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.criterions.masked_autoencoder_lm import MaskedAutoencoderLMCriterion
from tests.support.training import batches, parse, set_up

SETTINGS = [
    "mae_lm_tiny",
    "mae_lm_roberta_tiny",
    "mae_lm_3ml_cross_tiny",
    "mae_lm_mask_later_tiny",
    "mae_lm_tiny --mask-in-encoder 0.5",
    "mae_lm_3ml_cross_tiny --leave-unmasked-prob 0.1 --random-token-prob 0.1",
]


@pytest.fixture(params=SETTINGS)
def setting(request, data_bin):
    arch, *options = request.param.split()
    _, task, model, criterion = set_up(data_bin, *options, arch=arch)
    return task, model.eval(), criterion, batches(task)


def fairseqs_criterion(task, data):
    cfg = parse(data, "--task masked_autoencoder_lm --arch mae_lm_tiny --criterion masked_lm")
    return criterions.build_criterion(cfg.criterion, task)


def test_same_loss_and_gradients_as_fairseqs_masked_lm(setting, data_bin):
    task, model, ours, all_batches = setting
    theirs = fairseqs_criterion(task, data_bin)
    for batch in all_batches[:5]:
        gradients = []
        for criterion in (ours, theirs):
            model.zero_grad()
            loss, sample_size, _ = criterion(model, batch)
            loss.backward()
            gradients.append((loss.detach(), int(sample_size), [p.grad.clone() for p in model.parameters()]))
        assert gradients[0][1] == gradients[1][1] > 0
        torch.testing.assert_close(gradients[0][0], gradients[1][0], rtol=1e-6, atol=0)
        torch.testing.assert_close(gradients[0][2], gradients[1][2], rtol=1e-4, atol=1e-6)


def test_a_batch_with_and_without_its_layout(setting):
    _, model, criterion, all_batches = setting
    batch = all_batches[0]
    without = {key: value for key, value in batch.items() if key != "layout"}
    assert len(without) == len(batch) - 1
    assert torch.equal(criterion(model, batch)[0], criterion(model, without)[0])


def test_a_batch_without_masked_tokens_has_zero_loss_and_gradients(setting, data_bin):
    task, model, ours, all_batches = setting
    pad = task.dictionary.pad()
    batch = all_batches[0]
    tokens = torch.where(batch["target"].ne(pad), batch["target"], batch["net_input"]["src_tokens"])
    target = torch.full_like(tokens, pad)
    layout = batch_layout(tokens, target.ne(pad), pad, task.mask_idx)
    unmasked = {**batch, "target": target, "net_input": {"src_tokens": tokens}, "layout": layout}
    for criterion in (ours, fairseqs_criterion(task, data_bin)):
        model.zero_grad()
        loss, sample_size, _ = criterion(model, unmasked)
        loss.backward()
        assert loss.item() == 0
        assert int(sample_size) == 0
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_logged_values(setting):
    task, model, criterion, all_batches = setting
    batch = all_batches[0]
    loss, _, log = criterion(model, batch)
    target = batch["target"]
    predicted = target.ne(task.dictionary.pad())
    logits = model(**batch["net_input"], masked_tokens=predicted)[0]
    with metrics.aggregate() as aggregate:
        MaskedAutoencoderLMCriterion.reduce_metrics([log])
    values = aggregate.get_smoothed_values()
    n = int(predicted.sum())
    assert values["loss"] == pytest.approx(loss.item() / n / math.log(2), abs=5e-4)
    assert values["ppl"] == pytest.approx(math.exp(loss.item() / n), rel=1e-3)
    right = (logits.argmax(-1) == target[predicted]).sum().item()
    assert values["accuracy"] == pytest.approx(100 * right / n, abs=5e-3)
    late = batch["net_input"]["src_tokens"].eq(task.mask_idx)
    late &= ~batch["net_input"].get("early_masks", torch.zeros_like(late))
    config = model.autoencoder.config
    unseen = late.sum().item() * config.layers_before_masks / config.encoder_layers
    assert values["encoder_share"] == pytest.approx(100 * (1 - unseen / batch["ntokens"]), abs=0.05)


@pytest.mark.parametrize("arch", ["mae_lm_tiny", "mae_lm_exlm_tiny", "mae_lm_exlm_decoder_tiny"])
def test_training_does_not_wait_for_an_accuracy_that_costs_as_much_as_the_loss(data_bin, arch, monkeypatch):
    _, task, model, criterion = set_up(data_bin, arch=arch)
    batch, logged = batches(task)[0], {}
    monkeypatch.setattr(alignment, "target_states", counted := Mock(side_effect=alignment.target_states))
    for is_training in (True, False):
        with metrics.aggregate() as aggregate:
            criterion.reduce_metrics([criterion(model.train(is_training), batch)[2]])
        logged[is_training] = aggregate.get_smoothed_values()
    is_expanded = "exlm" in arch
    assert counted.call_count == is_expanded
    assert logged[False].keys() - logged[True].keys() == ({"accuracy"} if is_expanded else set())


def test_updates_without_masked_tokens_do_not_change_the_average_loss():
    log = {"loss": 0.0, "correct": 0, "encoder_tokens": 5, "ntokens": 5, "nsentences": 1}
    log |= {"sample_size": 0, "predicted": 0}
    usual = log | {"loss": 3 * math.log(2), "correct": 1, "encoder_tokens": 3, "sample_size": 2, "predicted": 2}
    with metrics.aggregate() as aggregate:
        for logs in ([log, log], [usual, log], [log]):
            MaskedAutoencoderLMCriterion.reduce_metrics(logs)
    averages = aggregate.get_smoothed_values()
    assert (averages["loss"], averages["accuracy"]) == (1.5, 50)
    with metrics.aggregate() as aggregate:
        MaskedAutoencoderLMCriterion.reduce_metrics([log])
    assert math.isnan(aggregate.get_smoothed_values()["loss"])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "arch",
    [
        *("mae_lm_tiny", "mae_lm_roberta_tiny", "mae_lm_3ml_cross_tiny", "mae_lm_mask_later_tiny"),
        *("mae_lm_exlm_tiny", "mae_lm_exlm_decoder_tiny"),
    ],
)
@pytest.mark.parametrize("backend", ["sdpa", "fused"])
def test_a_step_never_waits_for_the_gpu(data_bin, arch, backend, gpu):
    if (gpu, backend) == ("cpu", "fused"):
        pytest.skip("the fused kernel does not train on a CPU")
    _, task, model, criterion = set_up(data_bin, "--attention-backend", backend, arch=arch)
    model.to(gpu).train()
    for batch in batches(task)[:3]:
        sample = utils.move_to_cuda(batch) if gpu == "cuda" else batch
        with waiting_is_an_error() if gpu == "cuda" else contextlib.nullcontext():
            criterion(model, sample)[0].backward()


@contextlib.contextmanager
def waiting_is_an_error():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

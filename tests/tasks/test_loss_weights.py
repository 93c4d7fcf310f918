"""Losses divided by the masking rate of their sequence, as in masked diffusion, against a loop over its tokens."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.measures.evaluation import Loss
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from tests.support.comparisons import assert_close
from tests.support.finetuning import save_pretrained
from tests.support.refusals import refused
from tests.support.training import RECIPE, batches, set_up
from tests.tasks.test_masking_rates import training_iterator

RANGES = {"all": "0.001,0.999", "low": "0.001,0.05", "high": "0.98,0.999"}
DIFFUSION = ["--mask-prob-range", RANGES["all"], "--loss-weight inverse-rate"]
SPLIT = "valid"  # which is small
SETTINGS = [
    "mae_lm_tiny",
    "mae_lm_roberta_tiny",
    "mae_lm_3ml_self_tiny",
    "mae_lm_3ml_cross_tiny",
    "mae_lm_mask_later_tiny",
    "mae_lm_tiny --mask-in-encoder 0.5",
    "mae_lm_tiny --sample-break-mode complete --mask-whole-words",
]


def prepared(data, rates="all", setting="mae_lm_tiny"):
    arch, *options = setting.split()
    rates = ["--mask-prob-range", RANGES[rates], "--loss-weight inverse-rate"]
    _, task, model, criterion = set_up(data, *rates, *options, arch=arch)
    return task, model.double().eval(), criterion


def rate(sequence, task, epoch=1):
    low, high = map(float, task.cfg.mask_prob_range.split(","))
    return np.random.default_rng((2, task.cfg.seed, epoch, sequence)).uniform(low, high)


def loop(model, task, all_batches):
    """Return the loss per token of some batches in nats: sequence by sequence, token by token."""
    pad, mask = task.dictionary.pad(), task.mask_idx
    loss, tokens = 0.0, 0
    for batch in all_batches:
        for row, sequence in enumerate(batch["id"].tolist()):
            length = int(batch["net_input"]["src_lengths"][row])
            inputs = batch["net_input"]["src_tokens"][row : row + 1, :length]
            targets = batch["target"][row, :length]
            early = batch["net_input"].get("early_masks")
            if early is not None:
                early = early[row : row + 1, :length]
            layout = batch_layout(inputs, targets.ne(pad)[None], pad, mask, early)
            logits, _ = model.predicted_logits(inputs, layout)
            predicted = targets[targets.ne(pad)]
            for scores, target in zip(logits, predicted, strict=True):
                loss = loss - scores.log_softmax(-1)[target] / rate(sequence, task)
            tokens += length
    return loss / tokens


def gradients_of(loss, model):
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("rates", RANGES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_loss_and_gradients_of_an_update_equal_those_of_a_loop(data_bin, setting, rates):
    """An update of two batches, as of two processes or of --update-freq 2: sums are divided by all of its tokens.

    The weights are float64, and the loss is computed in float32 (core/cross_entropy.py).
    """
    task, model, criterion = prepared(data_bin, rates, setting)
    update = batches(task, SPLIT)[:2]
    masked = torch.cat([batch["target"].ne(task.dictionary.pad()).sum(1) for batch in update])
    lengths = torch.cat([batch["net_input"]["src_lengths"] for batch in update])
    if rates == "low":
        assert not masked.all()
    if rates == "high":
        assert masked.eq(lengths).any()  # the encoder of MAE-LM sees nothing of a sequence
    sums = [criterion(model, batch)[:2] for batch in update]
    loss = sum(loss for loss, _ in sums) / sum(size for _, size in sums)
    expected = loop(model, task, update)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    ours, theirs = gradients_of(loss, model), gradients_of(expected, model)
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    assert_close(ours, theirs, 1e-6 * largest)


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc"])
def test_weights_belong_to_the_rows_of_the_data(data_bin, mode):
    """A row has one rate, also if it contains several documents or a part of one; epochs draw anew."""
    _, task, *_ = set_up(data_bin, *DIFFUSION, "--sample-break-mode", mode)
    task.load_dataset(SPLIT)
    pad = task.dictionary.pad()
    for epoch in (1, 2):
        for batch in training_iterator(task, epoch=epoch).next_epoch_itr():
            rates = np.array([rate(sequence, task, epoch) for sequence in batch["id"].tolist()])
            np.testing.assert_array_equal(batch["loss_weights"].numpy(), 1 / rates)
            masked = batch["target"].ne(pad).sum(1).numpy()
            expected = rates * batch["net_input"]["src_lengths"].numpy()
            assert (np.abs(masked - expected) < 1).all()  # as many as the rate says, rounded at random


def test_validation_has_rates_that_never_change(data_bin):
    _, task, *_ = set_up(data_bin, *DIFFUSION)
    task.load_dataset(SPLIT)
    iterator = task.get_batch_iterator(task.dataset(SPLIT), max_sentences=8)
    for _ in range(2):
        for batch in iterator.next_epoch_itr(shuffle=False, set_dataset_epoch=False):  # as fairseq validates
            rates = np.array([rate(sequence, task) for sequence in batch["id"].tolist()])
            np.testing.assert_array_equal(batch["loss_weights"].numpy(), 1 / rates)


def test_a_model_that_knows_nothing_has_the_perplexity_of_the_vocabulary(data_bin):
    """The expected weights of a sequence add up to its tokens, so that the loss is one per token of the text.

    The standard deviation of the mean is 0.01: (log(1 / (32 * 0.001)) / 32 tokens) ** 0.5 / 1,000 sequences ** 0.5.
    """
    _, task, model, criterion = set_up(data_bin, *DIFFUSION)
    torch.nn.init.zeros_(model.autoencoder.lm_head.weight)
    logs = [criterion(model.eval(), batch)[2] for batch in batches(task, batch_size=64)]
    with metrics.aggregate() as aggregate:
        task.reduce_metrics(logs, criterion)
    logged = aggregate.get_smoothed_values()
    assert logged["loss"] == pytest.approx(math.log2(len(task.dictionary)), rel=0.03)
    assert logged["ppl"] == pytest.approx(2 ** logged["loss"], rel=1e-3)
    predicted, tokens = (sum(log[key] for log in logs) for key in ("predicted", "ntokens"))
    assert 0.45 < predicted / tokens < 0.55
    assert logged["mask_prob"] == pytest.approx(predicted / tokens, abs=5e-5)
    assert logged["accuracy"] == pytest.approx(100 * sum(log["correct"].item() for log in logs) / predicted, abs=5e-3)


def test_half_precision_does_not_round_the_weights(data_bin):
    _, task, *_ = set_up(data_bin, *DIFFUSION)
    [batch, *_] = batches(task, SPLIT)
    common = SimpleNamespace(fp16=False, bf16=True)
    converted = Trainer._fp_convert_sample(SimpleNamespace(cfg=SimpleNamespace(common=common)), batch)
    assert torch.equal(converted["loss_weights"], batch["loss_weights"])


def test_studies_measure_at_one_rate_without_weights(data_bin, tmp_path):
    """Two models with the same random weights, of a usual training and of diffusion."""
    losses = []
    for name, options in {"usual": [], "diffusion": DIFFUSION}.items():
        path = save_pretrained(tmp_path / f"{name}.pt", data_bin, "mae_lm_tiny", *options)
        losses.append(Loss(on="valid").measure(ModelToMeasure(label=name, path=path, data=Data(data_bin=data_bin))))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--loss-weight inverse-rate"], "--loss-weight inverse-rate .*--mask-prob-range"),
        (
            ["--loss-weight inverse-rate --mask-prob-end 0.1 --mask-prob-updates 9"],
            "--loss-weight inverse-rate .*--mask-prob-range",
        ),
        *(
            ([*DIFFUSION, "--arch", f"mae_lm_{arch}_tiny"], r"the loss of ExLM \(--mask-states 4\) is")
            for arch in ("exlm", "exlm_decoder")
        ),
    ],
)
def test_what_has_no_weights_is_refused(data_bin, arguments, named):
    with refused(named):
        set_up(data_bin, *arguments)


@pytest.mark.slow  # three trainings
def test_two_processes_train_as_one_that_accumulates(data_bin, tmp_path, fairseq_train, train_together):
    """Sums of gradients are float32, in another order; Adam divides them by their own size."""
    options = [*RECIPE, *DIFFUSION, "--arch mae_lm_tiny --max-update 4"]
    options += ["--dropout 0 --attention-dropout 0"]
    alone = fairseq_train(data_bin, *options, "--update-freq 2 --save-dir", tmp_path / "alone")
    together = train_together(2, data_bin, *options, "--save-dir", tmp_path / "together")
    assert alone.returncode == together.returncode == 0, alone.stderr + together.stderr
    weights = [torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("alone", "together")]
    torch.testing.assert_close(*weights, rtol=0, atol=2e-5)

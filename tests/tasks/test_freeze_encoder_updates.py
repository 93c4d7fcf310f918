"""``--freeze-encoder-updates`` and ``--layer-lr-decay`` in pretraining."""

import pytest
import torch

from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.support.finetuning import WITHOUT_EPOCHS, train_here
from tests.support.training import RECIPE, set_up
from tests.support.weights import encoder_of

pytestmark = pytest.mark.integration  # trains

FROZEN = 4


@pytest.fixture
def pretrain(data_bin):
    """Return ``pretrain(save_dir, *options)``: train in this process and return the last checkpoint."""

    def run(save_dir, *options, arch="mae_lm_tiny"):
        saving = [*WITHOUT_EPOCHS, "--disable-validation", "--save-dir", save_dir]
        train_here(data_bin, *RECIPE, "--arch", arch, *saving, *options)
        return checkpoint(save_dir)

    return run


def changed(data_bin, weights, arch="mae_lm_tiny"):
    """Return the names of the parameters that differ from the initial ones."""
    model = set_up(data_bin, arch=arch).model
    return {name for name, weight in model.named_parameters() if not torch.equal(weight, weights[name])}


@pytest.mark.parametrize(("arch", "optimizer"), [("mae_lm_tiny", "fused_adamw"), ("mae_lm_roberta_tiny", "adam")])
def test_the_encoder_keeps_its_weights_until_it_thaws(pretrain, data_bin, tmp_path, arch, optimizer):
    """Weight decay would change weights whose gradient is zero; the embeddings are also the head's output weights."""
    options = ["--optimizer", optimizer, "--weight-decay 0.5 --update-freq 2 --freeze-encoder-updates", FROZEN]
    model = set_up(data_bin, arch=arch).model
    names = dict(model.named_parameters()).keys()
    rest = names - encoder_of(model.state_dict()).keys()
    frozen = pretrain(tmp_path, *options, "--max-update", FROZEN, arch=arch)
    assert changed(data_bin, frozen["model"], arch) == rest
    assert len(frozen["last_optimizer_state"]["state"]) == len(rest)
    thawed = pretrain(tmp_path, *options, "--max-update", FROZEN + 1, arch=arch)
    assert changed(data_bin, thawed["model"], arch) == names


def test_a_run_resumes_before_at_and_after_the_thaw(pretrain, tmp_path):
    options = ["--freeze-encoder-updates", FROZEN, "--weight-decay 0.1"]
    straight = pretrain(tmp_path / "straight", *options, "--max-update", FROZEN + 2)
    for stop in (FROZEN - 2, FROZEN, FROZEN + 1, FROZEN + 2):
        resumed = pretrain(tmp_path / "resumed", *options, "--max-update", stop)
    assert_same_training_state(straight, resumed)


@pytest.mark.parametrize("pre_norm", [[], ["--pre-norm"]])
def test_layer_lr_decay_shrinks_the_updates_layer_by_layer(pretrain, data_bin, tmp_path, pre_norm):
    """Adam's first update changes every element by the learning rate, unless its gradient is tiny."""
    model = set_up(data_bin, *pre_norm).model
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    options = ["--optimizer fused_adamw --layer-lr-decay 0.5 --adam-eps 1e-20 --lr 0.01"]
    after = pretrain(tmp_path, *options, *pre_norm, "--warmup-updates 0 --max-update 1")["model"]
    scales = {
        "lm_head.dense.weight": 1,
        "decoder.layers.0.fc1.weight": 1,
        "encoder.layers.1.fc1.weight": 0.5,
        "encoder.layers.0.fc1.weight": 0.25,
        "encoder.embed_layer_norm.weight": 0.125,
        "encoder.embed_tokens.weight": 0.125,
    }
    if pre_norm:
        scales |= {"encoder.output_layer_norm.weight": 0.5, "decoder.output_layer_norm.weight": 1}
    for name, scale in scales.items():
        name = f"autoencoder.{name}"
        assert (after[name] - before[name]).abs().max().item() == pytest.approx(1e-2 * scale, rel=1e-3), name

import torch

from mae_lm_fairseq.models.mae_lm import MAELMModel
from mae_lm_fairseq.tasks.validation_loss import load_with_validation_split, marginal_loss, validation_loss
from mae_lm_fairseq.trained.masked_prediction import NetworkPredictor
from tests.support import networks
from tests.support.finetuning import save_pretrained
from tests.support.networks import masked, network, text


def test_losses_are_of_the_same_masked_positions(data_bin, tmp_path):
    """Whatever was masked in training; the seeds of the trainings also differ."""
    masking = {"mask_prob": 0.15, "leave_unmasked_prob": 0.0, "random_token_prob": 0.0, "seed": 1}
    targets = []
    for name, options in {"usual": (), "more": ("--mask-prob", "0.5", "--seed", "2")}.items():
        path = save_pretrained(tmp_path / f"{name}.pt", data_bin, "mae_lm_tiny", *options)
        model, task = load_with_validation_split(path, data_bin, **masking)
        targets.append([sample["target"].tolist() for sample in map(task.dataset("valid").__getitem__, range(5))])
        # An untrained model of about 200 tokens: ln 200 = 5.3, and more where it is confidently wrong.
        assert 5 < validation_loss(model, task) < 7
    assert targets[0] == targets[1]


def test_the_loss_of_expanded_masks_is_that_of_each_target_on_its_own():
    """In a row with two targets, where it differs from that of both."""
    model = MAELMModel(network("mae_lm_exlm_decoder"), networks.PAD, networks.MASK).eval()
    tokens, targets = masked(networks.batch(text(9, 1), text(6, 2)), [(0, 4), (0, 5), (1, 2)])
    layout = networks.layout_for(tokens, targets)
    batch = {"net_input": {"src_tokens": tokens}, "target": targets, "layout": layout}
    wanted = targets[targets.ne(networks.PAD)]
    with torch.no_grad():
        loss, predicted = marginal_loss(model, batch)
        log_probs = NetworkPredictor(model.autoencoder, networks.PAD, networks.MASK)(tokens, targets.ne(networks.PAD))
        joint = model.masked_loss(tokens, layout, wanted)[0]
    assert predicted == 3
    torch.testing.assert_close(loss, -log_probs[range(3), wanted].sum())
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3))
    assert abs(joint - loss) > 0.1

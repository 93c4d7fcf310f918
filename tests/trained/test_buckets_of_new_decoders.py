"""The position bias of a new decoder, of which the encoder has another number of buckets than usual."""

import torch

from mae_lm_fairseq.trained.conversion import with_preset
from mae_lm_fairseq.trained.reading import build
from tests.support.exports import pretrained


def test_a_new_decoder_has_the_encoders_buckets():
    model = with_preset(pretrained("mae_lm_roberta", {"encoder_layers": 4, "relative_buckets": 16}), "mae_lm", seed=1)
    assert model.config.decoder_relative_buckets == 16
    network = build(model)
    assert torch.equal(network.decoder.relative_bias.weight, network.encoder.relative_bias.weight)

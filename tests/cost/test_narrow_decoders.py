"""FLOPs of a decoder of another hidden size, by hand: test_flops allows 2 %, more than its projections cost."""

from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.cost.flops import Positions, forward_flops, layer_flops


def test_visible_states_are_projected_into_the_decoder_and_predicted_ones_out_of_it():
    encoder = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 128, "encoder_attention_heads": 2}
    narrow = {"decoder_embed_dim": 8, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 2}
    config = MaskedAutoencoderConfig(decoder_layers=2, **encoder, **narrow)
    layers = layer_flops(8, 24, queries=16, keys=16) + layer_flops(8, 24, queries=3, keys=16)
    assert forward_flops(config, 100, [Positions(16, 14, 3)]).decoder == layers + 2 * 32 * 8 * (14 + 3)

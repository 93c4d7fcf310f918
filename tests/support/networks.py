"""Small networks and batches for the tests of ``core``."""

import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import PRESETS, MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout

BOS, PAD, EOS, MASK = 0, 1, 2, 29
VOCABULARY = 30
VARIANTS = {
    **{preset: {} for preset in PRESETS},
    "mae_lm_cross": {"decoder_attention": "cross"},
    "mae_lm_narrow": {"decoder_embed_dim": 8, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 2},
    "mae_lm_3ml_cross_wide": {"decoder_embed_dim": 24, "decoder_attention_heads": 3},
    "mae_lm_share_positions": {"decoder_share_positions": True},
    "mae_lm_renumber_visible": {"renumber_visible": True},
    "mae_lm_reset_mask_states": {"reset_mask_states": True},
    "mae_lm_pre_norm": {"pre_norm": True},
    "mae_lm_roberta_pre_norm": {"pre_norm": True},
    "mae_lm_3ml_cross_pre_norm": {"pre_norm": True},
    "mae_lm_mask_later_pre_norm": {"pre_norm": True},
    "mae_lm_exlm_pre_norm": {"pre_norm": True},
    "mae_lm_exlm_decoder_pre_norm": {"pre_norm": True},
    "mae_lm_3ml_cross_reset_mask_states": {"reset_mask_states": True},
}
"""The presets, and variations of them; each name begins with the preset that it changes."""


def config(variant: str = "mae_lm", **changes) -> MaskedAutoencoderConfig:
    preset = max((preset for preset in PRESETS if variant.startswith(preset)), key=len)
    values = {
        "encoder_layers": 3,
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 4,
        "max_positions": 24,
        "init_std": 0.2,
        **VARIANTS[variant],
        **changes,
    }
    return preset_config(preset, "tiny", **values)


def network(variant: str = "mae_lm", seed: int = 0, **changes) -> MaskedAutoencoder:
    torch.manual_seed(seed)
    return MaskedAutoencoder(config(variant, **changes), VOCABULARY, PAD, MASK)


def text(length: int, seed: int = 0) -> torch.Tensor:
    """Return [length] tokens: ``<s>``, then random ordinary tokens."""
    tokens = torch.randint(4, MASK, (length,), generator=torch.Generator().manual_seed(seed))
    tokens[0] = BOS
    return tokens


def batch(*rows: list[int] | torch.Tensor) -> torch.Tensor:
    """Stack rows into a batch, padded on the right."""
    rows = [torch.as_tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def masked(tokens: torch.Tensor, positions: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace the tokens at the (row, column) positions by ``<mask>``.

    Returns:
        The corrupted tokens, and the targets: the original token at those positions, ``<pad>`` elsewhere.
    """
    corrupted, targets = tokens.clone(), torch.full_like(tokens, PAD)
    for row, column in positions:
        targets[row, column] = tokens[row, column]
        corrupted[row, column] = MASK
    return corrupted, targets


def layout_for(tokens: torch.Tensor, targets: torch.Tensor, early: torch.Tensor | None = None) -> BatchLayout:
    return batch_layout(tokens, targets.ne(PAD), PAD, MASK, early)

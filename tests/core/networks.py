"""Small networks and batches for the tests of core."""

import torch

from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, preset_values
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout

BOS, PAD, EOS, MASK = 0, 1, 2, 29
VOCABULARY = 30
PRESETS = ("mae_lm", "mae_lm_roberta")


def config(preset: str = "mae_lm", **changes) -> MaskedAutoencoderConfig:
    values = {
        **preset_values(preset, "tiny"),
        "encoder_layers": 3,
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 32,
        "encoder_attention_heads": 4,
        "max_positions": 24,
        "init_std": 0.2,
        **changes,
    }
    return MaskedAutoencoderConfig(**values)


def network(preset: str = "mae_lm", seed: int = 0, **changes) -> MaskedAutoencoder:
    torch.manual_seed(seed)
    return MaskedAutoencoder(config(preset, **changes), VOCABULARY, PAD, MASK)


def text(length: int, seed: int = 0) -> torch.Tensor:
    """[length] ordinary tokens after <s>."""
    tokens = torch.randint(4, MASK, (length,), generator=torch.Generator().manual_seed(seed))
    tokens[0] = BOS
    return tokens


def batch(*rows: list[int] | torch.Tensor) -> torch.Tensor:
    """Rows padded on the right to the longest."""
    rows = [torch.as_tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def masked(tokens: torch.Tensor, places: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens with <mask> at the (row, column) places, and the targets, <pad> elsewhere."""
    corrupted, targets = tokens.clone(), torch.full_like(tokens, PAD)
    for row, column in places:
        targets[row, column] = tokens[row, column]
        corrupted[row, column] = MASK
    return corrupted, targets


def layout_for(tokens: torch.Tensor, targets: torch.Tensor) -> BatchLayout:
    return batch_layout(tokens, targets.ne(PAD), PAD, MASK)

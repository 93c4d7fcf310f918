"""Time to load a bundle, relative to the time to read its file."""

import statistics
import time

import pytest
import torch

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig
from mae_lm_fairseq.text.dictionary import read_symbols
from mae_lm_fairseq.text.tokenizer_files import find_tokenizer


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


@pytest.mark.slow
def test_loading_takes_at_most_one_and_a_half_times_reading(text_data, tmp_path):
    """MAE-LM base has 114 million parameters; all of them are accessed, so that lazy loading is measured, too."""
    config, symbols = MaskedAutoencoderConfig(), read_symbols(text_data / "dict.txt")
    network = MaskedAutoencoder(config, len(symbols), pad=1, mask=len(symbols) - 1)
    weights = {f"autoencoder.{name}": weight for name, weight in network.state_dict().items()}
    tokenizer = find_tokenizer(text_data)
    write_bundle(Pretrained(config, weights, symbols, tokenizer, {}), tmp_path / "bundle")
    assert sum(parameter.numel() for parameter in network.parameters()) > 100e6

    def load():
        model = MAELMModel.from_pretrained(tmp_path / "bundle")
        assert torch.stack([parameter.detach().flatten()[::1024].sum() for parameter in model.parameters()]).any()

    file = tmp_path / "bundle" / "model.safetensors"
    ratios = []
    for _ in range(7):
        reading = seconds(file.read_bytes)
        ratios.append(seconds(load) / reading)
    assert statistics.median(ratios) <= 1.5, ratios

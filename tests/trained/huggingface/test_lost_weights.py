"""An export that lacks a weight which has the value that transformers would give it."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from mae_lm_fairseq.trained.huggingface import exporter
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.utils.errors import UserError
from tests.support.exports import pretrained


def test_a_lost_weight_is_noticed_though_the_states_are_equal(tmp_path, monkeypatch):
    write = exporter.write_stock
    lost = "encoder.layer.1.output.dense.bias"

    def lose(original, to, directory):
        write(original, to, directory)
        weights = load_file(directory / "model.safetensors")
        assert not weights.pop(lost).any()
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    original = pretrained()
    original.weights["autoencoder.encoder.layers.1.fc2.bias"] = torch.zeros(16)
    export_stock(original, tmp_path / "right")
    monkeypatch.setattr(exporter, "write_stock", lose)
    with pytest.raises(UserError, match=lost):
        export_stock(original, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()

"""Use of an exported encoder in other packages."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mae_lm_fairseq.huggingface.exporter import export_stock
from tests.support.exports import WITH_BIAS, WITHOUT_BIAS, pretrained

BOTH_KINDS = pytest.mark.parametrize("changes", [WITH_BIAS, WITHOUT_BIAS], ids=["mpnet", "roberta"])


@pytest.fixture
def exported(changes, model, tmp_path):
    export_stock(pretrained("mae_lm", changes, model), tmp_path / "exported")
    return tmp_path / "exported"


def states(directory, lines):
    """Return the batch, the encoder's hidden states [B, T, dim], and which of them belong to tokens [B, T]."""
    batch = AutoTokenizer.from_pretrained(directory)(lines, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        output = AutoModel.from_pretrained(directory).eval()(**batch).last_hidden_state
    return batch, output.numpy(), batch["attention_mask"].bool().numpy()


@BOTH_KINDS
def test_sentence_transformers_averages_the_states(exported, lines):
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    embeddings = sentence_transformers.SentenceTransformer(str(exported), device="cpu").encode(lines[:5])
    _, output, is_token = states(exported, lines[:5])
    means = [row[present].mean(0) for row, present in zip(output, is_token, strict=True)]
    np.testing.assert_allclose(embeddings, means, rtol=0, atol=1e-5)


@pytest.mark.slow  # test_hugging_face.py does the same with an MPNet
@pytest.mark.parametrize("changes", [WITHOUT_BIAS], ids=["roberta"])
def test_onnxruntime_computes_the_same(exported, lines, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = AutoModel.from_pretrained(exported, add_pooling_layer=False).eval()
    batch, _, _ = states(exported, lines[:2])
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        model,
        tuple(batch.values()),
        tmp_path / "encoder.onnx",
        input_names=list(batch),
        output_names=["last_hidden_state"],
        dynamic_shapes=(free, free),
    )
    session = onnxruntime.InferenceSession(tmp_path / "encoder.onnx", providers=["CPUExecutionProvider"])
    for texts in (lines[:2], lines[2:7], ["a"]):  # the sizes used in the export, and others
        batch, output, is_token = states(exported, texts)
        (found,) = session.run(None, {name: values.numpy() for name, values in batch.items()})
        np.testing.assert_allclose(found[is_token], output[is_token], rtol=0, atol=1e-5)

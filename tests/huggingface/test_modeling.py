"""The whole autoencoder as a transformers model."""

from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, pipeline

from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.huggingface import exporter
from mae_lm_fairseq.huggingface.exporter import export_autoencoder
from mae_lm_fairseq.huggingface.modeling import MAELMConfig, MAELMForMaskedLM, as_transformers_model
from mae_lm_fairseq.pretrained.reading import build
from mae_lm_fairseq.utils.errors import UserError
from tests.support.exports import ALL_PRESETS, pretrained

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def masked(original):
    """Return two texts with some tokens masked."""
    mask = original.mask
    return torch.tensor([[0, 5, mask, 7, 8, mask, 2], [0, mask, 9, 2, 1, 1, 1]])


@ALL_PRESETS
@pytest.mark.parametrize("changes", [{}, {"relative_buckets": 0}], ids=["bias", "no bias"])
def test_predictions_equal_the_original(preset, changes, model, tmp_path):
    original = pretrained(preset, changes, model)
    assert export_autoencoder(original, tmp_path / "out") == "MAELMForMaskedLM"
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    assert type(loaded) is MAELMForMaskedLM
    tokens = masked(original)
    is_mask = tokens.eq(original.mask)
    ours = build(original)(tokens, batch_layout(tokens, is_mask, 1, original.mask))
    logits = loaded(tokens, attention_mask=tokens.ne(1).long()).logits
    torch.testing.assert_close(logits[is_mask], ours, **CLOSE)
    assert logits.shape == (*tokens.shape, len(original.symbols))
    assert not logits[tokens.eq(1)].any()
    torch.testing.assert_close(loaded(tokens).logits, logits, rtol=0, atol=0)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, original.weights[name]), name
    assert loaded.state_dict().keys() == original.weights.keys()


def test_shared_weights_are_saved_once_and_stay_shared(tmp_path):
    original = pretrained("mae_lm", {"decoder_share_positions": True})
    as_transformers_model(original).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors").keys()
    assert saved == original.weights.keys() - {
        "autoencoder.lm_head.weight",
        "autoencoder.decoder.embed_positions.weight",
    }
    network = AutoModelForMaskedLM.from_pretrained(tmp_path).autoencoder
    assert network.lm_head.weight is network.encoder.embed_tokens.weight
    assert network.decoder.embed_positions.weight is network.encoder.embed_positions.weight


def test_configuration_round_trip(tmp_path):
    original = pretrained("mae_lm_3ml_cross", {"decoder_embed_dim": 8, "decoder_attention_heads": 2})
    config = MAELMConfig(asdict(original.config), len(original.symbols))
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.core() == original.config
    assert (again.vocab_size, again.pad_token_id, again.mask_token_id) == (50, 1, 49)
    assert (again.hidden_size, again.num_hidden_layers, again.num_attention_heads) == (16, 2, 4)
    assert again.max_position_embeddings == 40


def test_a_configuration_that_contradicts_itself_is_refused():
    with pytest.raises(UserError, match="--encoder-embed-dim 16 is not divisible"):
        MAELMForMaskedLM(MAELMConfig({"encoder_embed_dim": 16, "encoder_attention_heads": 3}, 50))


def test_loss_hidden_states_and_gradients():
    original = pretrained("mae_lm")
    model, tokens = as_transformers_model(original), masked(original)
    labels = torch.full_like(tokens, -100)
    labels[tokens.eq(original.mask)] = torch.tensor([6, 10, 11])
    output = model(tokens, labels=labels, output_hidden_states=True)
    wanted = torch.nn.functional.cross_entropy(output.logits[labels.ne(-100)], labels[labels.ne(-100)])
    torch.testing.assert_close(output.loss, wanted)
    assert len(output.hidden_states) == 3
    assert not output.hidden_states[-1][tokens.eq(original.mask)].any()  # MAE-LM's encoder never sees [MASK]
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@ALL_PRESETS
def test_fill_mask_pipeline(preset, model, lines, tmp_path):
    original = pretrained(preset, {}, model)
    export_autoencoder(original, tmp_path / "out")
    fill_mask = pipeline("fill-mask", str(tmp_path / "out"))
    text = f"{lines[0][:20]} <mask> {lines[1][:20]}"
    found = fill_mask(text, top_k=3)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")["input_ids"]
    logits = build(original)(tokens, batch_layout(tokens, tokens.eq(original.mask), 1, original.mask))
    probabilities = logits.softmax(-1)[0].topk(3)
    assert [answer["token"] for answer in found] == probabilities.indices.tolist()
    assert [answer["score"] for answer in found] == pytest.approx(probabilities.values.tolist(), rel=1e-4)


def test_a_fine_tuned_model_has_no_decoder(tmp_path):
    with pytest.raises(UserError, match="fine-tuned and has no decoder"):
        export_autoencoder(pretrained(heads=["sst"]), tmp_path / "out")


def test_nothing_is_written_when_it_differs(model, tmp_path, monkeypatch):
    def spoilt(original):
        made = as_transformers_model(original)
        made.autoencoder.decoder.layers[1].fc2.bias.data[0] += 0.1
        return made

    monkeypatch.setattr(exporter, "as_transformers_model", spoilt)
    with pytest.raises(UserError, match="not written: its logits differ"):
        export_autoencoder(pretrained("mae_lm", {}, model), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_card_says_that_the_package_is_needed(model, tmp_path):
    export_autoencoder(pretrained("mae_lm", {}, model), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "import mae_lm_fairseq.huggingface.modeling" in " ".join(card.split())
    assert "No code is loaded from this directory" in " ".join(card.split())

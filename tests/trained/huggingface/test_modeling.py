"""A bundle as a transformers model."""

import itertools
import shutil
import sys
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface import modeling_mae_lm as plain
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.huggingface.modeling import MAELMConfig, MAELMForMaskedLM
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.trained.validation import network_config
from mae_lm_fairseq.utils.hashes import write_hashes
from tests.support.comparisons import assert_equal
from tests.support.exports import pretrained, train_sentencepiece
from tests.support.refusals import refused

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
CHANGES = ({}, {"relative_buckets": 0}, {"untie_output_weights": True})


def reloaded(original, directory):
    """Write a bundle, and return the model that transformers reads from it."""
    write_bundle(original, directory, add_tokenizer_and_card)
    return AutoModelForMaskedLM.from_pretrained(directory)


def masked(original):
    """Return two texts with some tokens masked."""
    mask = original.mask
    return torch.tensor([[0, 5, mask, 7, 8, mask, 2], [0, mask, 9, 2, 1, 1, 1]])


@pytest.mark.parametrize(
    ("preset", "changes"), zip(PRESETS, itertools.cycle([{}, {"relative_buckets": 0}, {"untie_output_weights": True}]))
)
def test_predictions_equal_the_original(preset, changes, model, tmp_path):
    original = pretrained(preset, changes, model)
    loaded = reloaded(original, tmp_path / "out").eval()
    assert type(loaded) is MAELMForMaskedLM
    tokens = masked(original)
    is_mask = tokens.eq(original.mask)
    ours = build(original)(tokens, batch_layout(tokens, is_mask, 1, original.mask))
    logits = loaded(tokens, attention_mask=tokens.ne(1).long()).logits
    torch.testing.assert_close(logits[is_mask], ours, **CLOSE)
    assert logits.shape == (*tokens.shape, len(original.symbols))
    assert not logits[tokens.eq(1)].any()
    assert_equal(loaded(tokens).logits, logits)
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, original.weights[name]), name
    assert loaded.state_dict().keys() == original.weights.keys()


def test_shared_weights_are_saved_once_and_stay_shared(tmp_path):
    original = pretrained("mae_lm", {"decoder_share_positions": True})
    network = reloaded(original, tmp_path / "out").autoencoder
    saved = load_file(tmp_path / "out/model.safetensors").keys()
    assert saved == original.weights.keys() - {
        "autoencoder.lm_head.weight",
        "autoencoder.decoder.embed_positions.weight",
    }
    assert network.lm_head.weight is network.encoder.embed_tokens.weight
    assert network.decoder.embed_positions.weight is network.encoder.embed_positions.weight


def test_configuration_round_trip(tmp_path):
    original = pretrained("mae_lm_3ml_cross", {"decoder_embed_dim": 8, "decoder_attention_heads": 2})
    config = MAELMConfig(asdict(original.config), len(original.symbols))
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert network_config(again.network) == original.config
    assert (again.vocab_size, again.pad_token_id, again.mask_token_id) == (50, 1, 49)
    assert (again.hidden_size, again.num_hidden_layers, again.num_attention_heads) == (16, 2, 4)
    assert again.max_position_embeddings == 40


def test_loss_hidden_states_and_gradients(tmp_path):
    original = pretrained("mae_lm")
    model = reloaded(original, tmp_path / "out")
    tokens = masked(original)
    labels = torch.full_like(tokens, -100)
    labels[tokens.eq(original.mask)] = torch.tensor([6, 10, 11])
    output = model(tokens, labels=labels, output_hidden_states=True)
    wanted = torch.nn.functional.cross_entropy(output.logits[labels.ne(-100)], labels[labels.ne(-100)])
    torch.testing.assert_close(output.loss, wanted)
    assert len(output.hidden_states) == 3
    assert not output.hidden_states[-1][tokens.eq(original.mask)].any()  # MAE-LM's encoder never sees [MASK]
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_fill_mask_pipeline(model, lines, tmp_path):
    original = pretrained("mae_lm", {}, model)
    write_bundle(original, tmp_path / "out", add_tokenizer_and_card)
    fill_mask = pipeline("fill-mask", str(tmp_path / "out"))
    text = f"{lines[0][:20]} <mask> {lines[1][:20]}"
    answers = fill_mask(text, top_k=3)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")["input_ids"]
    logits = build(original)(tokens, batch_layout(tokens, tokens.eq(original.mask), 1, original.mask))
    probabilities = logits.softmax(-1)[0].topk(3)
    assert [answer["token"] for answer in answers] == probabilities.indices.tolist()
    assert [answer["score"] for answer in answers] == pytest.approx(probabilities.values.tolist(), rel=1e-4)


def test_the_encoder_alone(tmp_path):
    original = pretrained("mae_lm")
    whole = reloaded(original, tmp_path / "out").eval()
    tokens = masked(original)
    states = AutoModel.from_pretrained(tmp_path / "out")(tokens).last_hidden_state
    torch.testing.assert_close(states, whole(tokens, output_hidden_states=True).hidden_states[-1], **CLOSE)
    write_bundle(pretrained("mae_lm_exlm"), tmp_path / "exlm")
    with pytest.raises(ValueError, match="ExLM"):
        AutoModel.from_pretrained(tmp_path / "exlm")


CLASSES = {"packed": AutoModelForMaskedLM, "plain": plain.MAELMForMaskedLM, "encoder": AutoModel}


@pytest.mark.parametrize("kind", CLASSES)
class TestKeywordsOfACall:
    @pytest.fixture
    def loaded(self, kind, tmp_path):
        write_bundle(pretrained("mae_lm"), tmp_path / "out")
        return CLASSES[kind].from_pretrained(tmp_path / "out").eval()

    def test_a_tuple_if_it_is_asked_for(self, loaded):
        tokens = masked(pretrained("mae_lm"))
        by_name = loaded(tokens)
        [states] = loaded(tokens, return_dict=False)
        assert torch.equal(states, by_name[0])
        if isinstance(loaded, plain.MAELMModel):
            return
        loss, logits = loaded(tokens, labels=tokens, return_dict=False)
        assert torch.equal(logits, by_name.logits)
        assert torch.equal(loss, loaded(tokens, labels=tokens).loss)

    def test_the_configuration_has_defaults(self, loaded):
        tokens = masked(pretrained("mae_lm"))
        wanted = loaded(tokens, output_hidden_states=True)
        loaded.config.return_dict = False
        loaded.config.output_hidden_states = True
        first, hidden_states = loaded(tokens)
        assert torch.equal(first, wanted[0])
        assert len(hidden_states) == len(wanted.hidden_states) == 3
        assert loaded(tokens, return_dict=True, output_hidden_states=False).hidden_states is None

    def test_what_is_not_computed_is_refused_by_name(self, loaded):
        tokens = masked(pretrained("mae_lm"))
        for name, value in {"output_attentions": True, "position_ids": tokens, "attention_masc": tokens}.items():
            with pytest.raises(TypeError, match=rf"^{name} is not an option of this model.*leave it out$"):
                loaded(tokens, **{name: value})
        kept = loaded(tokens, output_attentions=False, inputs_embeds=None, token_type_ids=torch.zeros_like(tokens))
        assert torch.equal(kept[0], loaded(tokens)[0])

    def test_the_vocabulary_has_a_fixed_size(self, loaded):
        for arguments in ((None,), (50,)):
            assert loaded.resize_token_embeddings(*arguments) is loaded.get_input_embeddings()
        for arguments in ((51,), (None, 64)):
            with pytest.raises(NotImplementedError, match="fixed vocabulary of 50 tokens"):
                loaded.resize_token_embeddings(*arguments)


def test_the_precision_is_that_of_the_weights(tmp_path):
    original = pretrained("mae_lm")
    halved = {name: weight.half() for name, weight in original.weights.items()}
    write_bundle(replace(original, weights=halved), tmp_path / "out", add_tokenizer_and_card)
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.float16


class TestWithoutATokenizerForTransformers:
    """The bundle lacks tokenizer.json, says why, and loads as always."""

    def test_one_that_transformers_cannot_represent(self, lines, tmp_path):
        odd = train_sentencepiece(lines, remove_extra_whitespaces=False)
        write_bundle(pretrained("mae_lm", {}, odd), tmp_path / "out", add_tokenizer_and_card)
        self.check(tmp_path / "out", odd, "a sentencepiece model that keeps repeated spaces")

    def test_no_transformers(self, model, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        write_bundle(pretrained("mae_lm", {}, model), tmp_path / "out", add_tokenizer_and_card)
        self.check(tmp_path / "out", model, "import of transformers halted")

    def check(self, bundle, model, reason):
        assert f"`AutoTokenizer` cannot read this directory: {reason}" in (bundle / "README.md").read_text()
        assert not (bundle / "tokenizer.json").exists()
        assert open_pretrained(bundle).tokenizer.files == {"sentencepiece.bpe.model": model}


def test_a_damaged_bundle_is_refused_and_a_saved_model_has_no_hashes(model, tmp_path):
    write_bundle(pretrained("mae_lm", {}, model), tmp_path / "out")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    loaded.save_pretrained(tmp_path / "out")
    AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    write_hashes(tmp_path / "out")
    (tmp_path / "out/dict.txt").write_text("other")
    with refused(r"dict\.txt is damaged"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "out")


def test_what_save_pretrained_leaves_out_is_named(model, tmp_path):
    original = pretrained("mae_lm", {}, model)
    write_bundle(original, tmp_path / "out")
    plain.MAELMForMaskedLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "saved")
    with refused(r"saved .*dict\.txt; save_pretrained .*dict\.txt"):
        open_pretrained(tmp_path / "saved")
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        shutil.copy(tmp_path / "out" / name, tmp_path / "saved")
    again = open_pretrained(tmp_path / "saved")
    assert (again.config, again.symbols, again.about) == (original.config, original.symbols, original.about)
    assert again.tokenizer.files == original.tokenizer.files
    assert_equal(again.weights, original.weights)

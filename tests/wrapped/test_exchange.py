"""From a ``transformers`` directory to a bundle and back, for types that are wrapped."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import mae_lm_fairseq.trained.huggingface.modeling  # noqa: F401  registers it
from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import with_preset
from mae_lm_fairseq.trained.huggingface import importer
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.wrapped.encoder import KINDS
from mae_lm_fairseq.wrapped.heads import ANSWERS, HEAD_KINDS, SENTENCES
from tests.support.comparisons import assert_close, assert_equal
from tests.support.huggingface import save_model
from tests.support.refusals import refused
from tests.support.wrapped import stock

IN_GATE = ("deberta-v2", "electra", "modernbert")
ALL = [
    kind if kind in IN_GATE else pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(KINDS.keys() - FAMILIES)
]
WORDS = [f"w{number}" for number in range(60)]
TEXT = "w3 w5 w59 w7 other w11"


def save(directory: Path, kind: str, task: str = "ForMaskedLM", **changes) -> Path:
    """Save a model with more rows of embeddings than tokens, and special tokens in another order than fairseq's."""
    build = lambda kind, vocabulary, pad: stock(kind, f"AutoModel{task.removeprefix('Model')}", **changes)  # noqa: E731
    return save_model(directory / kind, kind, WORDS, build)


@pytest.fixture(params=ALL)
def kind(request):
    return request.param


def bundled(directory: Path, preset: str = "mae_lm_roberta") -> Path:
    """Write the bundle of an import."""
    path = directory.with_name("bundle")
    write_bundle(import_foreign(directory, preset), path, add_tokenizer_and_card)
    return path


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def are_same_files(directory: Path, other: Path) -> bool:
    return (directory / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("preset", ["mae_lm_roberta", "mae_lm"])
def test_an_import_is_exported_byte_by_byte(kind, preset, tmp_path):
    directory, out = save(tmp_path, kind), tmp_path / "out"
    pretrained = open_pretrained(bundled(directory, preset))
    assert pretrained.about.untrained == (("decoder",) if preset == "mae_lm" else ())
    name = export_stock(pretrained, out)
    if preset == "mae_lm":
        assert name == type(transformers.AutoModel.from_pretrained(out)).__name__
        before = weights_of(directory)
        for name, weight in weights_of(out).items():
            assert torch.equal(next(w for n, w in before.items() if n.endswith(f".{name}")), weight)
    else:
        assert are_same_files(directory, out)
        config, again = (read_json(path / "config.json") for path in (directory, out))
        assert config | {"dtype": "float32"} == again


def test_features_and_fillings_are_those_of_the_original(kind, tmp_path):
    directory = save(tmp_path, kind)
    path = bundled(directory)
    model = MAELMModel.from_pretrained(path)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    expected = theirs(**tokenizer([TEXT], return_tensors="pt"), output_hidden_states=True).hidden_states
    layers = model.extract_features(TEXT, return_all_hiddens=True)
    assert_equal(layers, expected)
    assert len(layers) == len(expected)
    masked = tokenizer(["w3 [MASK] w5"], return_tensors="pt")
    probabilities = theirs(**masked).logits[0, 2].softmax(-1)
    best = probabilities[: len(tokenizer)].topk(3)
    fillings = model.fill_mask("w3 <mask> w5", 3)
    assert [filling.token.strip() for filling in fillings] == tokenizer.convert_ids_to_tokens(best.indices)
    assert [filling.probability for filling in fillings] == pytest.approx(best.values.tolist(), rel=1e-4)
    ours = transformers.AutoModelForMaskedLM.from_pretrained(path).eval()  # of this package
    torch.testing.assert_close(ours(**masked).logits[0, 2].softmax(-1), probabilities, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", HEAD_KINDS, ids=lambda head: head.ending)
def test_heads_are_exported_as_they_came(kind, head, tmp_path):
    labels = {} if head is ANSWERS else {"num_labels": 3}
    try:
        directory = save(tmp_path, kind, head.ending, **labels)
    except ValueError:
        pytest.skip(f"{kind} has no {head.ending}")
    path = bundled(directory)
    export_stock(open_pretrained(path), tmp_path / "out")
    assert are_same_files(directory, tmp_path / "out")
    model, text = MAELMModel.from_pretrained(path), "w3 w5 w7"
    theirs = getattr(transformers, f"AutoModel{head.ending}").from_pretrained(directory).eval()
    output = theirs(**transformers.AutoTokenizer.from_pretrained(directory)([text], return_tensors="pt"))
    expected = torch.stack([output[name] for name in head.outputs], -1)
    logits = model.model.classification_heads[head.name](model.extract_features(text))
    assert_close(logits, expected.reshape(logits.shape), 1e-5)
    if head is SENTENCES:
        assert torch.allclose(model.predict(head.name, text, return_logits=True), output.logits, atol=1e-5)
    elif head is ANSWERS:
        assert model.answer("w3", "w5 w7").text in ("w5", "w7", "w5 w7")
    else:
        labels = [f"LABEL_{number}" for number in output.logits[0, 1:4].argmax(-1)]
        assert [word.label for word in model.tag(text)] == labels


def test_models_without_a_head_get_a_random_one(kind, tmp_path):
    directory = save(tmp_path, kind, "Model")
    first, same, other = (import_foreign(directory, "mae_lm_roberta", seed=seed) for seed in (1, 1, 2))
    assert first.about.untrained == ("lm_head",)
    assert_equal(first.weights, same.weights)
    differing = {name for name, weight in first.weights.items() if not torch.equal(weight, other.weights[name])}
    assert {name.startswith("autoencoder.lm_head.") for name in differing} == {True}


def test_another_objective_keeps_encoder_and_head(kind, tmp_path):
    before = import_foreign(save(tmp_path, kind), "mae_lm_roberta")
    after = with_preset(before, "mae_lm", seed=1)
    assert_equal(before.weights, {name: after.weights[name] for name in before.weights})
    assert build(after).decoder is not None


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_wrapped_families_compute_what_converted_ones_do(kind, tmp_path, monkeypatch):
    """Sums have another order: 1e-4 of states of size 1."""
    directory = save(tmp_path, kind, vocab_size=len(WORDS) + 5)
    converted = MAELMModel.from_pretrained(directory)
    monkeypatch.setattr(importer, "FAMILIES", {})
    wrapped = MAELMModel.from_pretrained(directory)
    assert wrapped.model.autoencoder.config.wrapped
    models = (converted, wrapped)
    layers = [model.extract_features([TEXT, "w5"], return_all_hiddens=True) for model in models]
    for states, expected in zip(*layers, strict=True):
        torch.testing.assert_close(torch.cat(states), torch.cat(expected), rtol=1e-4, atol=1e-4)
    tokens = [[filling.token for filling in model.fill_mask("w3 <mask> w5", 3)] for model in models]
    assert tokens[0] == tokens[1]


def test_weights_that_transformers_ignores_are_kept(tmp_path):
    directory, name = save(tmp_path, "deberta-v2"), "mask_predictions.dense.weight"
    weights = weights_of(directory) | {name: torch.ones(2)}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    export_stock(import_foreign(directory, "mae_lm_roberta"), tmp_path / "out")
    assert torch.equal(weights_of(tmp_path / "out")[name], torch.ones(2))


@pytest.mark.parametrize(
    "lacking", ["electra.encoder.layer.1.output.dense.weight", "generator_predictions.LayerNorm.bias"]
)
def test_missing_weights_are_named(lacking, tmp_path):
    directory = save(tmp_path, "electra")
    weights = weights_of(directory)
    del weights[lacking]
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    with refused(lacking):
        import_foreign(directory, "mae_lm_roberta")


def test_tokenizers_with_more_tokens_than_rows_are_refused(tmp_path):
    with refused("60 tokens, and the dictionary has 65"):
        import_foreign(save(tmp_path, "electra", vocab_size=60), "mae_lm_roberta")

"""From a ``transformers`` directory to a bundle and back, for types that are wrapped."""

import json
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
from mae_lm_fairseq.trained.validation import SENTENCE_HEAD as HEAD
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.wrapped.encoder import KINDS
from tests.support.huggingface import save_model
from tests.support.wrapped import stock

IN_GATE = ("deberta-v2", "electra", "modernbert")
ALL = [
    kind if kind in IN_GATE else pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(KINDS.keys() - FAMILIES)
]
TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
WORDS = [f"w{number}" for number in range(60)]
TEXT = "w3 w5 w59 w7 other w11"


def save(directory: Path, kind: str, task: str = "ForMaskedLM", **changes) -> Path:
    """Save a model with more rows of embeddings than tokens, and special tokens in another order than fairseq's."""
    build = lambda kind, vocabulary, pad: stock(kind, f"AutoModel{task.removeprefix('Model')}", **changes)  # noqa: E731
    return save_model(directory / kind, kind, WORDS, build)


@pytest.fixture(params=ALL)
def kind(request):
    return request.param


def bundle(path: Path, pretrained) -> Path:
    write_bundle(pretrained, path, add_tokenizer_and_card)
    return path


@pytest.mark.parametrize("preset", ["mae_lm_roberta", "mae_lm"])
def test_an_import_is_exported_byte_by_byte(kind, preset, tmp_path):
    directory = save(tmp_path, kind)
    pretrained = open_pretrained(bundle(tmp_path / "bundle", import_foreign(directory, preset)))
    assert pretrained.about.untrained == (("decoder",) if preset == "mae_lm" else ())
    name = export_stock(pretrained, tmp_path / "out")
    before, after = (load_file(path / "model.safetensors") for path in (directory, tmp_path / "out"))
    if preset == "mae_lm":
        assert name == type(transformers.AutoModel.from_pretrained(tmp_path / "out")).__name__
        after = {next(x for x in before if x.endswith(f".{name}")): weight for name, weight in after.items()}
        assert all(torch.equal(before[name], weight) for name, weight in after.items())
    else:
        assert (directory / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
        config, again = (json.loads((path / "config.json").read_bytes()) for path in (directory, tmp_path / "out"))
        assert config | {"dtype": "float32"} == again


def test_features_and_fillings_are_those_of_the_original(kind, tmp_path):
    directory = save(tmp_path, kind)
    model = MAELMModel.from_pretrained(bundle(tmp_path / "bundle", import_foreign(directory, "mae_lm_roberta")))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = theirs(**tokenizer([TEXT], return_tensors="pt"), output_hidden_states=True)
    layers = model.extract_features(TEXT, return_all_hiddens=True)
    assert all(torch.equal(*pair) for pair in zip(layers, found.hidden_states, strict=True))
    logits = theirs(**tokenizer(["w3 [MASK] w5"], return_tensors="pt")).logits[0, 2].softmax(-1)
    best = logits[: len(tokenizer)].topk(3)
    fillings = model.fill_mask("w3 <mask> w5", 3)
    assert [one.token.strip() for one in fillings] == tokenizer.convert_ids_to_tokens(best.indices)
    assert [one.probability for one in fillings] == pytest.approx(best.values.tolist(), rel=1e-4)
    ours = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bundle").eval()  # of this package
    again = ours(**tokenizer(["w3 [MASK] w5"], return_tensors="pt")).logits[0, 2].softmax(-1)
    torch.testing.assert_close(again, logits, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_heads_are_exported_as_they_came(kind, task, tmp_path):
    labels = {} if task == "ForQuestionAnswering" else {"num_labels": 3}
    try:
        directory = save(tmp_path, kind, task, **labels)
    except ValueError:
        pytest.skip(f"{kind} has no {task}")
    pretrained = open_pretrained(bundle(tmp_path / "bundle", import_foreign(directory, "mae_lm_roberta")))
    export_stock(pretrained, tmp_path / "out")
    assert (directory / "model.safetensors").read_bytes() == (tmp_path / "out" / "model.safetensors").read_bytes()
    model = MAELMModel.from_pretrained(tmp_path / "bundle")
    theirs = getattr(transformers, f"AutoModel{task}").from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    output = theirs(**tokenizer(["w3 w5 w7"], return_tensors="pt"))
    if task == TASKS[0]:
        assert torch.allclose(model.predict(HEAD, "w3 w5 w7", return_logits=True), output.logits, atol=1e-5)
    elif task == TASKS[1]:
        expected = [f"LABEL_{number}" for number in output.logits[0, 1:4].argmax(-1)]
        assert [word.label for word in model.tag("w3 w5 w7")] == expected
    else:
        [head] = model.model.classification_heads.values()
        expected = torch.stack([output.start_logits, output.end_logits], -1)
        torch.testing.assert_close(head(model.extract_features("w3 w5 w7")), expected, rtol=0, atol=1e-5)
        assert model.answer("w3", "w5 w7").text in ("w5", "w7", "w5 w7")


def test_models_without_a_head_get_a_random_one(kind, tmp_path):
    directory = save(tmp_path, kind, "Model")
    one, same, other = (import_foreign(directory, "mae_lm_roberta", seed=seed) for seed in (1, 1, 2))
    assert one.about.untrained == ("lm_head",)
    differing = {name for name, weight in one.weights.items() if not torch.equal(weight, other.weights[name])}
    assert differing
    assert all(name.startswith("autoencoder.lm_head.") for name in differing)
    assert all(torch.equal(weight, same.weights[name]) for name, weight in one.weights.items())


def test_another_objective_keeps_encoder_and_head(kind, tmp_path):
    before = import_foreign(save(tmp_path, kind), "mae_lm_roberta")
    after = with_preset(before, "mae_lm", seed=1)
    assert all(torch.equal(weight, after.weights[name]) for name, weight in before.weights.items())
    assert build(after).decoder is not None


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_wrapped_families_compute_what_converted_ones_do(kind, tmp_path, monkeypatch):
    """Sums have another order: 1e-4 of states of size 1."""
    directory = save(tmp_path, kind, vocab_size=len(WORDS) + 5)
    converted = MAELMModel.from_pretrained(directory)
    monkeypatch.setattr(importer, "FAMILIES", {})
    wrapped = MAELMModel.from_pretrained(directory)
    assert wrapped.model.autoencoder.config.wrapped
    layers = (model.extract_features([TEXT, "w5"], return_all_hiddens=True) for model in (converted, wrapped))
    for one, other in zip(*layers, strict=True):
        torch.testing.assert_close(torch.cat(one), torch.cat(other), rtol=1e-4, atol=1e-4)
    ours, theirs = (model.fill_mask("w3 <mask> w5", 3) for model in (converted, wrapped))
    assert [one.token for one in ours] == [one.token for one in theirs]


def test_weights_that_transformers_ignores_are_kept(tmp_path):
    path = save(tmp_path, "deberta-v2") / "model.safetensors"
    ignored = {"mask_predictions.dense.weight": torch.ones(2)}
    save_file(load_file(path) | ignored, path, {"format": "pt"})
    export_stock(import_foreign(path.parent, "mae_lm_roberta"), tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / path.name)["mask_predictions.dense.weight"], torch.ones(2))


@pytest.mark.parametrize(
    "lacking", ["electra.encoder.layer.1.output.dense.weight", "generator_predictions.LayerNorm.bias"]
)
def test_missing_weights_are_named(lacking, tmp_path):
    path = save(tmp_path, "electra") / "model.safetensors"
    weights = load_file(path)
    save_file({name: weight for name, weight in weights.items() if name != lacking}, path, {"format": "pt"})
    with pytest.raises(UserError, match=f"{lacking} is missing or unknown"):
        import_foreign(path.parent, "mae_lm_roberta")


def test_tokenizers_with_more_tokens_than_rows_are_refused(tmp_path):
    with pytest.raises(UserError, match="embeddings of 60 tokens, and the dictionary has 65"):
        import_foreign(save(tmp_path, "electra", vocab_size=60), "mae_lm_roberta")

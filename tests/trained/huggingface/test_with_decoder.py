"""Exports of the whole model, whose code needs neither this package nor fairseq."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from density import count, without_docstrings
from mae_lm_fairseq import load
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, RelativeBucketing, plain_values
from mae_lm_fairseq.measures.minimal_pairs import accuracies, read_paradigms
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface import comparison, exporter, modeling_mae_lm
from mae_lm_fairseq.trained.huggingface.comparison import states_and_logits
from mae_lm_fairseq.trained.huggingface.exporter import CODE, export_with_decoder
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.huggingface.modeling_mae_lm import DEFAULTS, MAELMConfig, MAELMForMaskedLM
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hashes import HASHES
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close, assert_equal
from tests.support.exports import WITHOUT_BIAS, pretrained, with_facts
from tests.support.families import change_json, change_weights
from tests.support.huggingface import save_model, tiny_masked_lm
from tests.support.refusals import refused
from tests.support.tokenizers import make

SYMMETRIC = {"relative_bucketing": RelativeBucketing.symmetric, "relative_max_distance": 20}
NARROW = {"decoder_embed_dim": 8, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 2}
VARIANTS = {
    "self": ("mae_lm", {}),
    "cross": ("mae_lm", {"decoder_attention": "cross"}),
    "self_cross": ("mae_lm", {"decoder_attention": "self_cross"}),
    "three_ml_self": ("mae_lm_3ml_self", {}),
    "three_ml_cross": ("mae_lm_3ml_cross", {}),
    "roberta": ("mae_lm_roberta", {}),
    "academic": ("mae_lm", {"pre_norm": True}),
    "pre_norm_cross": ("mae_lm", {"pre_norm": True, "decoder_attention": "cross"}),
    "pre_norm_self_cross": ("mae_lm_3ml_cross", {"pre_norm": True} | NARROW),
    "pre_norm_roberta": ("mae_lm_roberta", {"pre_norm": True}),
    "narrow": ("mae_lm", NARROW),
    "deep": ("mae_lm", {"decoder_layers": 3}),
    "shallow": ("mae_lm_3ml_cross", {"decoder_layers": 1}),
    "symmetric": ("mae_lm", SYMMETRIC),
    "short_distance": ("mae_lm_3ml_cross", {"relative_buckets": 8, "relative_max_distance": 12}),
    "without_bias": ("mae_lm", WITHOUT_BIAS | {"decoder_relative_buckets": 0}),
    "untied": ("mae_lm", {"untie_output_weights": True}),
    "shared_positions": ("mae_lm_3ml_cross", {"decoder_share_positions": True}),
    "renumbered": ("mae_lm", {"renumber_visible": True}),
    "reset": ("mae_lm", {"reset_mask_states": True, "decoder_attention": "cross"}),
    "seen_masks": ("mae_lm_3ml_cross", {}),
}
SCORED = ("academic", "three_ml_cross", "seen_masks", "roberta")
"""Variants that score minimal pairs, and that the export compares on all rows; fewer rows of the others save time."""
MASK_IN_ENCODER = {"reset": 0.4, "seen_masks": 0.4}
CLOSE = 1e-4
"""The tolerance of exports. Logits and hidden states are of the order of 1 to 10, in single precision."""
SCRIPT = """
import sys
from pathlib import Path


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "mae_lm_fairseq"):
            raise ImportError(f"{name} is imported")


sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

root = Path(sys.argv[1])
inputs = torch.load(root / "inputs.pt")
tokens, labels = inputs["tokens"], inputs["labels"]
attention_mask = tokens.ne(1).long()


def load(auto, path, **options):
    model, loaded = auto.from_pretrained(path, trust_remote_code=True, output_loading_info=True, **options)
    assert not any(loaded.values()), loaded
    for weight in model.parameters():
        weight.data = weight.data.clone()  # aligned: torch rounds otherwise where transformers has mapped it unaligned
    return model


def log_likelihood(model, tokenizer, text):
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    rows = ids.repeat(ids.shape[1] - 2, 1)
    places = torch.arange(1, ids.shape[1] - 1)
    numbers = torch.arange(len(rows))
    rows[numbers, places] = tokenizer.mask_token_id
    log_probabilities = model(rows).logits.double().log_softmax(-1)
    return log_probabilities[numbers, places, ids[0, places]].sum().item()


outputs = {}
for directory in sorted((root / "exports").iterdir()):
    model = load(AutoModelForMaskedLM, directory)
    output = model(tokens, attention_mask=attention_mask, labels=labels, output_hidden_states=True)
    output.loss.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    again = root / "again" / directory.name
    scores = directory.name in inputs["scored"]
    with torch.no_grad():
        model.save_pretrained(again)
        encoder = load(AutoModel, directory)
        features = encoder(tokens, attention_mask=attention_mask)
        encoder.save_pretrained(root / "encoders" / directory.name)
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=True)
        fill_mask = pipeline("fill-mask", str(directory), trust_remote_code=True)
        outputs[directory.name] = {
            "implementation": model.config._attn_implementation,
            "logits": output.logits.detach(),
            "without gradients": model(tokens, attention_mask=attention_mask).logits,
            "loss": output.loss.detach(),
            "hidden_states": [states.detach() for states in output.hidden_states],
            "gradients": gradients,
            "alone": [model(row[row.ne(1)][None]).logits[0] for row in tokens],
            "moved": model(tokens.roll(3, 1), attention_mask=attention_mask.roll(3, 1)).logits.roll(-3, 1),
            "eager": load(AutoModelForMaskedLM, directory, attn_implementation="eager")(tokens).logits,
            "again": load(AutoModelForMaskedLM, again)(tokens, attention_mask=attention_mask).logits,
            "features": features.last_hidden_state,
            "encoder again": load(AutoModel, root / "encoders" / directory.name)(tokens).last_hidden_state,
            "filled": fill_mask(inputs["text"], top_k=3),
            "scores": [log_likelihood(model, tokenizer, text) for text in inputs["sentences"] if scores],
        }
torch.save(outputs, root / "outputs.pt")
"""


def original_of(variant, model):
    """Return the model that is exported."""
    preset, changes = VARIANTS[variant]
    return with_facts(pretrained(preset, changes, model), mask_in_encoder=MASK_IN_ENCODER.get(variant, 0.0))


def rows_with_masks(mask):
    """Return tokens [5, 24] with masks and padding, the last 4 columns of all of them empty, and labels."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, mask, (5, 24), generator=generator)
    is_masked = torch.rand(tokens.shape, generator=generator) < torch.tensor([0.15, 0.5, 0.0, 1.0, 0.3])[:, None]
    labels = tokens.masked_fill(~is_masked & (torch.rand(tokens.shape, generator=generator) < 0.9), -100)
    tokens = tokens.masked_fill(is_masked, mask)
    tokens[:, 0] = 0
    for row, length in enumerate((20, 13, 17, 9, 20)):
        tokens[row, length - 1] = 2
        tokens[row, length:] = 1
        labels[row, length:] = -100
    return tokens, labels


@pytest.fixture(scope="module")
def pairs(lines, tmp_path_factory) -> Path:
    """Write minimal pairs in the layout of BLiMP: a line, and the line with two words swapped."""
    rows = []
    for line in lines[:12]:
        words = line.split()[:6]
        texts = {"sentence_good": " ".join(words), "sentence_bad": " ".join(words[::-1])}
        rows.append(texts | {"field": "syntax", "UID": "order"})
    directory = tmp_path_factory.mktemp("pairs")
    (directory / "order.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def exports(model, lines, tmp_path_factory) -> Path:
    """Export all variants."""
    root = tmp_path_factory.mktemp("exports")
    for variant in VARIANTS:
        rows = comparison.MASKED_ROWS if variant in SCORED else 50
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparison, "MASKED_ROWS", rows)
            written = export_with_decoder(original_of(variant, model), root / "exports" / variant, lines[:20])
        assert written == "MAELMForMaskedLM"
    return root


@pytest.fixture(scope="module")
def inputs(model, lines, pairs):
    tokens, labels = rows_with_masks(original_of("self", model).mask)
    [paradigm] = read_paradigms(pairs)
    sentences = [text for pair in paradigm.pairs for text in pair]
    text = f"{lines[0][:20]} <mask> {lines[1][:20]}"
    return {"tokens": tokens, "labels": labels, "text": text, "sentences": sentences, "scored": SCORED}


@pytest.fixture(scope="module")
def outputs(exports, inputs):
    """Return what transformers computes where neither this package nor fairseq can be imported."""
    torch.save(inputs, exports / "inputs.pt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(exports / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCRIPT, str(exports)]
    done = subprocess.run(command, cwd=exports, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(exports / "outputs.pt")


@pytest.mark.integration  # starts a command
@pytest.mark.parametrize("variant", VARIANTS)
class TestOutputsEqualTheOriginal:
    def test_logits_hidden_states_loss_and_gradients(self, variant, outputs, inputs, model):
        original = original_of(variant, model)
        network = build(original)
        tokens, labels = inputs["tokens"], inputs["labels"]
        states, logits = states_and_logits(network, tokens, original)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        output = outputs[variant]
        assert output["implementation"] == "sdpa"
        assert_close(output["logits"], logits.detach(), CLOSE)
        assert_close(output["eager"], logits.detach(), CLOSE)
        assert_close(output["loss"], loss.detach(), CLOSE)
        for their, ours in zip(output["hidden_states"], states, strict=True):
            assert_close(their, ours.detach(), CLOSE)
        assert_close(output["features"], states[-1].detach(), CLOSE)
        gradients = {f"autoencoder.{name}": weight.grad for name, weight in network.named_parameters()}
        assert output["gradients"].keys() == gradients.keys()
        for name, gradient in gradients.items():
            difference = (output["gradients"][name] - gradient).abs().max()
            # Sums over rows in another order, in single precision.
            assert difference <= 1e-4 * max(1.0, gradient.abs().max()), name

    def test_a_padded_row_equals_the_row_alone(self, variant, outputs, inputs):
        output = outputs[variant]
        for row, tokens in enumerate(inputs["tokens"]):
            length = int(tokens.ne(1).sum())
            assert_close(output["logits"][row, :length], output["alone"][row], CLOSE)
            assert not output["logits"][row, length:].any()
        assert_close(output["moved"], output["logits"], CLOSE)  # padded on the left, too

    def test_saved_and_loaded_again_it_is_equal(self, variant, outputs):
        output = outputs[variant]
        assert_equal(output["again"], output["without gradients"])
        assert_equal(output["encoder again"], output["features"])

    def test_the_pipeline_fills_masks_as_the_original(self, variant, outputs, inputs, exports):
        ours = load(exports / "exports" / variant).fill_mask(inputs["text"], topk=3)
        theirs = outputs[variant]["filled"]
        assert [filling["score"] for filling in theirs] == pytest.approx(
            [filling.probability for filling in ours], 1e-3
        )
        assert [filling["token_str"].strip() for filling in theirs] == [filling.token.strip() for filling in ours]


@pytest.mark.integration
@pytest.mark.parametrize("variant", SCORED)
def test_minimal_pairs_have_the_accuracies_of_the_verb(variant, outputs, exports, pairs, tmp_path):
    """The export is also a bundle, which the verb reads."""
    bundle = exports / "exports" / variant
    run_verb("minimal-pairs", bundle, "--pairs", pairs, "--out", tmp_path / "out")
    [result] = read_json(tmp_path / "out/results.json")["models"].values()
    scores = np.array(outputs[variant]["scores"]).reshape(-1, 2)
    assert accuracies(read_paradigms(pairs), scores) == result["scores"]["model"]


@pytest.mark.parametrize("variant", ["shared_positions", "untied", "roberta"])
def test_the_export_is_a_bundle(variant, exports, model):
    original = original_of(variant, model)
    again = open_pretrained(exports / "exports" / variant)
    assert (again.config, again.symbols, again.about) == (original.config, original.symbols, original.about)
    assert_equal(again.weights, original.weights)


def test_the_code_is_self_contained_and_small():
    tree = ast.parse(CODE.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy", "torch", "transformers"}
    without_docstrings(tree)
    assert count(tree) <= 4500


def test_the_code_is_that_of_the_package_and_named_in_the_configuration(exports):
    directory = exports / "exports/self"
    assert [path.name for path in directory.glob("*.py")] == ["modeling_mae_lm.py"]
    assert (directory / "modeling_mae_lm.py").read_bytes() == CODE.read_bytes()
    auto_map = read_json(directory / "config.json")["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM"}
    card = (directory / "README.md").read_text()
    assert "trust_remote_code=True" in card
    assert "{" not in card.replace('{"', "")


def test_a_hostile_bundle_adds_no_code(model, tmp_path):
    """Keys that lead to code, and files of code, stay behind."""
    write_bundle(pretrained("mae_lm", {}, model), tmp_path / "bundle", add_tokenizer_and_card)
    hostile = {
        "auto_map": {"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.A", "evil.B"]},
        "attribute_map": {"a": "b"},
    }
    for name in ("config.json", "tokenizer_config.json"):
        change_json(tmp_path / "bundle" / name, **hostile)
    for name in ("evil.py", CODE.name):
        (tmp_path / "bundle" / name).write_text("raise SystemExit('it ran')")
    (tmp_path / "bundle" / HASHES).unlink()
    run_verb("export", tmp_path / "bundle", "--with-decoder", "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*.py")] == [CODE.name]
    assert (tmp_path / "out" / CODE.name).read_bytes() == CODE.read_bytes()
    config = read_json(tmp_path / "out/config.json")
    assert {value.partition(".")[0] for value in config["auto_map"].values()} == {CODE.stem}
    assert "attribute_map" not in config
    assert hostile.keys().isdisjoint(read_json(tmp_path / "out/tokenizer_config.json"))


def test_options_and_their_defaults_are_those_of_the_package():
    values = plain_values(MaskedAutoencoderConfig())
    without_effect = {"mask_join_layer", "relative_bias_init"}
    assert {name: values[name] for name in values.keys() - without_effect} == dict(DEFAULTS)


@pytest.mark.parametrize("tokenizer", ["gpt2", "unigram"])
def test_tokenizers_with_other_ids(tokenizer, tmp_path):
    """The comparison in the export also permutes ids. MPNet's class has no such tokenizer."""
    original = pretrained("mae_lm_3ml_cross", tokenizer=make(tokenizer))
    export_with_decoder(original, tmp_path / "out")
    config = read_json(tmp_path / "out/config.json")
    assert config["pad_token_id"] != 1
    again = open_pretrained(tmp_path / "out").weights
    for name, weight in original.weights.items():
        if "embed_positions" in name:
            weight = torch.cat([torch.zeros(2, weight.shape[1]), weight[2:]])
        assert torch.equal(again[name], weight), name


def test_an_import_and_half_precision(copy_of, tmp_path):
    original = import_foreign(copy_of("bert"), "mae_lm_roberta")
    halved = {name: weight.half() for name, weight in original.weights.items()}
    export_with_decoder(replace(original, weights=halved), tmp_path / "out", pooling="mean")
    assert read_json(tmp_path / "out/config.json")["dtype"] == "float32"
    assert (tmp_path / "out/modules.json").exists()


def test_without_a_tokenizer(tmp_path):
    export_with_decoder(pretrained(), tmp_path / "out")
    assert not (tmp_path / "out/tokenizer.json").exists()


def wrapped(tmp_path):
    return import_foreign(save_model(tmp_path / "electra", "electra", list("abcdef"), tiny_masked_lm), "mae_lm_roberta")


REFUSED = {
    "ExLM": lambda _: pretrained("mae_lm_exlm"),
    "ExLM, each": lambda _: pretrained("mae_lm_exlm_decoder"),
    "mask later": lambda _: pretrained("mae_lm_mask_later"),
    "wrapped": wrapped,
    "fine-tuned": lambda _: pretrained(heads=["sst"]),
    "untrained|without decoder": lambda _: with_facts(pretrained(), untrained=("decoder",)),
}


@pytest.mark.parametrize("named", REFUSED)
def test_other_models_are_refused_by_name(named, tmp_path):
    model = REFUSED[named](tmp_path)
    with refused(rf"--with-decoder .*({named}).*mae-lm bundle"):
        export_with_decoder(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_code_refuses_what_it_does_not_compute():
    with pytest.raises(ValueError, match="ExLM"):
        MAELMForMaskedLM(MAELMConfig({"mask_states": 4, "encoder_layers": 1}, vocab_size=9))


def test_rows_that_are_too_long_are_refused(exports):
    loaded = MAELMForMaskedLM.from_pretrained(exports / "exports/self")
    with pytest.raises(ValueError, match="41 tokens; this model takes at most 40"):
        loaded(torch.full((1, 41), 5))


def test_a_new_model_starts_from_weights_of_the_right_size(model):
    original = original_of("self", model)
    torch.manual_seed(0)
    new = MAELMForMaskedLM(MAELMConfig(plain_values(original.config), len(original.symbols)))
    for name, weight in new.named_parameters():
        if "norm" in name or name.endswith("bias"):
            assert set(weight.unique().tolist()) == {float(name.endswith("norm.weight"))}, name
        else:
            assert weight.std().item() == pytest.approx(original.config.init_std, rel=0.4), name


def test_nothing_is_written_if_weights_differ(model, tmp_path, monkeypatch):
    name = "autoencoder.decoder.layers.0.fc1.bias"

    def write_and_spoil(path, content):
        path.write_bytes(content)
        change_weights(path.parent, lambda weights: weights | {name: weights[name] + torch.eye(32)[0]})

    monkeypatch.setattr(exporter, "write_bytes", write_and_spoil)
    with refused("the export was not written: its logits"):
        export_with_decoder(pretrained("mae_lm", {}, model), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_if_the_code_computes_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(modeling_mae_lm, "EMPTY_KEY", 0.0)
    with refused("the export was not written: its states"):
        export_with_decoder(pretrained(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_code_is_exported_where_it_is_asked_for(model, lines, tmp_path):
    write_bundle(pretrained("mae_lm", {}, model), tmp_path / "bundle")
    (tmp_path / "text").write_text("\n".join(lines[:20]))
    for name, flags in (("plain", []), ("whole", ["--with-decoder"])):
        words = ["--text", tmp_path / "text", "--out", tmp_path / name, *flags]
        run_verb("export", tmp_path / "bundle", *words)
        assert bool([*(tmp_path / name).glob("*.py")]) == bool(flags)
        assert ("auto_map" in read_json(tmp_path / name / "config.json")) == bool(flags)

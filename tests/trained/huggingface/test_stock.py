"""Export to stock transformers classes, which must compute the same."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from mae_lm_fairseq import cli
from mae_lm_fairseq.core.config import PRESETS, RelativeBucketing
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface import exporter, stock
from mae_lm_fairseq.trained.huggingface.comparison import encoder_states
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card, stock_card
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.utils.errors import UserError
from tests.support.disks import room_for
from tests.support.exports import WITH_BIAS, WITHOUT_BIAS, pretrained, with_facts

CLASSES = {"mpnet": "MPNet", "roberta": "Roberta", "pre-norm": "RobertaPreLayerNorm"}
CHANGES = {"mpnet": WITH_BIAS, "roberta": WITHOUT_BIAS, "pre-norm": WITHOUT_BIAS | {"pre_norm": True}}
KINDS = pytest.mark.parametrize(("kind", "changes"), CHANGES.items())
# Single precision; hidden states are of the order of 1.
CLOSE = {"rtol": 0, "atol": 1e-5}


def texts_and_ids(out, model, lines):
    """Return padded ids [B, T] from the exported tokenizer, checked against sentencepiece."""
    batch = AutoTokenizer.from_pretrained(out)(lines, padding=True, truncation=True, return_tensors="pt")
    tokenizer = SentencePieceTokenizer(out / "sentencepiece.bpe.model")
    for row, ids in zip(batch["input_ids"].tolist(), tokenizer.encode_lines(lines), strict=True):
        assert [index for index in row if index != 1] == [0, *ids.tolist()[:38], 2]
    return batch


@pytest.mark.parametrize(("preset", "kind"), zip(PRESETS, itertools.cycle(CHANGES)))
def test_tokens_and_states_equal_the_original_and_an_import_is_bit_equal(preset, kind, model, lines, tmp_path):
    original = pretrained(preset, CHANGES[kind], model)
    out = tmp_path / "exported"
    written = export_stock(original, out)
    assert written == CLASSES[kind] + ("ForMaskedLM" if preset == "mae_lm_roberta" else "Model")
    batch = texts_and_ids(out, model, ["", "Hello, wörld!", *lines[:6]])
    theirs = AutoModel.from_pretrained(out).eval()(**batch, output_hidden_states=True)
    assert type(AutoModel.from_pretrained(out)).__name__ == f"{CLASSES[kind]}Model"
    is_token = batch["attention_mask"].bool()
    assert not is_token.all()
    ours = encoder_states(build(original), batch["input_ids"], original.pad)
    torch.testing.assert_close(theirs.last_hidden_state[is_token], ours[-1][is_token], **CLOSE)
    for their, our in zip(theirs.hidden_states, ours, strict=True):
        torch.testing.assert_close(their[is_token], our[is_token], **CLOSE)
    for row in range(2):  # the result is the same without padding
        alone = batch["input_ids"][row : row + 1, : int(is_token[row].sum())]
        state = AutoModel.from_pretrained(out)(alone).last_hidden_state
        torch.testing.assert_close(state[0], ours[-1][row, : alone.shape[1]], **CLOSE)
    again = import_foreign(out, preset)
    assert again.symbols == original.symbols
    assert again.tokenizer.files == {"sentencepiece.bpe.model": model}
    assert again.config.encoder == original.config.encoder
    assert again.config.mask_join is original.config.mask_join
    encoder = {name for name in original.weights if name.startswith("autoencoder.encoder.")}
    kept = {name for name in encoder if "embed_clones" not in name}  # which no stock class has
    kept |= {name for name in original.weights if "lm_head" in name and preset == "mae_lm_roberta"}
    assert {name for name in again.weights if name.startswith("autoencoder.encoder.")} == encoder
    assert all(torch.equal(again.weights[name], original.weights[name]) for name in kept)


@KINDS
def test_the_vanilla_model_fills_in_masks(kind, changes, model, tmp_path):
    original = pretrained("mae_lm_roberta", changes, model)
    assert export_stock(original, tmp_path / "out") == f"{CLASSES[kind]}ForMaskedLM"
    masked = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    tokens = torch.tensor([[0, 5, original.mask, 7, 2], [0, original.mask, 2, 1, 1]])
    is_mask = tokens.eq(original.mask)
    ours = build(original)(tokens, batch_layout(tokens, is_mask, original.pad, original.mask))
    theirs = masked(tokens, attention_mask=tokens.ne(1).long()).logits[is_mask]
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-4)  # sums of 16 products of the order of 1
    found = pipeline("fill-mask", model=masked, tokenizer=AutoTokenizer.from_pretrained(tmp_path / "out"))("a <mask>.")
    assert len(found) == 5


@KINDS
def test_classification_head_is_exported(kind, changes, model, tmp_path):
    original = pretrained("mae_lm", changes, model, heads=["sentence_classification_head"])
    assert export_stock(original, tmp_path / "out") == f"{CLASSES[kind]}ForSequenceClassification"
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, 1, 1]])
    theirs = classifier(tokens, attention_mask=tokens.ne(1).long()).logits
    state = encoder_states(build(original), tokens, 1)[-1][:, 0]
    head = {
        name.removeprefix("classification_heads.sentence_classification_head."): weight
        for name, weight in original.weights.items()
        if name.startswith("classification_heads.")
    }
    inner = torch.tanh(state @ head["dense.weight"].T + head["dense.bias"])
    torch.testing.assert_close(theirs, inner @ head["out_proj.weight"].T + head["out_proj.bias"], **CLOSE)


def test_several_heads_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"several heads \(mnli, sst\)"):
        export_stock(pretrained(heads=["mnli", "sst"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


CLASS_OF = {
    "mae_lm_roberta_tiny": "MPNetForMaskedLM",
    "without_bias": "RobertaModel",
    "classification": "MPNetForSequenceClassification",
    "regression": "MPNetForSequenceClassification",
    "span": "MPNetForQuestionAnswering",
    "tags": "MPNetForTokenClassification",
}


@pytest.mark.integration  # fine-tunes, and exports every kind of model
def test_every_bundle_is_exported_to_its_class(bundles, tmp_path):
    """Checkpoints of fairseq's trainer, also with fine-tuned heads; the exporter itself compares the outputs."""
    for name, bundle in bundles.items():
        assert export_stock(open_pretrained(bundle), tmp_path / name) == CLASS_OF.get(name, "MPNetModel"), name
    labels = {name: AutoConfig.from_pretrained(tmp_path / name).num_labels for name in ("classification", "regression")}
    assert labels == {"classification": 2, "regression": 1}


def test_half_precision_becomes_float32(model, tmp_path):
    original = pretrained("mae_lm", {}, model)
    original = replace(original, weights={name: weight.half() for name, weight in original.weights.items()})
    export_stock(original, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        assert file.metadata() == {"format": "pt"}


def test_without_tokenizer_states_are_compared_on_random_ids(tmp_path):
    export_stock(pretrained(), tmp_path / "out")
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    assert "This directory has no tokenizer" in (tmp_path / "out" / "README.md").read_text()
    write_bundle(pretrained(), tmp_path / "bundle", add_tokenizer_and_card)
    with pytest.raises(UserError, match=r"--text some\.txt: .*bundle has no tokenizer, and is compared on random ids"):
        cli.run("export", [str(tmp_path / "bundle"), "--text", "some.txt", "--out", str(tmp_path / "again")])
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"relative_buckets": 16},
        {"relative_max_distance": 64},
        {"relative_bucketing": RelativeBucketing.symmetric},
        {"pre_norm": True},
    ],
)
def test_options_without_counterpart_are_refused(changes, tmp_path):
    with pytest.raises(UserError, match="--relative-buckets"):
        export_stock(pretrained("mae_lm", changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["weights", "missing", "nan", "tokenizer"])
def test_nothing_is_written_when_the_export_differs(fault, model, tmp_path, monkeypatch):
    def spoilt(original, to, directory):
        stock.write_stock(original, to, directory)
        weights = load_file(directory / "model.safetensors")
        if fault == "missing":
            del weights["encoder.layer.1.output.dense.bias"]
        else:
            weights["encoder.layer.1.output.dense.bias"][0] += 1e-2 if fault == "weights" else float("nan")
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    def other_tokenizer(original, directory):
        write_tokenizer(original, directory)
        content = json.loads((directory / "tokenizer.json").read_text())
        content["normalizer"] = {"type": "Lowercase"}
        (directory / "tokenizer.json").write_text(json.dumps(content))

    write_tokenizer = exporter.write_tokenizer
    if fault == "tokenizer":
        monkeypatch.setattr(exporter, "write_tokenizer", other_tokenizer)
    else:
        monkeypatch.setattr(exporter, "write_stock", spoilt)
    with pytest.raises(UserError, match=r"the export was not written: its (weights|states|tokenizer)"):
        export_stock(pretrained("mae_lm", {}, model), tmp_path / "out", lines=["Aa Bb"])
    assert not list(tmp_path.iterdir())


MASK_WARNINGS = {
    "This encoder was trained here without mask tokens": ("mae_lm", {}, []),
    "25% of the mask tokens": ("mae_lm", {"mask_in_encoder": 0.25}, []),
    "Do not put mask tokens into the input.": ("mae_lm", {}, ["sst"]),
    "The lower layers of this encoder never saw a mask token": ("mae_lm_mask_later", {}, []),
    "every mask token became 4 hidden states": ("mae_lm_exlm", {}, []),
    "was trained without mask tokens": ("mae_lm_roberta", {"other_tokens": 1.0}, []),
    "and filling in masked tokens": ("mae_lm_roberta", {"other_tokens": 0.2}, []),
}


@pytest.mark.parametrize("warning", MASK_WARNINGS)
def test_the_card_says_what_mask_tokens_do(warning, model):
    preset, facts, heads = MASK_WARNINGS[warning]
    exported = with_facts(pretrained(preset, {}, model, heads=heads), **facts)
    card = stock_card(exported, stock.counterpart(exported), lines=9, reordered=0)
    assert [each for each in MASK_WARNINGS if each in card] == [warning]
    assert f"`{preset}_tiny`" in card
    assert "updates | 7" in card
    assert "{" not in card


def test_a_full_disk_is_named_and_nothing_is_left(model, tmp_path):
    for size in (100, 20_000):  # the configuration, the weights
        with pytest.raises(UserError, match=r"cannot write .*: File too large"), room_for(size):
            export_stock(pretrained("mae_lm", {}, model), tmp_path / "out")
        assert not list(tmp_path.iterdir())

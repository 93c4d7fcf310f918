"""Export to stock transformers classes, which must compute the same."""

import itertools
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from mae_lm_fairseq.core.config import PRESETS, RelativeBucketing
from mae_lm_fairseq.text.hugging_face_tokenizer import FairseqBPETokenizer
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface import exporter, stock
from mae_lm_fairseq.trained.huggingface.comparison import encoder_states
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card, stock_card
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build_all
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close
from tests.support.disks import room_for
from tests.support.exports import WITH_BIAS, WITHOUT_BIAS, pretrained, with_facts
from tests.support.families import change_json, change_weights, check_outputs
from tests.support.refusals import refused
from tests.support.tokenizers import fairseq_files, make, paragraphs
from tests.support.weights import encoder_of

CLASSES = {"mpnet": "MPNet", "roberta": "Roberta", "pre-norm": "RobertaPreLayerNorm"}
CHANGES = {"mpnet": WITH_BIAS, "roberta": WITHOUT_BIAS, "pre-norm": WITHOUT_BIAS | {"pre_norm": True}}
KINDS = pytest.mark.parametrize(("kind", "changes"), CHANGES.items())


@pytest.mark.parametrize(("preset", "kind"), zip(PRESETS, itertools.cycle(CHANGES)))
def test_tokens_and_states_equal_the_original_and_an_import_is_bit_equal(preset, kind, model, lines, tmp_path):
    original = pretrained(preset, CHANGES[kind], model)
    out = tmp_path / "exported"
    written = export_stock(original, out)
    assert written == CLASSES[kind] + ("ForMaskedLM" if preset == "mae_lm_roberta" else "Model")
    assert type(AutoModel.from_pretrained(out)).__name__ == f"{CLASSES[kind]}Model"
    texts = ["", "Hello, wörld!", *lines[:6]]
    tokenizer = SentencePieceTokenizer(out / "sentencepiece.bpe.model")
    expected = [[0, *ids.tolist()[:38], 2] for ids in tokenizer.encode_lines(texts)]
    assert AutoTokenizer.from_pretrained(out)(texts, truncation=True)["input_ids"] == expected
    check_outputs(out, original)
    again = import_foreign(out, preset)
    assert again.symbols == original.symbols
    assert again.tokenizer.files == {"sentencepiece.bpe.model": model}
    assert again.config.encoder == original.config.encoder
    assert again.config.mask_join is original.config.mask_join
    encoder = encoder_of(original.weights).keys()
    kept = {name for name in encoder if "embed_clones" not in name}  # which no stock class has
    kept |= {name for name in original.weights if "lm_head" in name and preset == "mae_lm_roberta"}
    assert encoder_of(again.weights).keys() == encoder
    assert all(torch.equal(again.weights[name], original.weights[name]) for name in kept)


@KINDS
def test_the_vanilla_model_fills_in_masks(kind, changes, model, tmp_path):
    original = pretrained("mae_lm_roberta", changes, model)
    assert export_stock(original, tmp_path / "out") == f"{CLASSES[kind]}ForMaskedLM"
    check_outputs(tmp_path / "out", original)
    assert len(pipeline("fill-mask", str(tmp_path / "out"))("a <mask>.")) == 5


@KINDS
def test_classification_head_is_exported(kind, changes, model, tmp_path):
    original = pretrained("mae_lm", changes, model, heads=["sentence_classification_head"])
    assert export_stock(original, tmp_path / "out") == f"{CLASSES[kind]}ForSequenceClassification"
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokens = torch.tensor([[0, 5, 6, 7, 2], [0, 9, 2, 1, 1]])
    network, heads = build_all(original)
    with torch.no_grad():
        theirs = classifier(tokens, attention_mask=tokens.ne(1).long()).logits
        ours = heads["sentence_classification_head"](encoder_states(network, tokens, 1)[-1])
    assert_close(theirs, ours, 1e-5)  # single precision; of the order of 1


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
    with safe_open(tmp_path / "out/model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        assert file.metadata() == {"format": "pt"}


def test_without_tokenizer_states_are_compared_on_random_ids(tmp_path):
    export_stock(pretrained(), tmp_path / "out")
    assert not (tmp_path / "out/tokenizer.json").exists()
    assert "This directory has no tokenizer" in (tmp_path / "out/README.md").read_text()
    write_bundle(pretrained(), tmp_path / "bundle", add_tokenizer_and_card)
    with refused(r"--text some\.txt: .*bundle"):
        run_verb("export", tmp_path / "bundle", "--text", "some.txt", "--out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


REFUSED = {
    "buckets": (lambda: pretrained(changes={"relative_buckets": 16}), "--relative-buckets"),
    "distance": (lambda: pretrained(changes={"relative_max_distance": 64}), "--relative-max-distance"),
    "bucketing": (
        lambda: pretrained(changes={"relative_bucketing": RelativeBucketing.symmetric}),
        "--relative-bucketing",
    ),
    "pre-norm": (lambda: pretrained(changes={"pre_norm": True}), "post-norm"),
    "several heads": (lambda: pretrained(heads=["mnli", "sst"]), r"\(mnli, sst\)"),
    "another token at MPNet's padding": (lambda: pretrained(tokenizer=make("gpt2")), "MPNet takes id 1"),
    "an ordinary token there": (lambda: pretrained(tokenizer=make("unigram")), "MPNet takes id 1"),
    "tokens that fairseq does not know": (lambda: pretrained(tokenizer=with_unknown_tokens()), r"dict\.txt lacks"),
}


def with_unknown_tokens():
    return FairseqBPETokenizer("encoder.json", *fairseq_files(paragraphs(300), 300, missing=2))


@pytest.mark.parametrize("fault", REFUSED)
def test_models_without_counterpart_are_refused(fault, tmp_path):
    model, named = REFUSED[fault]
    with refused(named):
        export_stock(model(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


BIAS = "encoder.layer.1.output.dense.bias"
SPOILT = {
    "weights": lambda directory: change_weights(directory, lambda w: w | {BIAS: w[BIAS] + 1e-2 * torch.eye(16)[0]}),
    "nan": lambda directory: change_weights(directory, lambda w: w | {BIAS: w[BIAS] + float("nan")}),
    "missing": lambda directory: change_weights(directory, lambda w: {name: w[name] for name in w if name != BIAS}),
    "tokenizer": lambda directory: change_json(directory / "tokenizer.json", normalizer={"type": "Lowercase"}),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_nothing_is_written_when_the_export_differs(fault, model, tmp_path, monkeypatch):
    name = "write_tokenizer" if fault == "tokenizer" else "write_stock"
    write = getattr(exporter, name)

    def write_and_spoil(*arguments):
        write(*arguments)
        SPOILT[fault](arguments[-1])

    monkeypatch.setattr(exporter, name, write_and_spoil)
    original = pretrained("mae_lm", {}, model)
    original.weights["autoencoder.encoder.layers.1.fc2.bias"] = torch.zeros(16)  # as transformers makes a missing one
    named = BIAS if fault == "missing" else r"the export was not written: its (weights|states|tokenizer)"
    with refused(named):
        export_stock(original, tmp_path / "out", lines=["Aa Bb"])
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
    assert [text for text in MASK_WARNINGS if text in card] == [warning]
    assert f"`{preset}_tiny`" in card
    assert "updates | 7" in card
    assert "{" not in card


def test_a_full_disk_is_named_and_nothing_is_left(model, tmp_path):
    for size in (100, 20_000):  # the configuration, the weights
        with refused("out: File too large"), room_for(size):
            export_stock(pretrained("mae_lm", {}, model), tmp_path / "out")
        assert not list(tmp_path.iterdir())

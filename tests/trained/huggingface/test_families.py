"""Every family of encoders: import, the same computation, and the way back, bit for bit."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.core.heads import SpanHead
from mae_lm_fairseq.finetuning import sweep
from mae_lm_fairseq.finetuning.sentences.tasks import TASKS
from mae_lm_fairseq.trained.conversion import read_training_state
from mae_lm_fairseq.trained.hub import hub_interface
from mae_lm_fairseq.trained.huggingface import exporter
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign, network_options, notes
from mae_lm_fairseq.trained.info import ModelInfo
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.utils.files import read_json
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close, assert_equal
from tests.support.exports import train_sentencepiece
from tests.support.families import (
    change_json,
    change_weights,
    check_outputs,
    lines,
    load_stock,
    put_behind_link,
    round_trip,
    stock_logits,
    stock_states,
)
from tests.support.finetuning import WITHOUT_EPOCHS, run_here, train_here
from tests.support.glue import make_rows, write_official
from tests.support.refusals import refused
from tests.support.training import RECIPE
from tests.support.weights import with_head

CLOSE = 1e-5
pytestmark = pytest.mark.integration  # exports, trains and fine-tunes each of them
ALL = pytest.mark.parametrize("kind", FAMILIES)


@ALL
def test_ids_equal_on_a_thousand_lines(kind, stock, imported):
    tokenizer = open_pretrained(imported(kind)).tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(stock(kind))(lines(1000), add_special_tokens=False)["input_ids"]
    ours = [tokenizer.exported_ids[ids].tolist() for ids in tokenizer.encode_lines(lines(1000))]
    assert ours == theirs
    again = transformers.AutoTokenizer.from_pretrained(imported(kind))(lines(20))["input_ids"]
    assert again == transformers.AutoTokenizer.from_pretrained(stock(kind))(lines(20))["input_ids"]


@ALL
def test_states_and_logits_equal(kind, stock, imported):
    check_outputs(stock(kind), open_pretrained(imported(kind)))


def tasks(kind: str) -> list[str]:
    every = ["ForMaskedLM", "Model", "ForSequenceClassification", "ForQuestionAnswering"]
    return [task for task in every if (kind, task) != ("distilbert", "ForSequenceClassification")]


ROUND_TRIPS = [(kind, task, False) for kind in FAMILIES for task in tasks(kind)]
ROUND_TRIPS += [(kind, "ForMaskedLM", True) for kind in ("bert", "roberta", "mpnet", "distilbert")]


@pytest.mark.parametrize(("kind", "task", "is_untied"), ROUND_TRIPS)
def test_a_round_trip_is_bit_equal(kind, task, is_untied, stock, tmp_path):
    source = stock(kind, task, **({"tie_word_embeddings": False} if is_untied else {}))
    assert round_trip(source, tmp_path) == FAMILIES[kind].classes + task
    assert open_pretrained(tmp_path / "bundle").config.untie_output_weights == is_untied
    assert_same_model(source, tmp_path / "exported")


def assert_same_model(source, out):
    """Check that every weight, the meaning of the configuration and every byte of the tokenizer are equal."""
    before, after = (load_stock(path).state_dict() for path in (source, out))
    assert_equal(before, after)
    before, after = (transformers.AutoConfig.from_pretrained(path).to_dict() for path in (source, out))
    assert {**before, "_name_or_path": ""} == {**after, "_name_or_path": ""}
    files = {path.name for path in source.iterdir()} - {"config.json", "model.safetensors", "README.md"}
    assert files >= {"tokenizer.json", "tokenizer_config.json"}
    for name in files:
        assert (source / name).read_bytes() == (out / name).read_bytes()
    assert {path.name for path in out.iterdir()} == files | {"config.json", "model.safetensors", "README.md"}


@pytest.mark.parametrize("extra", ["bert.pooler.dense", "cls.seq_relationship"])
def test_other_weights_of_bert_are_kept(extra, copy_of, tmp_path):
    """bert-base-uncased has the pooler and the head of next sentence prediction beside the language model head."""
    source = copy_of("bert")
    shape = (2 if "cls" in extra else 16, 16)
    added = {f"{extra}.weight": torch.randn(shape), f"{extra}.bias": torch.randn(shape[0])}
    change_weights(source, lambda weights: weights | added)
    round_trip(source, tmp_path)
    assert_same_model(source, tmp_path / "exported")
    assert ("pooler" in (tmp_path / "exported/README.md").read_text()) is ("pooler" not in extra)
    written = load_file(tmp_path / "exported/model.safetensors")
    assert_equal({name: written[name] for name in added}, added)


def test_names_of_old_checkpoints(stock, copy_of, tmp_path):
    """bert-base-uncased still has the names that TensorFlow's layer norms had."""
    source = copy_of("bert")
    for ends in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        change_weights(source, lambda weights, ends=ends: {name.replace(*ends): weights[name] for name in weights})
    round_trip(source, tmp_path)
    assert_same_model(stock("bert"), tmp_path / "exported")


def test_a_head_trained_here_is_tied_whatever_the_original_says(stock, tmp_path):
    """An encoder without a head has no output weights that could be tied."""
    pretrained = import_foreign(stock("bert", "Model", tie_word_embeddings=False), "mae_lm_roberta")
    trained = replace(pretrained, about=ModelInfo())
    assert export_stock(trained, tmp_path / "stock") == "BertForMaskedLM"


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_missing_values_are_the_defaults_of_the_family(kind, copy_of):
    """transformers' default epsilon is 1e-12 and ours is 1e-5."""
    source = copy_of(kind)
    config = read_json(source / "config.json")
    del config["layer_norm_eps"]
    (source / "config.json").write_text(json.dumps(config))
    assert import_foreign(source, "mae_lm").config.layer_norm_eps == 1e-12


def test_pairs_are_explained_where_they_differ(stock, copy_of, imported):
    [note] = notes(stock("bert"))
    assert "here both texts have the first token type and two separators are between them" in note
    assert not notes(stock("roberta"))
    # The tokenizer decides, not the type of the model.
    source = copy_of("roberta")
    change_template(source, pair="<s> $A </s> $B </s>")
    [note] = notes(source)
    assert "here two separators are between them" in note
    pair = MAELMModel.from_pretrained(imported("roberta")).encode("the of", "is not")
    fast = transformers.AutoTokenizer.from_pretrained(stock("roberta"))
    order = open_pretrained(imported("roberta")).tokenizer.exported_ids
    assert order[pair].tolist() == fast("the of", "is not")["input_ids"]


@pytest.mark.parametrize(
    ("kind", "single"),
    [
        *(("roberta", single) for single in ("$A", "$A </s>", "<s> $A </s> </s>")),
        *(("bert", single) for single in ("[CLS]:1 $A:1 [SEP]:1", "[CLS] $A [SEP]:1")),
    ],
)
def test_other_special_tokens_or_token_types_around_a_text_are_refused(kind, single, copy_of):
    source = copy_of(kind)
    change_template(source, single=single)
    with refused("its tokenizer makes"):
        import_foreign(source, "mae_lm")


def change_template(directory, **changes):
    """Change what a saved tokenizer makes of single texts or pairs."""
    path = directory / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokens = tokenizer.get_vocab()
    specials = [(token, tokens[token]) for token in ("<s>", "</s>", "[CLS]", "[SEP]") if token in tokens]
    templates = {"single": "<s> $A </s>", **changes}
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(**templates, special_tokens=specials)
    tokenizer.save(str(path))


@pytest.mark.parametrize(
    ("kind", "task", "changes"),
    [
        ("bert", "ForMaskedLM", {"hidden_act": "relu"}),
        ("distilbert", "ForMaskedLM", {"activation": "relu"}),
        ("bert", "ForMaskedLM", {"is_decoder": True}),
        ("bert", "ForMaskedLM", {"position_embedding_type": "relative_key_query"}),
        ("mpnet", "ForMaskedLM", {"relative_attention_num_buckets": 64}),
        ("mpnet", "ForMaskedLM", {"pad_token_id": 0}),
        ("bert", "ForMaskedLM", {"pad_token_id": 3}),
        ("bert", "ForMaskedLM", {"model_type": "convbert"}),
        ("distilbert", "ForSequenceClassification", {}),
    ],
)
def test_what_computes_something_else_is_refused(kind, task, changes, copy_of):
    source = copy_of(kind, task)
    change_json(source / "config.json", **changes)
    with refused(r"only supports|the id 0|its model type is|uses ReLU|a decoder|no longer"):
        import_foreign(source, "mae_lm")


@pytest.mark.parametrize("name", ["kept.safetensors", "tokenizer.json"])
def test_a_link_among_the_kept_files_is_refused(name, imported, tmp_path):
    """An export would hold a copy of what it leads to."""
    bundle = shutil.copytree(imported("bert"), tmp_path / "bundle")
    put_behind_link(bundle / "original" / name, tmp_path)
    with refused(f"{name} is a link"):
        open_pretrained(bundle)


def test_another_network_with_the_same_tokenizer_becomes_an_ordinary_class(imported, tmp_path):
    """The kept files belong to the network that was imported."""
    pretrained = open_pretrained(imported("bert"))
    other = replace(pretrained, config=replace(pretrained.config, encoder_attention_heads=2))
    assert export_stock(other, tmp_path / "out") == "RobertaForMaskedLM"
    config = read_json(tmp_path / "out/config.json")
    assert (config["layer_norm_eps"], config["pad_token_id"]) == (1e-12, 0)


PREPARATION = ["--workers 1 --max-unk-rate 1"]


def test_a_sentencepiece_model_of_other_tokens_is_not_taken(copy_of):
    """camembert-base has one, whose pieces are not the tokens of its tokenizer.json."""
    source = copy_of("camembert")
    (source / "sentencepiece.bpe.model").write_bytes(train_sentencepiece(lines(200), vocab_size=150))
    tokenizer = import_foreign(source, "mae_lm").tokenizer
    assert list(tokenizer.files) == ["tokenizer.json"]
    assert tokenizer.exported_ids[:3].tolist() == [5, 1, 6]  # <s>, <pad>, </s>


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("bert", "BertForSequenceClassification"),
        ("camembert", "CamembertForSequenceClassification"),
        ("distilbert", "RobertaForSequenceClassification"),
    ],
)
def test_fine_tuning_starts_from_an_import_and_ends_in_its_class(kind, architecture, imported, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "run_all", run_here)
    write_official(tmp_path / "glue", TASKS["RTE"], make_rows(TASKS["RTE"]))
    model = imported(kind, "mae_lm")
    if kind == "camembert":  # a checkpoint, as of further pretraining of the import
        torch.save(read_training_state(model), tmp_path / "continued.pt")
        model = [tmp_path / "continued.pt", "--data-bin", model]
    else:
        model = [model]
    words = ["RTE", *model, "--glue-dir", tmp_path / "glue", "--out", tmp_path / "rte", "--seeds 1"]
    run_verb("finetune glue", *words, "--max-updates 3 --learning-rates 1e-3")
    assert export_stock(open_pretrained(tmp_path / "rte/model"), tmp_path / "stock") == architecture
    assert load_stock(tmp_path / "stock").config.id2label == dict(enumerate(TASKS["RTE"].labels))
    ours = MAELMModel.from_pretrained(tmp_path / "rte/model")
    for texts in (["the cat sat on the mat"], ["the cat sat on the mat", "a dog ran"]):
        logits = ours.predict("RTE", ours.encode(*texts), return_logits=True)
        assert_close(logits, stock_logits(tmp_path / "stock", *texts), CLOSE)
    # An import of the export is an import: its files stay as they are.
    export_stock(import_foreign(tmp_path / "stock", "mae_lm"), tmp_path / "again")
    if kind != "distilbert":
        assert_same_model(tmp_path / "stock", tmp_path / "again")


def with_span_head(kind, imported) -> Pretrained:
    """Return an imported encoder as if it had been fine-tuned here on questions."""
    pretrained = open_pretrained(imported(kind, "mae_lm"))
    torch.manual_seed(1)
    weights = with_head(pretrained.weights, "span", SpanHead(16, init_std=0.5))
    return replace(pretrained, weights=weights, about=ModelInfo(task="question_answering"))


@ALL
def test_stock_transformers_answers_as_the_fine_tuned_import(kind, imported, tmp_path):
    answers = with_span_head(kind, imported)
    labels = {"id2label": {str(number): f"LABEL_{number}" for number in range(3)}}  # of another task before
    files = answers.original.files
    files = {**files, "config.json": json.dumps(json.loads(files["config.json"]) | labels).encode()}
    original = replace(answers, original=replace(answers.original, files=files))
    assert export_stock(original, tmp_path / "stock") == f"{FAMILIES[kind].classes}ForQuestionAnswering"
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "stock")
    model = load_stock(tmp_path / "stock")
    texts = ("the of", "the language of the models")
    hub = hub_interface(original)
    states = hub.extract_features(hub.encode(*texts))
    with torch.no_grad():
        theirs = model(**fast(*texts, return_tensors="pt"))
        ours = hub.model.classification_heads["span"](states)
    assert_close(ours, torch.stack([theirs.start_logits, theirs.end_logits], -1), CLOSE)


def test_an_export_that_joins_pairs_otherwise_is_refused(imported, tmp_path, monkeypatch):
    monkeypatch.setattr(exporter, "pair_differences", lambda fast: [])
    with refused("joins pairs otherwise than in training, where both texts have the first"):
        export_stock(with_span_head("bert", imported), tmp_path / "stock")


IN_THE_GATE = dict(zip(FAMILIES, itertools.cycle(PRESETS)))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        pytest.param(kind, preset, marks=[] if IN_THE_GATE[kind] == preset else pytest.mark.slow)
        for kind in FAMILIES
        for preset in PRESETS
    ],
)
def test_pretraining_continues_and_ends_in_the_stock_class(kind, preset, stock, imported, tmp_path):
    bundle = imported(kind, preset)
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("\n".join(lines(60, seed=len(split))) + "\n", encoding="utf-8")
    splits = [word for split in ("train", "valid") for word in (f"--{split}", str(tmp_path / f"{split}.txt"))]
    run_verb("prepare", *splits, "--tokenizer", bundle, "--destdir", tmp_path / "data", *PREPARATION)
    checkpoint = continue_pretraining(bundle, tmp_path)
    architecture = export_stock(open_pretrained(checkpoint, bundle), tmp_path / "stock")
    assert architecture == FAMILIES[kind].classes + ("ForMaskedLM" if preset == "mae_lm_roberta" else "Model")

    text = "the language of the models"
    ours = MAELMModel.from_pretrained(checkpoint, bundle).extract_features(text)
    assert_close(ours, stock_states(tmp_path / "stock", text), CLOSE)
    before = MAELMModel.from_pretrained(bundle).extract_features(text)
    assert not torch.allclose(ours, before, atol=1e-3)
    # Without the import, the stock class is another one, which computes the same.
    other = export_stock(open_pretrained(checkpoint, tmp_path / "data"), tmp_path / "other")
    assert other.startswith("MPNet" if kind == "mpnet" else "Roberta")


def continue_pretraining(bundle: Path, directory: Path) -> Path:
    """Train a few updates in this process, and return the checkpoint."""
    network = network_options(open_pretrained(bundle))
    save = directory / "checkpoints"
    options = ["--finetune-from-model", bundle, *network, "--max-update 3 --lr 0.01 --tokens-per-sample 32"]
    train_here(directory / "data", *RECIPE, *WITHOUT_EPOCHS, "--save-dir", save, *options)
    return save / "checkpoint_last.pt"

"""Import of stock Hugging Face directories and of fairseq's RoBERTa."""

import contextlib
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel, base_architecture
from safetensors.torch import load_file

from mae_lm_fairseq.core.config import MaskJoin
from mae_lm_fairseq.trained.conversion import with_preset
from mae_lm_fairseq.trained.huggingface.comparison import encoder_states
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.reading import build, build_all
from mae_lm_fairseq.utils.errors import UserError
from tests.support.comparisons import assert_close, assert_equal
from tests.support.families import change_json, change_weights, check_outputs
from tests.support.huggingface import save_model
from tests.support.pickles import Calls
from tests.support.refusals import refused
from tests.support.wrapped import stock as wrapped_stock

CLOSE = 1e-5
TOKENS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 6, 2, 1, 1]])


@pytest.mark.parametrize("kind", ["mpnet", "roberta"])
def test_bare_models_and_poolers(kind, stock):
    source = stock(kind, "Model")
    assert any("pooler" in name for name in load_file(source / "model.safetensors"))
    imported = import_foreign(source, "mae_lm")
    check_outputs(source, imported)
    assert imported.config.mask_join is MaskJoin.decoder
    assert imported.config.decoder_layers == 4
    assert imported.about.untrained == ("decoder", "lm_head")
    again = import_foreign(source, "mae_lm")  # the same random head
    assert_equal(again.weights, imported.weights)
    other = import_foreign(source, "mae_lm", seed=2)
    head = "autoencoder.lm_head.dense.weight"
    assert not torch.equal(other.weights[head], imported.weights[head])


@pytest.mark.parametrize("preset", ["mae_lm_exlm", "mae_lm_mask_later"])
def test_a_preset_that_treats_masks_otherwise_predicts_nothing_yet(preset, stock):
    assert import_foreign(stock("roberta"), "mae_lm_roberta").about.untrained == ()
    assert import_foreign(stock("roberta"), preset).about.untrained == ("training with its [MASK] tokens",)


@pytest.mark.parametrize(("kind", "is_own"), [("mpnet", False), ("roberta", True)])
def test_the_new_decoder_of_an_import_is_that_of_adapt(kind, is_own, stock):
    source = stock(kind, "Model", num_hidden_layers=4)
    imported = import_foreign(source, "mae_lm")
    adapted = with_preset(import_foreign(source, "mae_lm_roberta"), "mae_lm", seed=1)
    assert imported.config == adapted.config
    assert imported.config.decoder_relative_buckets == 32
    decoder = {name: weight for name, weight in imported.weights.items() if name.startswith("autoencoder.decoder.")}
    assert_equal({name: adapted.weights[name] for name in decoder}, decoder)
    bias = imported.weights["autoencoder.decoder.relative_bias.weight"]
    encoder = imported.weights.get("autoencoder.encoder.relative_bias.weight")
    assert encoder is None if is_own else torch.equal(bias, encoder)


def test_files_outside_of_the_directory_are_not_read(copy_of, tmp_path):
    source = copy_of("roberta")
    other = shutil.copytree(source, tmp_path / "other") / "tokenizer.json"
    other.write_text(other.read_text().replace('"a"', '"secret"'))
    (tmp_path / "other" / "vocab.json").write_text('{"secret": 4}')
    files = {"vocab_file": "../other/vocab.json", "tokenizer_file": str(other)}
    change_json(source / "tokenizer_config.json", **files)
    assert "secret" not in import_foreign(source, "mae_lm").symbols


@pytest.mark.parametrize("name", ["lm_head.decoder.weight", "roberta.adapter.weight"])
def test_weights_that_would_be_left_out_are_refused(name, copy_of):
    source = copy_of("roberta")
    change_weights(source, lambda weights: weights | {name: torch.zeros(12, 16)})
    with refused(f"{name} (differs from|is unknown)"):
        import_foreign(source, "mae_lm")


def test_a_pickle_that_would_run_code_is_refused(copy_of, tmp_path):
    source = copy_of("roberta")
    (source / "model.safetensors").unlink()
    malicious = Calls(exec, "raise SystemExit('the code in the file ran')")
    torch.save({"weight": torch.zeros(1), "evil": malicious}, source / "pytorch_model.bin")
    torch.save({"model": {}, "args": malicious}, tmp_path / "model.pt")
    for path in (source, tmp_path / "model.pt"):
        with refused(r"refused .*: loading it could run code"):
            import_foreign(path, "mae_lm")


def test_code_in_a_directory_is_not_run(copy_of, tmp_path):
    """transformers would ask on the terminal whether to run it."""
    source = copy_of("roberta")
    tokenizer = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": [None, "evil.Evil"]}}
    change_json(source / "tokenizer_config.json", **tokenizer)
    change_json(source / "config.json", auto_map={"AutoConfig": "evil.Evil"})
    (source / "evil.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\nclass Evil: pass\n")
    with contextlib.suppress(UserError):  # or the stock class is used instead
        import_foreign(source, "mae_lm")
    assert not (tmp_path / "it ran").exists()


def fairseq_roberta(directory, classes=0, **options):
    """Save a randomly initialised checkpoint of fairseq's RoBERTa and return the model."""
    directory.mkdir()
    dictionary = Dictionary()
    for word in "abcdefg":
        dictionary.add_symbol(word)
    dictionary.save(str(directory / "dict.txt"))
    dictionary.add_symbol("<mask>")
    args = Namespace(
        arch="roberta",
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=32,
        encoder_attention_heads=4,
        max_positions=40,
        tokens_per_sample=40,
        **options,
    )
    base_architecture(args)
    task = Namespace(source_dictionary=dictionary, dictionary=dictionary)
    torch.manual_seed(0)
    model = RobertaModel.build_model(args, task).eval()
    if classes:
        model.register_classification_head("mnli", num_classes=classes)
        model.eval()
    torch.save({"args": args, "cfg": None, "model": model.state_dict()}, directory / "model.pt")
    return model


@pytest.mark.parametrize("is_untied", [False, True], ids=["tied", "untied"])
def test_fairseq_roberta_computes_the_same_here(is_untied, tmp_path):
    model = fairseq_roberta(tmp_path / "roberta", untie_weights_roberta=is_untied)
    imported = import_foreign(tmp_path / "roberta/model.pt", "mae_lm_roberta")
    assert imported.config.untie_output_weights == is_untied
    network = build(imported)
    ours = encoder_states(network, TOKENS, 1)
    logits, extra = model(TOKENS, return_all_hiddens=True)
    for their, our in zip(extra["inner_states"], ours, strict=True):
        assert_close(our[TOKENS.ne(1)], their.transpose(0, 1)[TOKENS.ne(1)], CLOSE)
    assert_close(network.lm_head(ours[-1])[TOKENS.ne(1)], logits[TOKENS.ne(1)], CLOSE)


def test_a_head_with_another_activation_function_is_refused(tmp_path):
    fairseq_roberta(tmp_path / "roberta", classes=3, pooler_activation_fn="relu")
    with refused("pooler_activation_fn .*relu"):
        import_foreign(tmp_path / "roberta/model.pt", "mae_lm")


def test_fairseq_roberta_of_an_older_version_and_with_a_head(tmp_path):
    model = fairseq_roberta(tmp_path / "roberta", classes=3)
    path = tmp_path / "roberta/model.pt"
    state = torch.load(path, weights_only=False)  # written by this test
    older = {}
    for name, weight in state["model"].items():
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            parts = [state["model"][name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            older[name.replace("q_proj.", "in_proj_").replace("encoder.s", "decoder.s", 1)] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            name = name.replace("layernorm_embedding", "emb_layer_norm")
            older["decoder." + name.removeprefix("encoder.") if name.startswith("encoder.") else name] = weight
    torch.save({**state, "model": older}, path)
    imported = import_foreign(path, "mae_lm")
    assert not any("lm_head" in name for name in imported.weights)
    states = encoder_states(build(imported), TOKENS, 1)[-1]
    theirs, _ = model(TOKENS, features_only=True, classification_head_name="mnli")
    assert_close(build_all(imported)[1]["mnli"](states), theirs, CLOSE)


def save_classifier(directory, kind, **pooling):
    def build(kind, vocabulary, pad):
        return wrapped_stock(kind, "AutoModelForSequenceClassification", num_labels=3, **pooling)

    return save_model(directory / kind, kind, ["a"], build)


@pytest.mark.parametrize(("kind", "pooling"), [("electra", {}), ("modernbert", {"classifier_pooling": "cls"})])
def test_wrapped_classifiers_that_read_the_first_token_are_imported(kind, pooling, tmp_path):
    model = import_foreign(save_classifier(tmp_path, kind, **pooling), "mae_lm_roberta")
    assert len(model.about.finetuned_on.labels) == 3


def test_wrapped_classifiers_that_read_the_mean_are_refused(tmp_path):
    with refused("mean"):
        import_foreign(save_classifier(tmp_path, "modernbert", classifier_pooling="mean"), "mae_lm_roberta")

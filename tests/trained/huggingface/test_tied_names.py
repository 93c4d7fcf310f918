"""Weights under their other names, and configurations without some values: what transformers reads, import reads."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.comparison import encoder_states
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.names import EMBEDDINGS, LM_BIAS, LM_WEIGHT, Part, names_of
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.hashes import HASHES
from tests.support.exports import pretrained
from tests.support.families import stock_model


def rewrite(directory, change):
    weights = load_file(directory / "model.safetensors")
    save_file(change(weights), directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize("what", ["weight", "bias"])
@pytest.mark.parametrize("keeps", [False, True])
def test_tied_weights_are_read_under_either_name(kind, what, keeps, tmp_path):
    stock_model(tmp_path, kind)
    naming = FAMILIES[kind].naming
    usual = names_of([Part.encoder, Part.lm_head], naming)[EMBEDDINGS if what == "weight" else LM_BIAS]
    other = names_of([Part.output_weights], naming)[LM_WEIGHT if what == "weight" else LM_BIAS]
    rewrite(tmp_path, lambda weights: weights | {other: weights[usual].clone()})
    if not keeps and other != usual:
        rewrite(tmp_path, lambda weights: {name: weights[name] for name in weights if name != usual})
    found = import_foreign(tmp_path, "mae_lm_roberta")
    order = torch.from_numpy(found.tokenizer.exported_ids)
    ids = torch.tensor([[0, *found.tokenizer.encode_lines(["that it is for models"])[0].tolist(), 2]])
    stock = getattr(transformers, f"{FAMILIES[kind].classes}ForMaskedLM").from_pretrained(tmp_path).eval()
    network = build(found)
    with torch.no_grad():
        theirs = stock(order[ids], output_hidden_states=True)
        ours = encoder_states(network, ids, 1)
        logits = network.lm_head(ours[-1])
    torch.testing.assert_close(ours[-1], theirs.hidden_states[-1], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, theirs.logits[..., order], rtol=1e-5, atol=2e-5)
    if keeps and other != usual:
        rewrite(tmp_path, lambda weights: weights | {other: weights[other] + 1})
        with pytest.raises(UserError, match=f"{other} differs from {usual}"):
            import_foreign(tmp_path, "mae_lm_roberta")


def test_an_encoder_of_which_weights_are_missing_is_not_measured(tmp_path):
    """AutoModel has random values for them."""
    stock_model(tmp_path, "roberta")
    rewrite(tmp_path, lambda weights: {f"module.{name}": weight for name, weight in weights.items()})
    with pytest.raises(UserError, match=r"roberta\.embeddings\S* is missing"):
        open_model(tmp_path, None)


def test_a_number_of_labels_is_enough(tmp_path):
    stock_model(tmp_path, "roberta", "ForSequenceClassification", num_labels=3)
    config = json.loads((tmp_path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(
        json.dumps({name: config[name] for name in config if "label" not in name} | {"num_labels": 3})
    )
    labels = transformers.AutoConfig.from_pretrained(tmp_path).id2label.values()
    assert import_foreign(tmp_path, "mae_lm").about.finetuned_on.labels == tuple(labels)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "is damaged"),
        *((content, "has other content") for content in ("[]", "null", '"x"')),
        *((content, "lacks 'network'") for content in ("{}", '{"model_type": "mae_lm"}')),
    ],
)
def test_a_configuration_that_is_none_is_named(content, fault, tmp_path):
    write_bundle(pretrained(), tmp_path / "bundle")
    (tmp_path / "bundle" / "config.json").write_text(content)
    (tmp_path / "bundle" / HASHES).unlink()  # bundles of earlier versions have none
    with pytest.raises(UserError, match=rf"config\.json {fault}"):
        open_pretrained(tmp_path / "bundle")

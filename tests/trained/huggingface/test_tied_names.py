"""Weights under their other names, and configurations without some values: what transformers reads, import reads."""

import json

import pytest
import transformers

from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.names import EMBEDDINGS, LM_BIAS, LM_WEIGHT, Part, names_of
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hashes import HASHES
from tests.support.exports import pretrained
from tests.support.families import change_weights, check_outputs
from tests.support.refusals import refused


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize("what", ["weight", "bias"])
@pytest.mark.parametrize("keeps", [False, True])
def test_tied_weights_are_read_under_either_name(kind, what, keeps, copy_of):
    source = copy_of(kind)
    naming = FAMILIES[kind].naming
    usual = names_of([Part.encoder, Part.lm_head], naming)[EMBEDDINGS if what == "weight" else LM_BIAS]
    other = names_of([Part.output_weights], naming)[LM_WEIGHT if what == "weight" else LM_BIAS]
    change_weights(source, lambda weights: weights | {other: weights[usual].clone()})
    if not keeps and other != usual:
        change_weights(source, lambda weights: {name: weights[name] for name in weights if name != usual})
    check_outputs(source, import_foreign(source, "mae_lm_roberta"))
    if keeps and other != usual:
        change_weights(source, lambda weights: weights | {other: weights[other] + 1})
        with refused(f"{other} differs from {usual}"):
            import_foreign(source, "mae_lm_roberta")


def test_an_encoder_of_which_weights_are_missing_is_not_measured(copy_of):
    """AutoModel has random values for them."""
    source = copy_of("roberta")
    change_weights(source, lambda weights: {f"module.{name}": weight for name, weight in weights.items()})
    with refused(r"roberta\.embeddings\S* is missing"):
        open_model(source, None)


def test_a_number_of_labels_is_enough(copy_of):
    source = copy_of("roberta", "ForSequenceClassification", num_labels=3)
    path = source / "config.json"
    config = read_json(path)
    path.write_text(json.dumps({name: config[name] for name in config if "label" not in name} | {"num_labels": 3}))
    labels = transformers.AutoConfig.from_pretrained(source).id2label.values()
    assert import_foreign(source, "mae_lm").about.finetuned_on.labels == tuple(labels)


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
    (tmp_path / "bundle/config.json").write_text(content)
    (tmp_path / "bundle" / HASHES).unlink()  # bundles of earlier versions have none
    with refused(rf"config\.json {fault}"):
        open_pretrained(tmp_path / "bundle")

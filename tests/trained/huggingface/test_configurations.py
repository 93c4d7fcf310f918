"""Values in a configuration that cannot be used are named, and an intact file is not called damaged."""

import json
import shutil

import pytest

from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json
from mae_lm_fairseq.utils.hugging_face import configuration_errors
from tests.support.huggingface import save_model, tiny_masked_lm
from tests.support.refusals import refused

DROPPED = object()
"""Stands for a key that a configuration lacks."""


@pytest.fixture(scope="module")
def models(tmp_path_factory, stock):
    """Return the directories of a converted model, ``bert``, and of a wrapped one, ``albert``."""
    albert = save_model(tmp_path_factory.mktemp("models") / "albert", "albert", ["a", "b"], tiny_masked_lm)
    return {"bert": stock("bert"), "albert": albert}


@pytest.fixture
def imported(models, tmp_path):
    """Return a function that imports a model after a change of its configuration."""

    def run(kind, change):
        path = shutil.copytree(models[kind], tmp_path / "model") / "config.json"
        config = read_json(path) | change
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not DROPPED}))
        return import_foreign(tmp_path / "model", "mae_lm_roberta")

    return run


@pytest.mark.parametrize("kind", ["bert", "albert"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", DROPPED),
        ("model_type", ["bert"]),
        ("architectures", 7),
        ("hidden_size", "16"),
        ("hidden_size", 0),
        ("max_position_embeddings", None),
        ("num_labels", "three"),
        ("num_hidden_layers", 7),
        ("intermediate_size", -1),
        ("id2label", 5),
        ("hidden_act", "none"),
    ],
)
def test_a_value_that_cannot_be_used_is_no_damage(kind, name, value, imported):
    try:
        imported(kind, {name: value})
    except UserError as error:
        message = str(error)
    else:  # ALBERT has one layer, which it uses as often as it likes
        assert (kind, name) == ("albert", "num_hidden_layers")
        return
    assert "damaged" not in message
    assert "other content" not in message


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("bert", "model_type", DROPPED),
        ("bert", "architectures", 7),
        ("bert", "pad_token_id", None),
        ("bert", "max_position_embeddings", "40"),
        ("albert", "inner_group_num", 2),
        ("albert", "hidden_size", "16"),
        ("albert", "layer_norm_eps", None),
    ],
)
def test_a_value_is_refused_by_name(kind, name, value, imported):
    with refused(name):
        imported(kind, {name: value})


@pytest.mark.parametrize("error", [MemoryError("no memory"), ModuleNotFoundError("torchvision")])
def test_other_errors_are_not_blamed_on_a_configuration(error):
    with pytest.raises(type(error)), configuration_errors():
        raise error

"""Weights in several files: a valid index, and indexes that are damaged or lead out of the directory."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.huggingface.weight_files import read_weights
from mae_lm_fairseq.utils.files import read_json
from tests.support.comparisons import assert_equal
from tests.support.families import as_in_the_hubs_cache, change_json, put_behind_link
from tests.support.refusals import refused

SAFE, PICKLED = ("model.safetensors", "model-{}.safetensors"), ("pytorch_model.bin", "pytorch_model-{}.bin")
BOTH = pytest.mark.parametrize("names", [SAFE, PICKLED], ids=["safetensors", "pickles"])


@pytest.fixture
def whole(copy_of):
    """Return the directory of a model in one file."""
    return copy_of("roberta")


def split(directory, names):
    """Split the file of weights in two, and return the path of the index."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    places = {name: names[1].format(number % 2) for number, name in enumerate(sorted(weights))}
    for place in set(places.values()):
        part = {name: weights[name] for name in places if places[name] == place}
        torch.save(part, directory / place) if place.endswith("bin") else save_file(part, directory / place)
    index = directory / f"{names[0]}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    return index


@BOTH
def test_several_files_hold_what_one_did(names, whole):
    before = import_foreign(whole, "mae_lm_roberta").weights
    split(whole, names)
    after = import_foreign(whole, "mae_lm_roberta").weights
    assert_equal(before, after)


def test_changed_bytes_in_a_pickle_are_not_read_as_weights(whole):
    """torch does not check the sums of its files."""
    weights = load_file(whole / "model.safetensors")
    (whole / "model.safetensors").unlink()
    torch.save(weights, whole / "pytorch_model.bin")
    content = (whole / "pytorch_model.bin").read_bytes()
    part = next(iter(weights.values())).numpy().tobytes()[:32]
    assert part in content
    (whole / "pytorch_model.bin").write_bytes(content.replace(part, part[::-1]))
    with refused(r"pytorch_model\.bin: damaged"):
        read_weights(whole)


def test_a_directory_of_the_hubs_cache(whole):
    split(whole, SAFE)
    files = import_foreign(as_in_the_hubs_cache(whole), "mae_lm_roberta").original.files
    assert files.keys() >= {"config.json", "tokenizer.json"}


@pytest.mark.parametrize("path", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "\0.bin", 5])
def test_an_index_cannot_name_files_elsewhere(path, whole):
    save_file({"x": torch.zeros(1)}, whole.parent / "secret.safetensors")
    index = split(whole, SAFE)
    places = read_json(index)["weight_map"]
    change_json(index, weight_map=places | {min(places): path})
    with refused(r"index\.json has other content"):
        import_foreign(whole, "mae_lm")


@pytest.mark.parametrize("name", ["model-0.safetensors", "tokenizer_config.json"])
def test_a_link_that_leads_elsewhere_is_refused(name, whole):
    split(whole, SAFE)
    put_behind_link(whole / name, whole.parent)
    with refused(f"{name} is a link"):
        import_foreign(whole, "mae_lm")

"""Weights in several files: a valid index, and indexes that are damaged or lead out of the directory."""

import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mae_lm_fairseq.huggingface.importer import import_foreign
from mae_lm_fairseq.huggingface.weight_files import read_weights
from mae_lm_fairseq.utils.errors import UserError
from tests.fault_injection.damage import damaged_json
from tests.support.families import stock_model

SAFE, PICKLED = ("model.safetensors", "model-{}.safetensors"), ("pytorch_model.bin", "pytorch_model-{}.bin")
BOTH = pytest.mark.parametrize("names", [SAFE, PICKLED], ids=["safetensors", "pickles"])


@pytest.fixture
def whole(tmp_path):
    """Save a model in one file and return the directory."""
    stock_model(tmp_path / "stock", "roberta")
    return tmp_path / "stock"


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


def point(index, to):
    """Let the first weight's file be another one."""
    content = json.loads(index.read_bytes())
    content["weight_map"][min(content["weight_map"])] = to
    index.write_text(json.dumps(content))


@BOTH
def test_several_files_hold_what_one_did(names, whole):
    before = import_foreign(whole, "mae_lm_roberta").weights
    split(whole, names)
    after = import_foreign(whole, "mae_lm_roberta").weights
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_changed_bytes_in_a_pickle_are_not_read_as_weights(whole):
    """torch does not check the sums of its files."""
    weights = load_file(whole / "model.safetensors")
    (whole / "model.safetensors").unlink()
    torch.save(weights, whole / "pytorch_model.bin")
    content = (whole / "pytorch_model.bin").read_bytes()
    part = next(iter(weights.values())).numpy().tobytes()[:32]
    assert part in content
    (whole / "pytorch_model.bin").write_bytes(content.replace(part, part[::-1]))
    with pytest.raises(UserError, match=r"pytorch_model\.bin: damaged, missing, or not a file of weights"):
        read_weights(whole)


def test_a_directory_of_the_hubs_cache(whole, tmp_path):
    """There, files are links to blobs."""
    split(whole, SAFE)
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in whole.iterdir():
        path.rename(blobs / f"blob-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob-{path.name}")
    assert import_foreign(snapshot, "mae_lm_roberta").original.files.keys() >= {"config.json", "tokenizer.json"}


@BOTH
@pytest.mark.parametrize(
    "path",
    ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", "config.json", 5, None, ["x"], "\0.bin"],
)
def test_an_index_cannot_name_files_elsewhere(path, names, whole):
    save_file({"x": torch.zeros(1)}, whole.parent / "secret.safetensors")
    index = split(whole, names)
    point(index, path)
    with pytest.raises(UserError, match=r"not the name of a file in its directory|no such file|is damaged"):
        import_foreign(whole, "mae_lm")


@BOTH
def test_a_link_that_leads_elsewhere_is_refused(names, whole):
    index = split(whole, names)
    place = min(json.loads(index.read_bytes())["weight_map"].values())
    (whole / place).rename(whole.parent / place)
    (whole / place).symlink_to(whole.parent / place)
    with pytest.raises(UserError, match=rf"{place} is a link to another directory; put the file itself there"):
        import_foreign(whole, "mae_lm")


def test_a_link_among_the_tokenizers_files_is_refused(whole):
    """The imported model holds a copy of the tokenizer."""
    (whole / "tokenizer_config.json").rename(whole.parent / "elsewhere")
    (whole / "tokenizer_config.json").symlink_to(whole.parent / "elsewhere")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is a link to another directory"):
        import_foreign(whole, "mae_lm")


class Malicious:
    """Object that executes code when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('the code in the file ran')",)


def test_code_in_one_of_several_pickles_is_refused(whole):
    index = split(whole, PICKLED)
    place = min(json.loads(index.read_bytes())["weight_map"].values())
    torch.save({"weight": torch.zeros(1), "evil": Malicious()}, whole / place)
    with pytest.raises(UserError, match=r"refused .*pytorch_model-0\.bin: loading it could run code"):
        import_foreign(whole, "mae_lm")
    (whole / place).write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(UserError, match=r"refused .*pytorch_model-0\.bin: loading it could run code"):
        import_foreign(whole, "mae_lm")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_damage_of_an_index_is_refused_or_harmless(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("index")
    save_file({"a": torch.zeros(1), "b": torch.ones(1)}, directory / "model-0.safetensors")
    index = directory / "model.safetensors.index.json"
    valid = json.dumps({"weight_map": {"a": "model-0.safetensors", "b": "model-0.safetensors"}}).encode()
    index.write_bytes(data.draw(damaged_json(valid)))
    try:
        assert read_weights(directory).keys() <= {"a", "b"}
    except UserError as refusal:
        assert len(str(refusal).splitlines()) == 1  # noqa: PT017

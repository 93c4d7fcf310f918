"""Reading and writing of checkpoints and bundles: bit-equal round trips, and error messages for inconsistent files."""

import json
import os
import pickle
import shutil

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.opening import describe, open_pretrained
from mae_lm_fairseq.trained.reading import build, read_bundle, read_checkpoint
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, read_json
from mae_lm_fairseq.utils.hashes import HASHES
from tests.fault_injection.damage import damaged
from tests.support.bundles import VARIANTS, fairseq_model, saved
from tests.support.commands import run_verb
from tests.support.comparisons import assert_equal
from tests.support.disks import room_for
from tests.support.families import change_json, change_weights
from tests.support.pickles import Calls
from tests.support.refusals import refused

HEADED = ["classification", "regression", "span"]


@pytest.mark.parametrize("name", [*VARIANTS, *HEADED])
def test_bundle_holds_what_the_checkpoint_holds(name, checkpoints, bundles, text_data):
    checkpoint, bundle = open_pretrained(checkpoints[name], text_data), open_pretrained(bundles[name])
    assert bundle.config == checkpoint.config
    assert bundle.symbols == checkpoint.symbols
    assert bundle.tokenizer.path.read_bytes() == (text_data / "sentencepiece.bpe.model").read_bytes()
    assert bundle.about == checkpoint.about
    weights = saved(checkpoints[name])["model"]
    assert bundle.weights.keys() == checkpoint.weights.keys() == weights.keys()
    assert_equal(bundle.weights, weights)


@pytest.mark.parametrize("name", VARIANTS)
def test_network_is_the_trained_one(name, text_data, checkpoints, bundles):
    """The logits are bit-equal to those of the model that fairseq builds and loads."""
    model = fairseq_model(name, checkpoints, text_data)
    network = build(open_pretrained(bundles[name]))
    tokens = torch.tensor([[0, 5, model.mask, 7, 8, 2], [0, 9, model.mask, model.mask, 2, 1]])
    layout = batch_layout(tokens, tokens.eq(model.mask), model.pad, model.mask)
    with torch.no_grad():
        logits, _ = model(tokens, masked_tokens=tokens.eq(model.mask))
        assert torch.equal(network(tokens, layout), logits)
    assert network.lm_head.weight is network.encoder.embed_tokens.weight
    assert not any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers()))


def test_training_leaves_the_bundle_alone(bundles):
    """Weights may be memory-mapped from the file; writing to them must stay in memory."""
    file = bundles["mae_lm_tiny"] / "model.safetensors"
    before = file.read_bytes()
    network = build(open_pretrained(bundles["mae_lm_tiny"]))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert file.read_bytes() == before


def test_weights_are_aligned_as_by_torch(bundles):
    """Matrix products round differently if weights are not aligned as torch aligns them.

    The data in the file is also aligned, so that large weights need no copy.
    """
    pretrained = open_pretrained(bundles["mae_lm_tiny"])
    assert {weight.data_ptr() % 64 for weight in pretrained.weights.values()} == {0}
    content = (bundles["mae_lm_tiny"] / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(content[:8], "little")) % 64 == 0


def test_the_largest_weight_is_mapped_into_memory_and_not_copied(bundles):
    bundle = bundles["mae_lm_tiny"]
    weights = open_pretrained(bundle).weights
    address = weights["autoencoder.encoder.embed_tokens.weight"].data_ptr()
    mapped = []
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if line.rstrip().endswith(str(bundle / "model.safetensors")):
                first, end = line.split()[0].split("-")
                mapped.append(range(int(first, 16), int(end, 16)))
    assert any(address in region for region in mapped)


@pytest.fixture
def rebundled(checkpoints, text_data, tmp_path):
    """Return a function that writes a checkpoint of a changed content, and its bundle, and opens the bundle."""

    def run(change):
        state = saved(checkpoints["mae_lm_tiny"])
        change(state)
        torch.save(state, tmp_path / "changed.pt")
        write_bundle(read_checkpoint(tmp_path / "changed.pt", text_data), tmp_path / "bundle")
        return open_pretrained(tmp_path / "bundle")

    return run


def test_half_precision_is_kept(rebundled):
    weights = rebundled(
        lambda state: state.update(model={name: x.half() for name, x in state["model"].items()})
    ).weights
    assert {weight.dtype for weight in weights.values()} == {torch.float16}


def test_about_has_the_origin_without_paths(bundles):
    about = open_pretrained(bundles["classification"]).about
    assert (about.architecture, about.task, about.updates) == ("mae_lm_tiny", "sentence_prediction", 1)
    assert about.trained_on["train"]["tokens_out"] == 1000
    assert "/home/me" not in json.dumps(about.to_json())


@pytest.mark.parametrize(
    ("options", "fact", "value"),
    [
        ({"leave_unmasked_prob": 0.1, "random_token_prob": 0.1}, "other_tokens", 0.2),
        ({"leave_unmasked_prob": 0.0, "random_token_prob": 1.0}, "other_tokens", 1.0),
        ({"leave_unmasked_prob": None, "random_token_prob": 0.1}, "other_tokens", None),
        ({"mask_in_encoder": 0.5}, "mask_in_encoder", 0.5),
    ],
)
def test_facts_about_masks_are_stored(options, fact, value, rebundled):
    assert getattr(rebundled(lambda state: state["cfg"]["task"].update(options)).about, fact) == value


def test_a_full_disk_is_named_and_nothing_is_left(bundles, tmp_path):
    with refused("/out: File too large"), room_for(20_000):
        write_bundle(open_pretrained(bundles["mae_lm_tiny"]), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def edit_config(bundle, **network):
    path = bundle / "config.json"
    change_json(path, network=read_json(path)["network"] | network)


def swap_lines(path):
    first, second, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), encoding="utf-8")


@pytest.fixture
def bundle(bundles, tmp_path):
    """Return a copy of a bundle, which a test may damage."""
    return shutil.copytree(bundles["mae_lm_tiny"], tmp_path / "bundle")


BIAS = "autoencoder.encoder.relative_bias.weight"
HEAD, EMBEDDINGS = "autoencoder.lm_head.weight", "autoencoder.encoder.embed_tokens.weight"
DAMAGE = {
    "another type": lambda b: edit_config(b, encoder_layers=True),
    "another size": lambda b: edit_config(b, max_positions=10**7),
    "an unknown weight": lambda b: change_weights(b, lambda w: w | {"other": w[BIAS] + 1}),
    "a missing weight": lambda b: change_weights(b, lambda w: {name: w[name] for name in w if name != BIAS}),
    "another shape": lambda b: change_weights(b, lambda w: w | {BIAS: w[BIAS][:16].clone()}),
    "another precision": lambda b: change_weights(b, lambda w: w | {BIAS: w[BIAS].double()}),
    "two tied weights": lambda b: change_weights(b, lambda w: w | {HEAD: w[EMBEDDINGS] + 1}),
    "another order": lambda b: swap_lines(b / "dict.txt"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_bundle_that_would_give_wrong_numbers_is_refused(kind, bundle, bundles):
    (bundle / HASHES).unlink()  # as in bundles of earlier versions, which are read without
    assert read_bundle(bundle).symbols == read_bundle(bundles["mae_lm_tiny"]).symbols
    DAMAGE[kind](bundle)
    with refused("bundle"):
        read_bundle(bundle)


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "dict.txt", "sentencepiece.bpe.model", HASHES])
def test_a_bundle_with_another_bit_is_refused(name, bundle):
    flip(bundle / name)
    with refused(r"is damaged|cannot be read"):
        read_bundle(bundle)
    with pytest.raises(UserError):
        describe(bundle)


def test_a_description_has_the_hash_of_the_weights(bundle, checkpoints):
    """Bundles of earlier versions have no list of hashes."""
    expected = file_sha256(bundle / "model.safetensors")
    assert describe(bundle).sha256 == expected
    (bundle / HASHES).unlink()
    assert describe(bundle).sha256 == expected
    checkpoint = checkpoints["mae_lm_tiny"]
    assert describe(checkpoint).sha256 == file_sha256(checkpoint)


def test_the_model_card_of_a_bundle_can_be_edited(bundle):
    (bundle / "README.md").write_text("# My model")
    read_bundle(bundle)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage_of_a_checkpoint_is_refused_or_changes_nothing(checkpoints, text_data, tmp_path_factory, data):
    valid, path = checkpoints["mae_lm_tiny"], tmp_path_factory.mktemp("damaged") / "checkpoint.pt"
    path.write_bytes(data.draw(damaged(valid.read_bytes())))
    try:
        opened, expected = open_pretrained(path, text_data), open_pretrained(valid, text_data)
    except UserError as refusal:
        assert len(str(refusal).splitlines()) == 1  # noqa: PT017
    else:
        assert (opened.config, opened.about) == (expected.config, expected.about)
        assert_equal(opened.weights, expected.weights)


def write_evil(path, kind, trace):
    payload = {"model": {}, "cfg": {"model": Calls(os.system, f"touch {trace}")}}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_pickles_cannot_run_code(kind, tmp_path, text_data, bundle):
    evil, trace = tmp_path / "evil.pt", tmp_path / "trace"
    write_evil(evil, kind, trace)
    with refused(r"evil\.pt"):
        MAELMModel.from_pretrained(evil, data_bin=text_data)
    with refused("could run code" if kind != "pickle" else "evil"):
        run_verb("bundle", evil, "--data-bin", text_data, "--out", tmp_path / "b")
    shutil.copy(evil, bundle / "model.safetensors")
    with refused(r"model\.safetensors is damaged"):
        MAELMModel.from_pretrained(bundle)
    assert not trace.exists()
    torch.load(evil, weights_only=False) if kind != "pickle" else pickle.loads(evil.read_bytes())
    assert trace.exists()  # so the file would have run code


def test_another_dictionary_is_refused(checkpoints, text_data, tmp_path):
    swap_lines(shutil.copytree(text_data, tmp_path / "data") / "dict.txt")
    with refused("its pieces are not, in order, the symbols"):
        open_pretrained(checkpoints["mae_lm_tiny"], tmp_path / "data")
    (tmp_path / "data/manifest.json").unlink()
    with refused("was trained with another dictionary"):
        open_pretrained(checkpoints["mae_lm_tiny"], tmp_path / "data")


def test_an_option_that_came_later_has_its_default(rebundled):
    assert rebundled(lambda state: state["cfg"]["model"].pop("renumber_visible")).config.renumber_visible is False

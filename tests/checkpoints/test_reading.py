"""Reading and writing of checkpoints and bundles: bit-equal round trips, and error messages for inconsistent files."""

import json
import os
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mae_lm_fairseq import MAELMModel, cli
from mae_lm_fairseq.checkpoints import bundle as writing
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.info import ModelInfo
from mae_lm_fairseq.checkpoints.reading import build, read, read_bundle, read_checkpoint
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import VARIANTS, saved
from tests.support.disks import room_for
from tests.support.training import set_up

HEADED = ["classification", "regression", "span"]


@pytest.mark.parametrize("name", [*VARIANTS, *HEADED])
def test_bundle_holds_what_the_checkpoint_holds(name, checkpoints, bundles, text_data):
    checkpoint, bundle = read(checkpoints[name], text_data), read(bundles[name])
    assert bundle.config == checkpoint.config
    assert bundle.symbols == checkpoint.symbols
    assert bundle.tokenizer.path.read_bytes() == (text_data / "sentencepiece.bpe.model").read_bytes()
    assert bundle.about == checkpoint.about
    weights = saved(checkpoints[name])["model"]
    assert bundle.weights.keys() == checkpoint.weights.keys() == weights.keys()
    assert all(torch.equal(bundle.weights[key], weights[key]) for key in weights)


@pytest.mark.parametrize("name", VARIANTS)
def test_network_is_the_trained_one(name, text_data, checkpoints, bundles):
    """The logits are bit-equal to those of the model that fairseq builds and loads."""
    arch, *arguments = VARIANTS[name]
    _, _, model, _ = set_up(text_data, *arguments, arch=arch)
    model.load_state_dict(saved(checkpoints[name])["model"])
    network = build(read(bundles[name]))
    tokens = torch.tensor([[0, 5, model.mask, 7, 8, 2], [0, 9, model.mask, model.mask, 2, 1]])
    layout = batch_layout(tokens, tokens.eq(model.mask), model.pad, model.mask)
    with torch.no_grad():
        logits, _ = model.eval()(tokens, masked_tokens=tokens.eq(model.mask))
        assert torch.equal(network(tokens, layout), logits)
    assert network.lm_head.weight is network.encoder.embed_tokens.weight
    assert not any(tensor.is_meta for tensor in (*network.parameters(), *network.buffers()))


def test_network_trains_on(bundles):
    """Parameters of a loaded network get gradients, and tied ones stay tied."""
    pretrained = read(bundles["shared_positions"])
    network = build(pretrained)
    tokens = torch.tensor([[0, 5, pretrained.mask, 2]])
    network(tokens, batch_layout(tokens, tokens.eq(pretrained.mask), pretrained.pad, pretrained.mask)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert network.decoder.embed_positions is network.encoder.embed_positions


def test_training_leaves_the_bundle_alone(bundles):
    """Weights may be memory-mapped from the file; writing to them must stay in memory."""
    file = bundles["mae_lm_tiny"] / "model.safetensors"
    before = file.read_bytes()
    network = build(read(bundles["mae_lm_tiny"]))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert file.read_bytes() == before


def test_weights_are_aligned_as_by_torch(bundles):
    """Matrix products round differently if weights are not aligned as torch aligns them.

    The data in the file is aligned, too, so that large weights need no copy.
    """
    pretrained = read(bundles["mae_lm_tiny"])
    assert {weight.data_ptr() % 64 for weight in pretrained.weights.values()} == {0}
    content = (bundles["mae_lm_tiny"] / "model.safetensors").read_bytes()
    assert (8 + int.from_bytes(content[:8], "little")) % 64 == 0


def test_tied_weights_are_stored_once(bundles):
    stored = load_file(bundles["shared_positions"] / "model.safetensors")
    assert "autoencoder.encoder.embed_tokens.weight" in stored
    assert not {"autoencoder.lm_head.weight", "autoencoder.decoder.embed_positions.weight"} & stored.keys()


def test_half_precision_is_kept(checkpoints, text_data, tmp_path):
    state = saved(checkpoints["mae_lm_tiny"])
    state["model"] = {name: weight.half() for name, weight in state["model"].items()}
    torch.save(state, tmp_path / "half.pt")
    write_bundle(read_checkpoint(tmp_path / "half.pt", text_data), tmp_path / "bundle")
    assert {weight.dtype for weight in read(tmp_path / "bundle").weights.values()} == {torch.float16}


def test_about_has_the_origin_without_paths(bundles):
    about = read(bundles["classification"]).about
    assert (about.architecture, about.task, about.updates) == ("mae_lm_tiny", "sentence_prediction", 1)
    assert about.trained_on["train"]["tokens_out"] == 1000
    assert "/home/me" not in json.dumps(about.to_json())


@pytest.mark.parametrize(("kept", "random", "others"), [(0.1, 0.1, 0.2), (0.0, 1.0, 1.0), (None, 0.1, None)])
def test_the_fraction_of_other_tokens_is_stored(checkpoints, text_data, tmp_path, kept, random, others):
    state = saved(checkpoints["mae_lm_roberta_tiny"])
    state["cfg"]["task"] |= {"leave_unmasked_prob": kept, "random_token_prob": random}
    torch.save(state, tmp_path / "others.pt")
    write_bundle(read_checkpoint(tmp_path / "others.pt", text_data), tmp_path / "bundle")
    assert read(tmp_path / "bundle").about.other_tokens == others


def test_mask_in_encoder_is_stored(checkpoints, text_data, tmp_path):
    state = saved(checkpoints["mae_lm_tiny"])
    state["cfg"]["task"]["mask_in_encoder"] = 0.5
    torch.save(state, tmp_path / "half.pt")
    pretrained = read_checkpoint(tmp_path / "half.pt", text_data)
    write_bundle(pretrained, tmp_path / "bundle")
    assert pretrained.mask_in_encoder == read(tmp_path / "bundle").mask_in_encoder == 0.5
    assert replace(pretrained, about=ModelInfo()).mask_in_encoder == 0


class TestWriting:
    def test_nothing_is_overwritten(self, bundles, tmp_path):
        (tmp_path / "here").mkdir()
        with pytest.raises(UserError, match="here exists already"):
            write_bundle(read(bundles["mae_lm_tiny"]), tmp_path / "here")

    def test_a_full_disk_is_named(self, bundles, tmp_path):
        with pytest.raises(UserError, match=r"cannot write .*/out: File too large"), room_for(20_000):
            write_bundle(read(bundles["mae_lm_tiny"]), tmp_path / "out")
        assert not list(tmp_path.iterdir())

    def test_nothing_is_left_half_written(self, bundles, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writing, "write_symbols", fail)
        with pytest.raises(UserError, match="out: No space left"):
            write_bundle(read(bundles["mae_lm_tiny"]), tmp_path / "out")
        assert not list(tmp_path.iterdir())


def edit_config(bundle, **network):
    path = bundle / "config.json"
    described = json.loads(path.read_text())
    described["network"].update(network)
    path.write_text(json.dumps(described))


def edit_weights(bundle, edit):
    weights = load_file(bundle / "model.safetensors")
    edit(weights)
    save_file(weights, bundle / "model.safetensors")


def edit_text(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def swap_lines(path):
    first, second, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]), encoding="utf-8")


BIAS = "autoencoder.encoder.relative_bias.weight"
DAMAGE = {
    "encoder_layers: True is not of type int": lambda b: edit_config(b, encoder_layers=True),
    "config.json: shell is unknown": lambda b: edit_config(b, shell="true"),
    "too few for the layers": lambda b: edit_config(b, encoder_layers=9_000),
    "encoder_layers 1000000000 must be at most": lambda b: edit_config(b, encoder_layers=10**9),
    "embed_positions are of shape": lambda b: edit_config(b, max_positions=10**7),
    "a head has an invalid name": lambda b: edit_weights(
        b, lambda w: w.update({"classification_heads.pop.dense.weight": w[BIAS].clone()})
    ),
    "config.json is damaged; create the bundle again": lambda b: (b / "config.json").write_text("[" * 100_000),
    "is a directory of transformers; make a bundle of it with mae-lm import": lambda b: edit_text(
        b / "config.json", '"model_type": "mae_lm"', '"model_type": "bert"'
    ),
    "model.safetensors: the weight evil is unknown": lambda b: edit_weights(b, lambda w: w.update(evil=w[BIAS] + 1)),
    f"the weight {BIAS} is missing": lambda b: edit_weights(b, lambda w: w.pop(BIAS)),
    f"{BIAS} has shape": lambda b: edit_weights(b, lambda w: w.update({BIAS: w[BIAS][:16].clone()})),
    "not tensors of one precision": lambda b: edit_weights(b, lambda w: w.update({BIAS: w[BIAS].double()})),
    "the network ties the two": lambda b: edit_weights(
        b, lambda w: w.update({"autoencoder.lm_head.weight": w["autoencoder.encoder.embed_tokens.weight"] + 1})
    ),
    "dict.txt: e occurs twice": lambda b: edit_text(b / "dict.txt", "he 1\n", "e 1\n"),
    "dictionary and configuration require": lambda b: edit_text(b / "dict.txt", "he 1\n", ""),
    "dict.txt is not the one that the bundle was written with": lambda b: swap_lines(b / "dict.txt"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_bundle_is_refused(message, bundles, tmp_path):
    bundle = shutil.copytree(bundles["mae_lm_tiny"], tmp_path / "bundle")
    DAMAGE[message](bundle)
    with pytest.raises(UserError) as refusal:
        read_bundle(bundle)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def victim(bundles, tmp_path_factory):
    """Copy a bundle to be damaged."""
    return shutil.copytree(bundles["mae_lm_3ml_cross_tiny"], tmp_path_factory.mktemp("victim") / "bundle")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_harmless(victim, data):
    """Overwriting or truncating any file ends in an error message or in valid weights, never in another exception."""
    path = data.draw(st.sampled_from(sorted(victim.iterdir())))
    content = path.read_bytes()
    place = data.draw(st.integers(0, min(len(content), 4000) - 1))
    junk = data.draw(st.binary(max_size=4))
    path.write_bytes(content[:place] + junk + (content[place + len(junk) :] if junk else b""))
    try:
        build(read_bundle(victim))
    except UserError as refusal:
        assert len(str(refusal).splitlines()) == 1  # noqa: PT017
    finally:
        path.write_bytes(content)


class Evil:
    """Object that runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def write_evil(path, kind, trace):
    payload = {"model": {}, "cfg": {"model": Evil(f"touch {trace}")}}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_pickles_cannot_run_code(kind, tmp_path, text_data, bundles):
    evil, trace = tmp_path / "evil.pt", tmp_path / "trace"
    write_evil(evil, kind, trace)
    with pytest.raises(UserError, match=r"evil\.pt"):
        MAELMModel.from_pretrained(evil, data_bin=text_data)
    with pytest.raises(UserError, match="could run code" if kind != "pickle" else "evil"):
        cli.run("bundle", [str(evil), "--data-bin", str(text_data), "--out", str(tmp_path / "b")])
    bundle = shutil.copytree(bundles["mae_lm_tiny"], tmp_path / "bundle")
    shutil.copy(evil, bundle / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        MAELMModel.from_pretrained(bundle)
    assert not trace.exists()
    torch.load(evil, weights_only=False) if kind != "pickle" else pickle.loads(evil.read_bytes())
    assert trace.exists()  # so the file would have run code


class TestCheckpoints:
    def test_other_dictionary(self, checkpoints, text_data, tmp_path):
        swap_lines(shutil.copytree(text_data, tmp_path / "data") / "dict.txt")
        with pytest.raises(UserError, match="is not the one that the data-bin was prepared with"):
            read(checkpoints["mae_lm_tiny"], tmp_path / "data")
        (tmp_path / "data" / "manifest.json").unlink()
        with pytest.raises(UserError, match="was trained with another dictionary"):
            read(checkpoints["mae_lm_tiny"], tmp_path / "data")

    def test_other_model(self, checkpoints, text_data, tmp_path):
        state = saved(checkpoints["mae_lm_tiny"])
        state["cfg"]["model"]["_name"] = "roberta"
        torch.save(state, tmp_path / "other.pt")
        with pytest.raises(UserError, match=r"other\.pt is not a checkpoint of an mae_lm_fairseq model"):
            read(tmp_path / "other.pt", text_data)

    def test_option_that_came_later(self, checkpoints, text_data, tmp_path):
        state = saved(checkpoints["mae_lm_tiny"])
        del state["cfg"]["model"]["renumber_visible"]
        torch.save(state, tmp_path / "older.pt")
        assert read(tmp_path / "older.pt", text_data).config.renumber_visible is False

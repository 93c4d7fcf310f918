"""Averaged weights of checkpoints, and the verbs that use them."""

import argparse

import pytest
import torch
from safetensors.torch import load_file

from mae_lm_fairseq import MAELMModel
from mae_lm_fairseq.commands import bundle, evaluate, export, minimal_pairs, probe, rank
from mae_lm_fairseq.downstream.options import add_options, parse
from mae_lm_fairseq.downstream.sweep import origin_of
from mae_lm_fairseq.pretrained.reading import read, read_bundle
from mae_lm_fairseq.utils.errors import UserError
from tests.support.bundles import TEXT, saved
from tests.support.finetuning import finetune, write_sentences

EMBEDDINGS = "autoencoder.encoder.embed_tokens.weight"


def run(command, *arguments):
    command.main(list(map(str, arguments)))


@pytest.fixture(scope="module")
def with_ema(checkpoints, tmp_path_factory):
    """Write a checkpoint whose EMA weights are 2 below the model's."""
    state = saved(checkpoints["mae_lm_tiny"])
    state["extra_state"]["ema"] = {name: weight - 2 for name, weight in state["model"].items()}
    torch.save(state, path := tmp_path_factory.mktemp("ema") / "checkpoint.pt")
    return path


def assert_is_ema(weights, checkpoint):
    expected = saved(checkpoint)["model"]
    assert weights
    assert all(torch.equal(weight, expected[name] - 2) for name, weight in weights.items())


def test_a_bundle_of_the_ema_weights(with_ema, text_data, tmp_path):
    run(bundle, with_ema, "--data-bin", text_data, "--out", tmp_path / "bundle", "--ema")
    written = read_bundle(tmp_path / "bundle")
    assert_is_ema(written.weights, with_ema)
    assert written.about["averaged"] == "EMA"
    assert_is_ema(MAELMModel.from_pretrained(with_ema, text_data, ema=True).model.state_dict(), with_ema)
    assert "averaged" not in read(with_ema, text_data).about


def test_an_export_of_the_ema_weights(with_ema, text_data, tmp_path):
    run(export, with_ema, "--data-bin", text_data, "--out", tmp_path / "exported", "--ema")
    norm = load_file(tmp_path / "exported" / "model.safetensors")["embeddings.LayerNorm.weight"]
    assert torch.equal(norm, torch.full_like(norm, -1))


def test_fine_tuning_starts_from_the_ema_weights(with_ema, text_data, tmp_path):
    parser = argparse.ArgumentParser()
    add_options(parser, "none")
    words = ["--tokenizer", text_data, "--out", tmp_path / "out", "--ema", "--checkpoint"]
    start = parse(parser, [*map(str, words), str(with_ema)])["checkpoint"]
    assert origin_of(start).described()["checkpoint"] == "ema/checkpoint.pt"
    sentences = write_sentences(tmp_path / "sentences", text_data / "dict.txt")
    tuned = finetune(*(sentences, tmp_path / "tuned", "--finetune-from-model", start, "--lr", 0, "--max-update", 1))
    encoder = {name: weight for name, weight in tuned["model"].items() if name.startswith("autoencoder.encoder.")}
    assert_is_ema(encoder, with_ema)
    with pytest.raises(UserError, match="--ema contradicts --checkpoint none"):
        parse(parser, [*map(str, words), "none"])


MEASURING = {
    evaluate: ["--text", "text"],
    minimal_pairs: ["--pairs", "pairs", "--out", "out"],
    probe: ["--train", "words", "--test", "words", "--column", "UPOS", "--out", "out"],
    rank: ["--text", "text", "--out", "out"],
}


@pytest.mark.parametrize("command", MEASURING, ids=lambda command: command.__name__.rpartition(".")[2])
def test_measurements_read_the_ema_weights(command, with_ema, text_data, tmp_path, monkeypatch):
    """Each reads a model twice: for checks and for the measurement, which this test leaves out."""
    (tmp_path / "text").write_text("\n".join(TEXT), encoding="utf-8")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "zorro.txt").write_text("the dog sleep\nthe dog sleeps\n")
    (tmp_path / "words").write_text("\t".join(["1", "dog", "_", "NOUN", *"______"]) + "\n\n")
    monkeypatch.chdir(tmp_path)
    found = []

    def record(*arguments):
        found.append(read(*arguments))
        if len(found) == 2:
            raise UserError("read")
        return found[-1]

    monkeypatch.setattr("mae_lm_fairseq.experiments.readers.read", record)
    data = "--tokenizer" if command is rank else "--data-bin"
    with pytest.raises(UserError, match=r"^read$"):
        run(command, with_ema, data, text_data, *MEASURING[command], "--ema")
    for pretrained in found:
        assert_is_ema(pretrained.weights, with_ema)


@pytest.mark.parametrize("command", [evaluate, export])
def test_models_without_ema_weights_are_refused(command, checkpoints, bundles, text_data, tmp_path):
    rest = ["--ema", "--text", tmp_path / "text", *(["--out", tmp_path / "out"] if command is export else [])]
    with pytest.raises(UserError, match=r"mae_lm_tiny\.pt has no EMA weights, .*; leave out --ema"):
        run(command, checkpoints["mae_lm_tiny"], "--data-bin", text_data, *rest)
    with pytest.raises(UserError, match="mae_lm_tiny is a directory, which has no EMA weights"):
        run(command, bundles["mae_lm_tiny"], *rest)

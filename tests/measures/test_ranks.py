"""Effective ranks of checkpoints, bundles and Hugging Face directories, through the commands."""

import csv
import json
import os
import random

import pytest
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure
from mae_lm_fairseq.measures.rank import Rank
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.text.dictionary import write_symbols
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer, train_model
from mae_lm_fairseq.utils.errors import UserError
from tests.support.finetuning import finetune, save_pretrained, write_sentences
from tests.support.huggingface import KINDS, save_model

WORDS = ["".join(random.Random(number).sample("abcdefghij", 6)) for number in range(40)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Create a text, a data-bin with dictionary and tokenizer, and randomly initialised checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    lines = [" ".join(WORDS[(7 * row + place * place) % 40] for place in range(12)) for row in range(120)]
    lines[30] = lines[70] = ""
    (folder / "text").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "data").mkdir()
    model = folder / "data" / "sentencepiece.bpe.model"
    model.write_bytes(train_model(lines, 110, 1.0))
    write_symbols(SentencePieceTokenizer(model).symbols, folder / "data" / "dict.txt")
    for arch in ("mae_lm_tiny", "mae_lm_roberta_tiny"):
        (folder / arch).mkdir()
        save_pretrained(folder / arch / "checkpoint.pt", folder / "data", arch)
    return folder


def ranks_of(folder, path, tokens=1500):
    model = ModelToMeasure(label="model", path=path, data=Data(folder / "data", text=folder / "text"))
    return Rank(tokens=tokens, tokens_per_sample=32).profile(model, resamples=5)


def run(*arguments):
    cli.run("rank", [str(word) for word in arguments])


def test_command_writes_data_and_figures(folder, tmp_path, capsys):
    models = [folder / arch / "checkpoint.pt" for arch in ("mae_lm_roberta_tiny", "mae_lm_tiny")]
    options = ["--text", folder / "text", "--data-bin", folder / "data", "--out", tmp_path / "out", "--bootstrap", 5]
    options += ["--tokens", 1500, "--tokens-per-sample", 32, "--labels", "MLM", "MAE-LM"]
    run(*models, *options)
    assert "100%" in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert files == {"ranks.json", "ranks.csv", "ranks.png", "gaps.png", "outside.png", "exclusivity.png"}
    described = json.loads((tmp_path / "out" / "ranks.json").read_text())
    assert [model["label"] for model in described["models"]] == ["MLM", "MAE-LM"]
    for path, model in zip(models, described["models"], strict=True):
        assert {**ranks_of(folder, path)}.items() <= model.items()
        assert [row["layer"] for row in model["exclusivity"]] == [0, 1, 2]
    assert described["versions"]["mae_lm_fairseq"]
    with open(tmp_path / "out" / "ranks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["layer"], row["input"], row["tokens"]) for row in rows] == [
        (model["label"], str(row["layer"]), row["input"], row["tokens"])
        for model in described["models"]
        for row in model["ranks"]
    ]
    assert {row["label"] for row in rows if row["input"] == "forced"} == {"MAE-LM"}
    assert float(rows[0]["entropy_high"]) == described["models"][0]["ranks"][0]["entropy_high"]
    for name in ("ranks", "gaps", "outside"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_fine_tuning_before_and_after(folder, tmp_path):
    """Fine-tuned models have a classification head and no decoder; the encoder's weights have changed."""
    pretrained = folder / "mae_lm_tiny" / "checkpoint.pt"
    restore = ["--restore-file", pretrained, "--reset-optimizer", "--reset-dataloader", "--reset-meters"]
    sentences = write_sentences(tmp_path / "sentences", folder / "data" / "dict.txt")
    weights = finetune(sentences, tmp_path / "tuned", *restore, "--max-update", 3)["model"]
    assert not any(name.startswith("autoencoder.decoder") for name in weights)
    encoder = open_model(tmp_path / "tuned" / "checkpoint_last.pt", folder / "data").states.encoder
    for name, weight in encoder.state_dict().items():
        assert torch.equal(weight, weights[f"autoencoder.encoder.{name}"])
    before, after = (ranks_of(folder, path) for path in (pretrained, tmp_path / "tuned" / "checkpoint_last.pt"))
    for row, row_after in zip(before["ranks"], after["ranks"], strict=True):
        assert [row[name] for name in ("layer", "input", "tokens", "count")] == [*row_after.values()][:4]
    assert before["ranks"] != after["ranks"]


@pytest.mark.parametrize("kind", KINDS)
def test_stock_hugging_face_models(folder, tmp_path, kind):
    found = ranks_of(folder, save_model(tmp_path / kind, kind, WORDS))
    assert (found["width"], found["layers"]) == (16, 2)
    kinds = {(row["layer"], row["input"], row["tokens"]) for row in found["ranks"]}
    inputs = (("clean", "real"), ("as_trained", "real"), ("as_trained", "mask"))
    assert kinds == {(layer, *kind) for layer in range(3) for kind in inputs}
    counts = {row["tokens"]: row["count"] for row in found["ranks"]}
    texts = [text.ids for text, _ in open_model(tmp_path / kind, None).texts(folder / "text", 32, 1500)]
    assert found["tokens"] == sum(map(len, texts)) >= 1500
    assert counts["mask"] == sum(round(0.15 * (len(text) - 2)) for text in texts)  # special tokens are never masked
    assert counts["real"] == found["tokens"] - counts["mask"]


def test_hugging_face_texts_are_those_of_its_tokenizer(folder, tmp_path):
    reader = open_model(save_model(tmp_path / "bert", "bert", WORDS), None)
    first = reader.texts(folder / "text", 32, 1)[0][0].ids.tolist()
    line = (folder / "text").read_text().splitlines()[0].split()
    assert first[:13] == [0, *(4 + WORDS.index(word) for word in line)]
    assert (first[-1], first.count(2)) == (2, 1)  # lines have no end of their own


def test_code_in_weights_is_refused(tmp_path):
    """torch's own message, which advises to load the file nevertheless, is not shown."""

    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "it-ran"),)

    directory = save_model(tmp_path / "model", "bert", ["a", "b"])
    (directory / "model.safetensors").unlink()
    torch.save({"weight": Malicious()}, directory / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"refused .*model\.bin: loading it could run code"):
        open_model(directory, None)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("random_weights", [False, True])
def test_code_in_a_directory_is_not_run(random_weights, tmp_path, monkeypatch):
    """transformers would ask on the terminal whether to run it."""
    monkeypatch.setattr("builtins.input", lambda prompt="": "y")
    directory = save_model(tmp_path / "model", "bert", WORDS)
    classes = dict.fromkeys(("AutoConfig", "AutoModelForMaskedLM"), "evil.Evil")
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "evil", "auto_map": classes}))
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(UserError, match="its model type is 'evil'"):
        open_model(directory, None, with_head=True, random_weights=random_weights)
    assert not (tmp_path / "it ran").exists()


def test_a_text_of_one_document_has_ranks_and_no_exclusivity(folder, tmp_path, capsys):
    (tmp_path / "text").write_text((folder / "text").read_text().replace("\n\n", "\n"), encoding="utf-8")
    options = ["--text", tmp_path / "text", "--data-bin", folder / "data", "--out", tmp_path / "out", "--bootstrap", 5]
    (tmp_path / "out").mkdir()
    for name in ("ranks.svg", "exclusivity.pdf", "mine.pdf"):
        (tmp_path / "out" / name).touch()
    options += ["--formats", "pdf"]
    run(folder / "mae_lm_tiny" / "checkpoint.pt", *options, "--tokens", 1500, "--tokens-per-sample", 32)
    figures = {path.name for path in (tmp_path / "out").glob("*.[ps][dnv][fg]")}
    endings = ("png", "pdf")
    assert figures == {"mine.pdf", *(f"{name}.{ending}" for name in ("ranks", "gaps", "outside") for ending in endings)}
    assert (tmp_path / "out" / "ranks.pdf").read_bytes().startswith(b"%PDF-")
    [model] = json.loads((tmp_path / "out" / "ranks.json").read_text())["models"]
    assert model["ranks"]
    assert model["exclusivity"] == []
    assert "has a single document" in capsys.readouterr().out


def test_two_texts_are_enough(folder):
    path = folder / "mae_lm_tiny" / "checkpoint.pt"
    texts = open_model(path, folder / "data").texts(folder / "text", 32, 1500)
    tokens_per_text = sum(len(text.ids) for text, _ in texts) // len(texts)
    assert ranks_of(folder, path, tokens=2 * tokens_per_text)["texts"] == 2
    with pytest.raises(UserError, match=f"--tokens {tokens_per_text}"):
        ranks_of(folder, path, tokens=tokens_per_text)

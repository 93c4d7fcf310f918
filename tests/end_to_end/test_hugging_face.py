"""Export to transformers and back through the commands, starting from raw text and fairseq-train."""

import random
import re
import shlex

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.opening import open_pretrained
from tests.support import ROOT
from tests.support.commands import run_verb
from tests.support.comparisons import assert_close, assert_equal
from tests.support.families import stock_model
from tests.support.finetuning import WITHOUT_EPOCHS, train_here
from tests.support.training import RECIPE
from tests.support.weights import encoder_of

PAGE = (ROOT / "docs/hugging-face.md").read_text(encoding="utf-8")
TEXT = (ROOT / "docs/pretraining.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text_bin(tmp_path_factory):
    """Prepare a data-bin from a page of the documentation with mae-lm prepare."""
    directory = tmp_path_factory.mktemp("text")
    words = TEXT.split()
    for split, seed in (("train", 0), ("valid", 1)):
        start = random.Random(seed).randrange(100)
        lines = [" ".join(words[place : place + 12]) for place in range(start, len(words), 12)]
        (directory / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = [part for split in ("train", "valid") for part in (f"--{split}", directory / f"{split}.txt")]
    run_verb("prepare", *splits, "--vocab-size 400 --destdir", directory / "data-bin")
    return directory / "data-bin"


def pretrain(data, save, *options):
    """Run ``fairseq-train`` in this process and return the last checkpoint."""
    train_here(data, *RECIPE, *WITHOUT_EPOCHS, "--save-dir", save, *options)
    return save / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, run_cli, text_bin):
    """Return the checkpoint of a short run of ``fairseq-train``."""
    save = tmp_path_factory.mktemp("trained")
    command = ["fairseq-train", text_bin, *RECIPE, "--user-dir mae_lm_fairseq --arch mae_lm_tiny"]
    done = run_cli([*command, "--save-dir", save, "--num-workers 0 --max-update 20 --lr 0.01"])
    assert done.returncode == 0, done.stderr
    return save / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def exported(tmp_path_factory, trained, text_bin):
    """Export the checkpoint."""
    out = tmp_path_factory.mktemp("exported") / "out"
    text = text_bin.parent / "valid.txt"
    run_verb("export", trained, "--data-bin", text_bin, "--out", out, "--text", text)
    return out


@pytest.mark.parametrize("preset", ["mae_lm", "mae_lm_roberta"])
def test_pretraining_continues_from_an_import(preset, trained, text_bin, exported, tmp_path, capsys):
    run_verb("import", exported, "--preset", preset, "--out", tmp_path / "imported")
    options = capsys.readouterr().out.splitlines()[-1].split()
    assert options[:2] == ["--finetune-from-model", str(tmp_path / "imported")]
    before, again = open_pretrained(trained, text_bin), open_pretrained(tmp_path / "imported")
    assert again.tokenizer.files == before.tokenizer.files
    assert_equal(encoder_of(again.weights), encoder_of(before.weights))
    # At learning rate 0 no weight changes: the saved weights are the loaded ones.
    still = pretrain(text_bin, tmp_path / "still", *options, "--max-update 1 --lr 0 --init-std 0.5")
    loaded = open_pretrained(still, text_bin)
    assert_equal(loaded.weights, again.weights)
    moved = open_pretrained(pretrain(text_bin, tmp_path / "on", *options, "--max-update 3"), text_bin)
    assert moved.about.updates == 3
    assert not all(map(torch.equal, encoder_of(moved.weights).values(), encoder_of(again.weights).values()))


def blocks(language):
    """Return the code blocks of docs/hugging-face.md, except for those that need a model with labels of words."""
    texts = re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    return [block for block in texts if "tagger" not in block]


def test_examples_of_the_page(trained, text_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data-bin").symlink_to(text_bin)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/mae_lm").symlink_to(trained.parent)
    for split in ("train.txt", "valid.txt"):
        (tmp_path / split).symlink_to(text_bin.parent / split)
    stock_model(tmp_path / "roberta-base", "roberta", max_position_embeddings=66, layer_norm_eps=1e-5)
    write_bundle(open_pretrained(trained, text_bin), tmp_path / "mae-lm", add_tokenizer_and_card)
    commands = [line for block in blocks("bash") for line in block.replace("\\\n", "").splitlines()]
    commands = [line for line in commands if line.startswith("mae-lm ")]
    for verb, *arguments in (shlex.split(command)[1:] for command in commands):
        if verb != "pretrain":
            run_verb(verb, *arguments)
        else:
            arch, data, save, *options = arguments
            last = pretrain(tmp_path / data, tmp_path / save, "--arch", arch, *options, "--max-update 2")
    scope = {}
    for block in blocks("python"):
        if "sentence_transformers" in block:
            pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        if "onnx" in block:
            pytest.importorskip("onnxscript", reason="onnxscript is not installed")
        exec(block, scope)
    assert scope["states"].shape == (*scope["batch"]["input_ids"].shape, 16)
    assert scope["embeddings"].shape == (2, 16)
    same_in_onnxruntime(tmp_path / "encoder.onnx", tmp_path / "mae-lm-hf")
    imported = open_pretrained(tmp_path / "imported")
    assert open_pretrained(last, tmp_path / data).symbols == imported.symbols
    assert (tmp_path / "continued-hf/vocab.json").exists() == (tmp_path / "roberta-base/vocab.json").exists()


def same_in_onnxruntime(path, directory):
    """Check that an ONNX file computes the encoder's hidden states, also for input sizes not used in the export."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    tokenizer, encoder = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    for texts in (["a"], ["One.", "Two words and then some more of them.", "And three sentences. Of text. In one."]):
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        (ours,) = session.run(None, {name: values.numpy() for name, values in batch.items()})
        is_token = batch["attention_mask"].bool()
        states = encoder(**batch).last_hidden_state[is_token]
        assert_close(torch.from_numpy(ours)[is_token], states, 1e-5)

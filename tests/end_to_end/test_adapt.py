"""``mae-lm adapt``: from a stock directory of transformers to another one, killed and resumed in between."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from mae_lm_fairseq.commands.adapt import main
from mae_lm_fairseq.core.config import RelativeBucketing
from mae_lm_fairseq.huggingface.bundle import write_bundle
from mae_lm_fairseq.huggingface.importer import import_foreign
from mae_lm_fairseq.pretrained.reading import read
from mae_lm_fairseq.utils.errors import UserError
from tests.support.disks import room_for
from tests.support.exports import pretrained
from tests.support.fairseq_commands import refusal
from tests.support.processes import fork, wait_for
from tests.support.tokenizers import make, paragraphs

SPECIALS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SPECIALS |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
FAST = ["--updates", "20", "--learning-rate", "1e-2", "--batch-size", "512", "--tokens-per-sample", "32"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Write training and held-out text of the same words."""
    directory = tmp_path_factory.mktemp("text")
    (directory / "train.jsonl").write_text("".join(json.dumps({"note": line}) + "\n" for line in paragraphs(300)))
    (directory / "valid.jsonl").write_text("".join(json.dumps({"note": line}) + "\n" for line in paragraphs(60, 1)))
    return directory


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    """Save a random RobertaForMaskedLM with a byte-level BPE tokenizer, as transformers does."""
    directory = tmp_path_factory.mktemp("stock") / "roberta"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    options = {"vocab_size": 400, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    trainer = trainers.BpeTrainer(special_tokens=["<s>", "<pad>", "</s>", "<unk>"], **options)
    tokenizer.train_from_iterator(paragraphs(300), trainer)
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIALS).save_pretrained(directory)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=66, layer_norm_eps=1e-5, **sizes
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(directory)
    return directory


def arguments(model, text, out, *more):
    splits = ["--train", text / "train.jsonl", "--valid", text / "valid.jsonl", "--text-field", "note"]
    return [str(word) for word in ("--model", model, *splits, "--out", out, *FAST, *more)]


def test_a_stock_directory_is_adapted_and_a_killed_run_resumes(roberta, text, tmp_path, capfd):
    command, out = arguments(roberta, text, tmp_path / "out", "--freeze-encoder-updates", 2), tmp_path / "out"
    (out / "data-bin" / "unfinished").mkdir(parents=True)  # as a killed preparation leaves it
    killed = fork(main, command)
    wait_for((out / "training" / "checkpoints" / "checkpoint_last.pt").exists)
    kill_all(killed)
    assert not (out / "training" / "result.json").exists()
    main(command)
    assert re.search(
        r"Loaded checkpoint .*checkpoint_last\.pt \(epoch 1 @ \d+ updates\)",
        (out / "training" / "result.log").read_text(),
    )
    results = json.loads((out / "results.json").read_text())
    assert results["after"]["loss"] < results["before"]["loss"] - 0.1
    assert results["after"]["predicted"] == results["before"]["predicted"]
    assert str(tmp_path) not in (out / "report.md").read_text()
    assert_stock(out / "stock", "RobertaForMaskedLM", roberta)
    main(command)  # changes nothing
    assert json.loads((out / "results.json").read_text()) == results
    with pytest.raises(UserError, match="has results of another objective"):
        main([*command, "--objective", "mae_lm"])


def kill_all(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.join()


def assert_stock(directory, architecture, before):
    """Check that transformers loads the directory, with the ids of the model before, and other hidden states."""
    assert json.loads((directory / "config.json").read_text())["architectures"] == [architecture]
    tokenizer, original = (transformers.AutoTokenizer.from_pretrained(path) for path in (directory, before))
    lines = paragraphs(20, seed=2)
    batch, ids = tokenizer(lines, padding=True, return_tensors="pt"), original(lines)["input_ids"]
    assert [row[row != tokenizer.pad_token_id].tolist() for row in batch["input_ids"]] == ids
    models = [transformers.AutoModel.from_pretrained(path) for path in (directory, before)]
    states = [model.eval()(**batch).last_hidden_state for model in models]
    assert not torch.allclose(*states, atol=0.1)


def refused(out, command):
    """Return the error message of a command that leaves nothing but its options."""
    message = refusal(main, command)
    assert [path.name for path in out.rglob("*") if path.is_file()] == ["options.json"]
    return message


def test_missing_and_empty_files_are_named(roberta, text, tmp_path):
    out = tmp_path / "out"
    assert "--model /nowhere does not exist" in refused(out, arguments("/nowhere", text, out))
    assert "nowhere.txt" in refused(out, [*arguments(roberta, text, out), "--train", "nowhere.txt"])
    (tmp_path / "empty.txt").touch()
    empty = [*arguments(roberta, text, out), "--valid", str(tmp_path / "empty.txt")]
    assert "--valid: the files contain no text" in refused(out, empty)


def test_damaged_models_and_a_full_disk_are_named(roberta, text, tmp_path):
    shutil.copytree(roberta, tmp_path / "damaged")
    with open(tmp_path / "damaged" / "model.safetensors", "rb+") as file:
        file.truncate(2000)
    out = tmp_path / "out"
    assert "model.safetensors: damaged" in refused(out, arguments(tmp_path / "damaged", text, out))
    with room_for(4000):
        assert "File too large" in refused(out, arguments(roberta, text, out))


def test_options_that_do_not_fit_the_model_are_refused(roberta, text, tmp_path):
    out, command = tmp_path / "out", arguments(roberta, text, tmp_path / "out")
    message = refused(out, [*command, "--tokens-per-sample", "65", "--batch-size", "65"])
    assert "--tokens-per-sample 65: the model takes up to 64 tokens" in message
    assert "--batch-size 31 must be at least --tokens-per-sample, 32" in refused(out, [*command, "--batch-size", "31"])
    with pytest.raises(SystemExit):
        main([*command, "--objective", "electra"])
    changes = {"relative_buckets": 0, "relative_bucketing": RelativeBucketing.symmetric}
    write_bundle(pretrained(changes=changes, tokenizer=make("byte-bpe")), tmp_path / "symmetric")
    bundle = [*arguments(tmp_path / "symmetric", text, out), "--objective", "mlm"]
    assert "--objective mlm does not fit" in refused(out, bundle)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mae_lm", "3ml"])
def test_a_bundle_gets_a_decoder_and_options_of_fairseq_train(roberta, text, tmp_path, objective):
    write_bundle(import_foreign(roberta, "mae_lm_roberta"), tmp_path / "bundle")
    command = [*arguments(tmp_path / "bundle", text, tmp_path / "out"), "--objective", objective]
    main([*command, "--layer-lr-decay", "0.9", "--", "--dropout", "0"])
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["objective"] == objective
    assert results["after"]["loss"] < results["before"]["loss"]
    assert_stock(tmp_path / "out" / "stock", "RobertaModel", roberta)
    adapted = read(tmp_path / "out" / "model")
    assert adapted.config.decoder_layers == {"mae_lm": 4, "3ml": 2}[objective]
    assert adapted.config.dropout == 0
    assert adapted.about["architecture"] == {"mae_lm": "mae_lm_base", "3ml": "mae_lm_3ml_self_base"}[objective]

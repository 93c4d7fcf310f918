"""No directory of ``transformers`` makes a command fetch or run code."""

import json

import pytest
import safetensors.torch
import torch

from mae_lm_fairseq import cli
from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.utils.hugging_face import without_kernels
from tests.support.huggingface import save_model, tiny_masked_lm

WORDS = ["the", "dog", "sleeps", "fox", "jumps"]
TEXT = "the dog sleeps\nthe fox jumps the dog\n\nfox sleeps\ndog jumps the fox\n" * 8
KERNEL = "someone/attention"


@pytest.fixture(
    params=[("bert", "attn_implementation"), ("deberta-v2", "_attn_implementation")]
)  # the latter is wrapped
def poisoned(request, tmp_path, monkeypatch):
    """Return a directory whose configuration names a kernel; loading one is an error, as if ``kernels`` was there."""

    def load(*arguments, **options):
        pytest.fail(f"transformers looks for a kernel: {arguments}")

    monkeypatch.setattr("transformers.modeling_flash_attention_utils._lazy_imports", load)
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", load)
    kind, key = request.param
    directory = save_model(tmp_path / "poisoned", kind, WORDS, tiny_masked_lm)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: KERNEL}))
    return directory


def run(verb, *arguments):
    cli.run(verb, list(map(str, arguments)))


def test_no_verb_loads_a_kernel(poisoned, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    rows = [f"1\t{word}\t_\t{tag}" + "\t_" * 6 + "\n\n" for word, tag in (("the", "DET"), ("dog", "NOUN"))]
    (tmp_path / "words").write_text("".join(rows * 20))
    (tmp_path / "blimp").mkdir()
    pair = {"sentence_good": "the dog", "sentence_bad": "dog the", "field": "syntax", "UID": "order"}
    (tmp_path / "blimp" / "order.jsonl").write_text(json.dumps(pair) + "\n")
    texts = ["--text", tmp_path / "text", "--tokens-per-sample", 16]
    run("rank", poisoned, *texts, "--bootstrap", 2, "--out", tmp_path / "rank")
    run("evaluate", poisoned, *texts, "--out", tmp_path / "loss.json")
    run("probe", poisoned, "--train", tmp_path / "words", "--test", tmp_path / "words", "--out", tmp_path / "probe")
    run("minimal-pairs", poisoned, "--pairs", tmp_path / "blimp", "--out", tmp_path / "pairs")
    (tmp_path / "valid").write_text(TEXT)
    corpus = ["--train", tmp_path / "text", "--valid", tmp_path / "valid"]
    run("prepare", "--tokenizer", poisoned, *corpus, "--destdir", tmp_path / "data-bin")
    run("import", poisoned, "--out", tmp_path / "bundle")
    run("export", tmp_path / "bundle", "--out", tmp_path / "stock")
    assert KERNEL not in (tmp_path / "stock" / "config.json").read_text()


def test_kernels_are_dropped_at_any_depth():
    config = {"model_type": "a", "parts": [{"_attn_implementation": KERNEL, "size": 1}], "experts_implementation": "b"}
    assert without_kernels(config) == {"model_type": "a", "parts": [{"size": 1}]}


def test_a_pickle_is_measured_as_its_safetensors(tmp_path):
    directory = save_model(tmp_path / "model", "bert", WORDS, tiny_masked_lm)
    tokens = torch.tensor([[0, 5, 6, 2]])
    expected = open_model(directory, None).states(tokens, see_masks=True)[-1].states
    torch.save(safetensors.torch.load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    assert torch.equal(open_model(directory, None).states(tokens, see_masks=True)[-1].states, expected)

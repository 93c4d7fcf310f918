"""No directory of ``transformers`` makes a command fetch or run code."""

import json
import shutil

import pytest
import safetensors.torch
import torch

from mae_lm_fairseq.measures.readers import open_model
from mae_lm_fairseq.utils.files import read_json, write_json
from mae_lm_fairseq.utils.hashes import HASHES
from mae_lm_fairseq.utils.hugging_face import file_without_code, without_code
from tests.support.commands import run_verb
from tests.support.families import change_json
from tests.support.huggingface import save_model, tiny_masked_lm

WORDS = ["the", "dog", "sleeps", "fox", "jumps"]
TEXT = "the dog sleeps\nthe fox jumps the dog\n\nfox sleeps\ndog jumps the fox\n" * 8
KERNEL = "someone/attention"


SMUGGLED = {"attribute_map": {"smuggled": "_attn_implementation_internal"}, "smuggled": KERNEL}


@pytest.fixture(
    params=[
        ("bert", {"attn_implementation": KERNEL}),
        ("deberta-v2", {"_attn_implementation": KERNEL}),  # is wrapped
        ("deberta-v2", SMUGGLED),
    ],
    ids=["bert", "wrapped", "attribute_map"],
)
def poisoned(request, tmp_path, monkeypatch):
    """Return a directory whose configuration names a kernel; loading one is an error, as if ``kernels`` was there."""

    def load(*arguments, **options):
        pytest.fail(f"transformers looks for a kernel: {arguments}")

    monkeypatch.setattr("transformers.modeling_flash_attention_utils._lazy_imports", load)
    monkeypatch.setattr("transformers.integrations.hub_kernels.get_kernel", load)
    kind, keys = request.param
    directory = save_model(tmp_path / "poisoned", kind, WORDS, tiny_masked_lm)
    change_json(directory / "config.json", **keys)
    return directory


def test_no_verb_loads_a_kernel(poisoned, tmp_path):
    (tmp_path / "text").write_text(TEXT)
    words = tmp_path / "words"
    rows = [f"1\t{word}\t_\t{tag}" + "\t_" * 6 + "\n\n" for word, tag in (("the", "DET"), ("dog", "NOUN"))]
    words.write_text("".join(rows * 20))
    (tmp_path / "blimp").mkdir()
    pair = {"sentence_good": "the dog", "sentence_bad": "dog the", "field": "syntax", "UID": "order"}
    (tmp_path / "blimp/order.jsonl").write_text(json.dumps(pair) + "\n")
    texts = ["--text", tmp_path / "text", "--tokens-per-sample", 16]
    run_verb("rank", poisoned, *texts, "--bootstrap", 2, "--out", tmp_path / "rank")
    run_verb("evaluate", poisoned, *texts, "--out", tmp_path / "loss.json")
    run_verb(
        "probe", poisoned, "--train", tmp_path / "words", "--test", tmp_path / "words", "--out", tmp_path / "probe"
    )
    run_verb("minimal-pairs", poisoned, "--pairs", tmp_path / "blimp", "--out", tmp_path / "pairs")
    (tmp_path / "valid").write_text(TEXT)
    corpus = ["--train", tmp_path / "text", "--valid", tmp_path / "valid"]
    run_verb("prepare", "--tokenizer", poisoned, *corpus, "--destdir", tmp_path / "data-bin")
    run_verb("import", poisoned, "--out", tmp_path / "bundle")
    run_verb("export", tmp_path / "bundle", "--out", tmp_path / "stock")
    config = read_json(tmp_path / "stock/config.json")
    assert {"attribute_map", "_attn_implementation", "attn_implementation"}.isdisjoint(config)


HOSTILE = {
    "config.json": {
        "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Config"},
        "custom_pipelines": {"fill-mask": {"impl": "evil.Pipeline"}},
        "quantization_config": {"quant_method": "mxfp4"},
        "transformers_weights": "../evil.safetensors",
        **SMUGGLED,
    },
    "tokenizer_config.json": {
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]},
        "vocab_file": "/etc/passwd",
    },
    "sentence_bert_config.json": {
        "model_kwargs": {"attn_implementation": KERNEL, "trust_remote_code": True},
        "config_args": {"trust_remote_code": True},
    },
}
"""Keys by which transformers or sentence-transformers run or load something, by file."""


def test_an_export_keeps_no_key_that_leads_to_code(tmp_path):
    """Neither does the bundle, and what is computed stays the same."""
    directory = save_model(tmp_path / "hostile", "bert", WORDS, tiny_masked_lm)
    module = {"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    pooling = {"name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    write_json(directory / "modules.json", [{"idx": 0, **module}, {"idx": 1, **pooling}])
    (directory / "1_Pooling").mkdir()
    change_json(directory / "1_Pooling/config.json", word_embedding_dimension=16)
    change_json(directory / "sentence_bert_config.json", max_seq_length=16)
    run_verb("import", directory, "--out", tmp_path / "bundle")
    run_verb("export", tmp_path / "bundle", "--out", tmp_path / "expected")
    for name, keys in HOSTILE.items():
        change_json(directory / name, **keys)
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')")
    run_verb("import", directory, "--out", tmp_path / "bundle-2")
    for name, keys in HOSTILE.items():  # as of a bundle from others
        path = tmp_path / "bundle-2/original" / name
        assert read_json(path).keys().isdisjoint(keys.keys() - {"smuggled"})
        change_json(path, **keys)
    (tmp_path / "bundle-2" / HASHES).unlink()
    run_verb("export", tmp_path / "bundle-2", "--out", tmp_path / "stock")
    for name, keys in HOSTILE.items():
        assert read_json(tmp_path / "stock" / name).keys().isdisjoint(keys.keys() - {"smuggled"})
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "stock" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert not (tmp_path / "it-ran").exists()


def test_files_without_such_keys_are_kept_byte_by_byte():
    for content in (b'{"a":1}', b'{ "vocab" : [1, 2] }\n', b"no JSON", b"[" * 10_000):
        assert file_without_code("config.json", content) == content


def test_a_bundle_read_by_transformers_loads_no_kernel(bundles, tmp_path, monkeypatch):
    from transformers import AutoModelForMaskedLM

    import mae_lm_fairseq.trained.huggingface.modeling  # noqa: F401  registers the class

    monkeypatch.setattr(
        "transformers.integrations.hub_kernels.get_kernel", lambda *names, **options: pytest.fail(f"{names}")
    )
    bundle = shutil.copytree(bundles["mae_lm_tiny"], tmp_path / "bundle")
    change_json(bundle / "config.json", **SMUGGLED, attn_implementation=KERNEL)
    (bundle / HASHES).unlink()
    model = AutoModelForMaskedLM.from_pretrained(bundle)
    assert model.config._attn_implementation != KERNEL
    assert {"attribute_map", "attn_implementation"}.isdisjoint(model.config.to_dict())


def test_keys_that_lead_to_code_are_dropped_at_any_depth():
    config = {"model_type": "a", "parts": [{"_attn_implementation": KERNEL, "size": 1}], "experts_implementation": "b"}
    assert without_code(config) == {"model_type": "a", "parts": [{"size": 1}]}


def test_a_pickle_is_measured_as_its_safetensors(tmp_path):
    directory = save_model(tmp_path / "model", "bert", WORDS, tiny_masked_lm)
    tokens = torch.tensor([[0, 5, 6, 2]])
    expected = open_model(directory, None).states(tokens, see_masks=True)[-1].states
    torch.save(safetensors.torch.load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    assert torch.equal(open_model(directory, None).states(tokens, see_masks=True)[-1].states, expected)

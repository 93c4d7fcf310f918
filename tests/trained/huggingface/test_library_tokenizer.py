"""Exports of models whose tokenizer is of Hugging Face's library: the exported tokenizer is the one that was used."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import mae_lm_fairseq.trained.huggingface.modeling  # noqa: F401  it registers the class
from mae_lm_fairseq.core.packing import batch_layout
from mae_lm_fairseq.text.hugging_face_tokenizer import exported_library
from mae_lm_fairseq.text.tokenizer import MASK, PAD
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.comparison import compare_ids
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.huggingface.tokenizer import exported_tokenizer
from mae_lm_fairseq.trained.opening import open_pretrained
from mae_lm_fairseq.trained.reading import build
from mae_lm_fairseq.utils.files import read_json
from tests.support.exports import WITH_BIAS, WITHOUT_BIAS, pretrained
from tests.support.families import change_json
from tests.support.refusals import refused
from tests.support.tokenizers import ALL_KINDS, make, paragraphs

KINDS = ("byte-bpe", "bert", "roberta", "unigram", "gpt2", "fairseq")
# transformers' MPNet takes id 1 for padding.
WITHOUT_MPNET = ("gpt2", "unigram")


@pytest.fixture(params=KINDS)
def tokenizer(request):
    return make(request.param)


def model(tokenizer, preset="mae_lm", **options):
    changes = WITHOUT_BIAS if tokenizer in map(make, WITHOUT_MPNET) else WITH_BIAS
    return pretrained(preset, changes, tokenizer=tokenizer, **options)


def ids_of_all(fast):
    return [fast.convert_tokens_to_ids(token) for token in (fast.cls_token, fast.pad_token, fast.sep_token)]


def test_stock_models_and_their_tokenizer(tokenizer, tmp_path):
    """The exporter itself compares ids, hidden states and predictions. The tokenizer is the one that was used."""
    export_stock(model(tokenizer, "mae_lm_roberta"), tmp_path / "out", lines=paragraphs(20, seed=3))
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = fast("the of", "is not")["input_ids"]
    first, second = (tokenizer.exported_ids[ids].tolist() for ids in tokenizer.encode_lines(["the of", "is not"]))
    bos, _, eos = ids_of_all(fast)
    assert ids == [bos, *first, eos, eos, *second, eos]
    config = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config
    assert [config.bos_token_id, config.pad_token_id, config.eos_token_id] == ids_of_all(fast)
    ours = json.loads(exported_library(tokenizer).to_str())
    theirs = read_json(tmp_path / "out/tokenizer.json")
    for part in ("model", "normalizer", "pre_tokenizer", "decoder", "added_tokens"):
        assert theirs[part] == ours[part]


def test_bundles(tokenizer, tmp_path):
    """A bundle has the tokenizer's own ids, and the same weights when it is read."""
    original = model(tokenizer)
    write_bundle(original, tmp_path / "out", add_tokenizer_and_card)
    again = open_pretrained(tmp_path / "out")
    assert (again.config, again.symbols, again.about) == (original.config, original.symbols, original.about)
    assert again.weights.keys() == original.weights.keys()
    for name, weight in again.weights.items():  # no token has the first rows of positions
        first = PAD + 1 if name.endswith("embed_positions.weight") else 0
        assert torch.equal(weight[first:], original.weights[name][first:]), name
    texts = paragraphs(20, seed=5)
    assert all(map(np.array_equal, again.tokenizer.encode_lines(texts), tokenizer.encode_lines(texts)))

    [line] = tokenizer.encode_lines([" ".join(texts)])
    tokens = torch.tensor([[0, *line[:20].tolist(), 2]])
    order = torch.from_numpy(tokenizer.exported_ids)
    batch = AutoTokenizer.from_pretrained(tmp_path / "out")(" ".join(texts), return_tensors="pt")["input_ids"]
    assert torch.equal(batch[:, :21], order[tokens[:, :21]])
    tokens[0, [3, 7]] = original.mask
    is_mask = tokens.eq(original.mask)
    logits = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()(order[tokens]).logits[is_mask]
    ours = build(original)(tokens, batch_layout(tokens, is_mask, PAD, original.mask))
    torch.testing.assert_close(logits[:, order], ours, rtol=1e-5, atol=1e-5)


MASKED = (
    "<mask>",
    "the<mask>of",
    "the <mask> of",
    "<mask>.",
    " <mask>  is <mask><mask>, of ",
    "not <mask>! \u00a0<mask>",
)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_masks_in_text_are_those_of_our_own_interface(kind):
    tokenizer = make(kind)
    fast = exported_tokenizer(tokenizer, (*tokenizer.symbols, MASK), 64)
    for text in (*MASKED, *(line.replace(" ", " <mask> ", 2) for line in paragraphs(20))):
        theirs = fast(text.replace("<mask>", fast.mask_token), add_special_tokens=False)["input_ids"]
        assert tokenizer.exported_ids[tokenizer.encode_masked(text)].tolist() == theirs


def test_an_export_with_another_mask_is_refused(tmp_path):
    original = model(make("byte-bpe"))
    exported_tokenizer(original.tokenizer, original.symbols, 64).save_pretrained(tmp_path)
    compare_ids(tmp_path, original, ["the of"])
    added = read_json(tmp_path / "tokenizer.json")["added_tokens"]
    change_json(tmp_path / "tokenizer.json", added_tokens=[token | {"lstrip": False} for token in added])
    with refused("'the <mask> of'"):
        compare_ids(tmp_path, original, ["the of"])

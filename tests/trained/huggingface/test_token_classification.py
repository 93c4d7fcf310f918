"""Export of models that label words: the same labels from stock transformers, for every kind of tokenizer."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer, pipeline

from mae_lm_fairseq.core.heads import TokenClassificationHead
from mae_lm_fairseq.trained.hub import hub_interface
from mae_lm_fairseq.trained.huggingface.exporter import export_stock
from mae_lm_fairseq.trained.huggingface.families import FAMILIES
from mae_lm_fairseq.trained.huggingface.importer import import_foreign
from mae_lm_fairseq.trained.info import ModelInfo, WordTask
from mae_lm_fairseq.trained.tags import Tagger
from mae_lm_fairseq.trained.validation import WORD_HEAD
from tests.support.comparisons import assert_close, assert_equal
from tests.support.exports import WITH_BIAS, WITHOUT_BIAS, pretrained, with_facts
from tests.support.tokenizers import ALL_KINDS, make
from tests.support.weights import with_head

LABELS = ("B-x", "I-x", "O")
SENTENCES = [
    ["The", "tokenizer", "don't", "is", "e-mail", "."],
    ["naïve", "1,234.5", "(", "maybe", ")", "東京は", "😀"],
    ["of"],
]
# MPNet's code takes id 1 for padding, which is another token in some vocabularies.
KINDS = [("mpnet", kind) for kind in ALL_KINDS if kind not in ("bert", "gpt2", "unigram")]
KINDS += [("roberta", kind) for kind in ALL_KINDS]


def tagger(original):
    """Return a model with a random head that labels words."""
    torch.manual_seed(1)
    head = TokenClassificationHead(original.config.encoder_embed_dim, len(LABELS), 0.0, init_std=0.3)
    tagging = replace(original, weights=with_head(original.weights, WORD_HEAD, head))
    task = WordTask(labels=LABELS, scheme="BIO", column="2")
    return with_facts(tagging, task="token_classification", finetuned_on=task)


def check_labels(original, directory):
    """Compare the logits of words, and the labels of a pipeline, with the original's."""
    assert AutoConfig.from_pretrained(directory).id2label == dict(enumerate(LABELS))
    fast = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForTokenClassification.from_pretrained(directory).eval()
    batch = fast(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model(**batch).logits
    hub = hub_interface(original)
    for row, (words, ours) in enumerate(zip(SENTENCES, Tagger(hub).logits(SENTENCES), strict=True)):
        numbers = batch.word_ids(row)
        first = [numbers.index(word) for word in range(len(words))]
        # Single precision; hidden states are of the order of 1.
        assert_close(theirs[row, first], torch.from_numpy(ours), 1e-5)

    labelled = pipeline("token-classification", model=model, tokenizer=fast, ignore_labels=[])(" ".join(SENTENCES[0]))
    for word in hub.tag(SENTENCES[0]):
        # The space before a word may be part of its first token.
        first = next(token for token in labelled if token["end"] > word.start - 1)
        assert first["entity"] == word.label


@pytest.mark.parametrize(("kind", "tokenizer"), KINDS)
def test_stock_transformers_gives_the_same_labels(kind, tokenizer, tmp_path):
    changes = WITH_BIAS if kind == "mpnet" else WITHOUT_BIAS
    original = tagger(pretrained("mae_lm", changes, tokenizer=make(tokenizer)))
    written = export_stock(original, tmp_path / "out")
    assert written == {"mpnet": "MPNet", "roberta": "Roberta"}[kind] + "ForTokenClassification"
    check_labels(original, tmp_path / "out")


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("has_head", [False, True])
def test_imported_models_label_words_in_their_own_class(kind, has_head, stock, tmp_path):
    source = stock(kind, "ForTokenClassification", labels=LABELS) if has_head else stock(kind)
    original = import_foreign(source, "mae_lm")
    if not has_head:
        original = tagger(original)
    assert Tagger(hub_interface(original)).labels.scheme == "BIO"
    assert export_stock(original, tmp_path / "out") == f"{FAMILIES[kind].classes}ForTokenClassification"
    check_labels(original, tmp_path / "out")
    if has_head:
        exported, before = (load_file(path / "model.safetensors") for path in (tmp_path / "out", source))
        assert_equal(exported, before)


def test_labels_that_are_not_known_get_numbers(tmp_path):
    original = replace(tagger(pretrained("mae_lm", WITH_BIAS, tokenizer=make("sentencepiece-bpe"))), about=ModelInfo())
    export_stock(original, tmp_path / "out")
    assert AutoConfig.from_pretrained(tmp_path / "out").id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}

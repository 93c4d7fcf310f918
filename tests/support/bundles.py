"""Checkpoints and bundles of every kind of model, with a tokenizer, for the tests that read them."""

from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.core.heads import SpanHead, TokenClassificationHead
from mae_lm_fairseq.text.data_bin import TOKENIZER, dictionary_fingerprint
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, SplitStatistics
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.huggingface.model_card import add_tokenizer_and_card
from mae_lm_fairseq.trained.reading import read_checkpoint
from mae_lm_fairseq.trained.validation import WORD_HEAD
from mae_lm_fairseq.utils.versions import OF_DATA, versions
from tests.support.finetuning import finetune, save_pretrained, write_sentences
from tests.support.tokenizers import write_sentencepiece
from tests.support.training import set_up
from tests.support.weights import with_head

TEXT = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "東京は日本の首都です。 今日は良い天気です。",
    "naïve café, déjà vu; 1,234.5 % of 'quoted' things (and more).",
    "The dog sleeps in the garden, and the fox does not.",
    "One sentence. And another, longer one.",
]
LABELS = ["B-person", "B-place", "I-person", "I-place", "O"]
VARIANTS = {
    **{f"{preset}_tiny": (f"{preset}_tiny",) for preset in PRESETS},
    "without_bias": ("mae_lm_tiny", "--relative-buckets 0 --decoder-relative-buckets 0"),
    "shared_positions": ("mae_lm_tiny", "--decoder-share-positions"),
    "narrow_decoder": ("mae_lm_tiny", "--decoder-embed-dim 8 --decoder-attention-heads 2"),
}
"""Architecture and further options of each variant."""


@pytest.fixture(scope="session")
def text_data(tmp_path_factory) -> Path:
    """Create the files of a data-bin that are kept with a model: dictionary, tokenizer, manifest."""
    directory = write_sentencepiece(tmp_path_factory.mktemp("text") / "text-data", TEXT * 4, 200)
    tokenizer = SentencePieceTokenizer(directory / TOKENIZER)
    train = SplitStatistics(documents=1, lines=24, tokens_in=1000, tokens_out=1000, unk=0, unk_rate=0.0)
    fingerprint = dictionary_fingerprint(tokenizer.symbols)
    Manifest(
        versions(OF_DATA), {"train": ["/home/me/train.txt"]}, tokenizer.fingerprint, fingerprint, {"train": train}
    ).write(directory / MANIFEST)
    return directory


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory, text_data) -> dict[str, Path]:
    """Create a randomly initialised checkpoint of each variant, and one with each kind of head.

    The heads are: classification with two classes, regression, answer spans, and labels of words.
    """
    directory = tmp_path_factory.mktemp("checkpoints")
    # Larger standard deviations than in training, so that predictions and features differ visibly.
    paths = {
        name: save_pretrained(directory / f"{name}.pt", text_data, arch, "--init-std 0.2", *arguments)
        for name, (arch, *arguments) in VARIANTS.items()
    }
    for name, classes in (("classification", 2), ("regression", 1)):
        sentences = write_sentences(directory / f"{name}-data", text_data / "dict.txt", classes)
        options = ["--regression-target --best-checkpoint-metric loss"] if classes == 1 else []
        start = ["--restore-file", paths["mae_lm_tiny"], "--max-update 1"]
        start += ["--reset-optimizer", "--reset-dataloader", "--reset-meters"]
        finetune(sentences, directory / name, *start, *options, classes=classes)
        paths[name] = directory / name / "checkpoint_last.pt"
    paths["span"] = directory / "span.pt"
    torch.save(with_span_head(saved(paths["mae_lm_tiny"])), paths["span"])
    paths["tags"] = directory / "tags.pt"
    torch.save(with_tags_head(saved(paths["mae_lm_tiny"])), paths["tags"])
    return paths


@pytest.fixture(scope="session")
def bundles(tmp_path_factory, checkpoints, text_data) -> dict[str, Path]:
    """Write a bundle of each checkpoint."""
    directory = tmp_path_factory.mktemp("bundles")
    for name, checkpoint in checkpoints.items():
        write_bundle(read_checkpoint(checkpoint, text_data), directory / name, add_tokenizer_and_card)
    return {name: directory / name for name in checkpoints}


def saved(checkpoint: Path) -> dict:
    """Return the contents of a checkpoint."""
    return torch.load(checkpoint, weights_only=True)


def fairseq_model(name: str, checkpoints: dict[str, Path], text_data: Path):
    """Return the model of a variant that fairseq builds, with the weights of its checkpoint, in evaluation mode."""
    arch, *arguments = VARIANTS[name]
    model = set_up(text_data, *arguments, arch=arch).model
    model.load_state_dict(saved(checkpoints[name])["model"])
    return model.eval()


def with_span_head(state: dict) -> dict:
    """Return a pretraining checkpoint converted to a ``question_answering`` one with a random head."""
    return {**state, "model": with_head(state["model"], "span", SpanHead(16, init_std=0.5))}


def with_tags_head(state: dict) -> dict:
    """Return a pretraining checkpoint converted to a ``token_classification`` one with a random head."""
    head = TokenClassificationHead(16, len(LABELS), dropout=0.0, init_std=0.5)
    return {
        **state,
        "model": with_head(state["model"], WORD_HEAD, head),
        "cfg": {
            **state["cfg"],
            "task": {"_name": "token_classification", "column": "2", "tokens_per_sample": 64},
        },
        "task_state": state["task_state"] | {"labels": {"names": LABELS, "scheme": "BIO"}},
    }

"""Published pretraining settings of the papers, each value with its source.

This table is the single source of commands and YAML (``settings.py``) and of docs/recipes.md.
"""

from dataclasses import dataclass
from typing import Any

NOT_FOUND = "not found in a public source"
ADAM: dict[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-6}
"""Constants of Adam that all sources share."""


@dataclass(frozen=True)
class Setting:
    """A value of a recipe.

    Args:
        value: the value in the unit of its row; None if the source gives only words, or if no source was found.
        source: a key of :data:`SOURCES`; None if no source was found.
        words: the text of the source, if it is more than the value.
    """

    value: Any = None
    source: str | None = None
    words: str | None = None


SOURCES = {
    "script": "run_pretrain.sh of github.com/yumeng5/MAE-LM at 153ffe9",
    "inference": "an inference: the paper pretrains base as BERT was (quotations of Meng et al. 2024), whose 1,000,000 "
    "updates of 256 x 512 tokens are 125,000 of 2,048 x 512 (131 billion tokens)",
    "defaults": "defaults not changed by the script: fairseq/tasks/masked_lm.py, fairseq/models/ae/model.py at 153ffe9",
    "dictionary": "preprocess/pretrain/process-16gb.sh of github.com/yumeng5/MAE-LM at 153ffe9",
    "MAE-LM": "Meng et al. 2024 (arXiv 2302.02060), section 4, read in quotations only",
    "Table 9": "Liu et al. 2019 (arXiv 1907.11692), Table 9 in the appendix, read in reproductions only",
    "card": "model cards of roberta-base and roberta-large on the Hugging Face hub",
    "fairseq": "examples/roberta: config/pretraining/base.yaml, README.pretraining.md of fairseq at 3d262bb",
    "fairseq task": "defaults not changed by base.yaml: fairseq/tasks/masked_lm.py at 3d262bb",
    "3ML": "Liao et al. 2022 (arXiv 2211.04898), abstract",
    "3ML data": "README.data_processing.md of github.com/BaohaoLiao/3ml at 9b02c63, which has no training code",
    "3ML figure": "Liao et al. 2022 (arXiv 2211.04898), the example in Figure 2",
    "DinkyTrain": "run_efficient_mlm_recipe.sh of github.com/princeton-nlp/DinkyTrain at 8551095: 12.06 billion "
    "tokens, the budget of Izsak et al. 2021 (24hBERT)",
    "our choice": "this project's choice, as in MAE-LM's script",
    "ours": "settings of this project's quickstart, for minutes on a CPU; tested with tiny",
}

ROWS = {
    "corpus": "training text",
    "vocabulary": "vocabulary",
    "tokens": "tokens per sequence",
    "sequences": "sequences per update",
    "updates": "updates",
    "lr": "peak learning rate (Adam, linear warm-up and decay)",
    "warmup": "warm-up updates",
    "dropout": "dropout",
    "attention_dropout": "attention dropout",
    "weight_decay": "weight decay",
    "betas": "Adam's betas",
    "eps": "Adam's epsilon",
    "clip_norm": "gradient norm clipping (0: off)",
    "mask_prob": "fraction of tokens that are predicted",
    "kept": "of these, left unchanged",
    "random": "of these, replaced by random tokens",
    "decoder_layers": "decoder layers",
    "pre_norm": "layer norms",
}


def _column(**cells: Setting) -> dict[str, Setting]:
    return {row: cells.get(row, Setting()) for row in ROWS}


def _same(source: str, **values: Any) -> dict[str, Setting]:
    return {row: Setting(value, source) for row, value in values.items()}


def _norms(source: str, pre_norm: bool) -> dict[str, Setting]:
    return {"pre_norm": Setting(pre_norm, source, f"{'before' if pre_norm else 'after'} the sublayers")}


_BASE_PLUS = _column(
    corpus=Setting(None, "MAE-LM", "160 GB, as RoBERTa"),
    vocabulary=Setting(None, "dictionary", "sentencepiece, called 128k; the paper's size was not found"),
    sequences=Setting(2048, "script", "2,048 full ones: 64 processes of 16,384 tokens"),
    **_same("script", tokens=512, updates=2_000_000, lr=2e-4, warmup=10_000, dropout=0.1, attention_dropout=0.1),
    **_same("script", **ADAM, weight_decay=0.01, clip_norm=2.0, decoder_layers=4),
    **_same("defaults", mask_prob=0.15, kept=0.0, random=0.0),
    **_norms("defaults", False),
)
_BASE = {**_BASE_PLUS, "corpus": Setting(None, "MAE-LM", "16 GB, as BERT"), "updates": Setting(125_000, "inference")}
_ACADEMIC = _column(
    corpus=Setting(None, "DinkyTrain", "English Wikipedia and BookCorpus, about three times"),
    **_same("DinkyTrain", tokens=128, sequences=4096, updates=23_000, warmup=1380, dropout=0.1, attention_dropout=0.1),
    **_same("DinkyTrain", **ADAM, lr=2e-3, weight_decay=0.01, clip_norm=0.0, kept=0.0, random=0.0),
    **_norms("DinkyTrain", True),
    **_same("our choice", mask_prob=0.15, decoder_layers=4),
)

_ROBERTA = _column(
    corpus=Setting(None, "card", "160 GB: books and Wikipedia, CC-News, OpenWebText, Stories"),
    vocabulary=Setting(50_000, "card", "50,000, byte-level BPE"),
    tokens=Setting(512, "card"),
    sequences=Setting(8192, "Table 9", "8K"),
    **_same("Table 9", updates=500_000, lr=6e-4, warmup=24_000, dropout=0.1, attention_dropout=0.1),
    **_same("Table 9", **ADAM, weight_decay=0.01, clip_norm=0.0),
    **_same("card", mask_prob=0.15, kept=0.1, random=0.1),
    decoder_layers=Setting(0, "Table 9", "none"),
)
_ROBERTA_LARGE = {**_ROBERTA, **_same("Table 9", lr=4e-4, warmup=30_000)}

_FAIRSEQ = _column(
    corpus=Setting(None, "fairseq", "WikiText-103, as an example"),
    vocabulary=Setting(None, "fairseq", "GPT-2's byte-level BPE"),
    sequences=Setting(2048, "fairseq", "2,048: 8 GPUs of 16, 16 accumulated"),
    **_same("fairseq", tokens=512, updates=125_000, lr=5e-4, warmup=10_000, dropout=0.1, attention_dropout=0.1),
    **_same("fairseq", **ADAM, weight_decay=0.01, clip_norm=0.0),
    **_same("fairseq task", mask_prob=0.15, kept=0.1, random=0.1),
    decoder_layers=Setting(0, "fairseq", "none"),
    **_norms("fairseq", False),
)

_3ML = _column(
    corpus=Setting(None, "3ML data", "English Wikipedia and BookCorpus, 16 GB"),
    vocabulary=Setting(None, "3ML data", "GPT-2's byte-level BPE"),
    mask_prob=Setting(0.5, "3ML"),
    random=Setting(None, "3ML figure", "some; the fraction was not found"),
    decoder_layers=Setting(None, "3ML", "a few"),
)

_DEVELOPMENT = _column(
    corpus=Setting(None, "ours", "yours; millions of tokens"),
    vocabulary=Setting(None, "ours", "3,000 in the quickstart"),
    # Not required, but 0.07 nats better after 1,500 updates, and faster: the text is read little more than once.
    **_same("ours", dropout=0.0, attention_dropout=0.0),
    # At 2e-3 the hidden states of MAE-LM's encoder collapse onto a few directions for good.
    **_same("ours", lr=1e-3, warmup=500, updates=2000, tokens=64, sequences=32),
    **_same("ours", **ADAM, weight_decay=0.01, clip_norm=2.0),
    **_same("ours", mask_prob=0.15, kept=0.0, random=0.0),
    decoder_layers=Setting(None, "ours", "tiny 2, small 4"),
    **_norms("ours", False),
)

PUBLISHED: dict[str, dict[str, Setting]] = {
    "MAE-LM base": _BASE,
    "MAE-LM base++": _BASE_PLUS,
    "MAE-LM large++": _BASE_PLUS,
    "academic": _ACADEMIC,
    "RoBERTa base": _ROBERTA,
    "RoBERTa large": _ROBERTA_LARGE,
    "fairseq's RoBERTa base": _FAIRSEQ,
    "3ML base": _3ML,
    "3ML large": _3ML,
    "development": _DEVELOPMENT,
}
"""The rows of :data:`ROWS` for each paper and size. A cell without a source was not found, and is no recipe."""

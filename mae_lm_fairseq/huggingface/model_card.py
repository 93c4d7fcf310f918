"""Model card: the README.md of an exported directory."""

import json

from mae_lm_fairseq.core.config import ARCHITECTURES, MaskJoin
from mae_lm_fairseq.huggingface.tokenizer import EXCEPTIONS
from mae_lm_fairseq.pretrained.reading import Pretrained
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer

_PRESETS = {
    "mae_lm": "MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060)",
    "mae_lm_roberta": "vanilla masked language model (BERT, RoBERTa)",
    "mae_lm_3ml_self": "3ML-self (Liao et al., Findings of EMNLP 2022, arXiv 2211.04898)",
    "mae_lm_3ml_cross": "3ML-cross (Liao et al., Findings of EMNLP 2022, arXiv 2211.04898)",
    "mae_lm_mask_later": "[MASK] joins inside the encoder (the analysis of 3ML, arXiv 2211.04898)",
}
_USE = {
    "Model": "Features of text, and fine-tuning. Not for filling in `<mask>`: see below.",
    "ForMaskedLM": "Features of text, fine-tuning, and filling in `<mask>`.",
    "ForSequenceClassification": "Classifying texts, or pairs of them, as in the task that it was fine-tuned on.",
    "ForQuestionAnswering": "Finding the answer to a question in a text.",
}
_MASK_WARNING = {
    MaskJoin.decoder: (
        "**This encoder never saw `<mask>`.** In pretraining, the encoder received the visible tokens only, and a "
        "decoder, which is not part of this export, predicted the masked ones. Do not put `<mask>` into its input: the "
        "hidden state of such a token is meaningless, and it disturbs the others. To fill in masks, export the whole "
        "autoencoder (`mae-lm export --autoencoder`)."
    ),
    MaskJoin.encoder: (
        "**The lower layers of this encoder never saw `<mask>`.** In pretraining it joined between two layers, which a "
        "stock model cannot do. On text without `<mask>` the two compute the same; do not put `<mask>` into its input."
    ),
}


def stock_card(pretrained: Pretrained, architecture: str, task: str, lines: int, reordered: int) -> str:
    """Return the model card for an export as a stock class.

    Args:
        pretrained: the exported model.
        architecture: the class of ``transformers``.
        task: the suffix of the class name.
        lines: number of lines of text that were compared.
        reordered: number of lines that the tokenizer splits into the same subwords in another order.
    """
    warnings = [_MASK_WARNING[pretrained.config.mask_join]] if pretrained.config.mask_join in _MASK_WARNING else []
    if task in ("Model", "ForMaskedLM"):
        warnings.append(
            f"The pooler of `{architecture.removesuffix(task)}Model` is not exported, because this encoder has none. "
            "`AutoModel` warns that it starts from random weights, and `pooler_output` is meaningless. Use "
            "`last_hidden_state`."
        )
    auto_class = "AutoModel" if task == "Model" else f"AutoModel{task}"
    return _card(pretrained, architecture, _USE[task], warnings, auto_class, lines, reordered)


def autoencoder_card(pretrained: Pretrained, lines: int, reordered: int) -> str:
    """Return the model card for an export as this package's class."""
    warnings = [
        "`MAELMForMaskedLM` is a class of the package `mae_lm_fairseq`: install it and `import "
        "mae_lm_fairseq.huggingface.modeling` before `AutoModelForMaskedLM.from_pretrained`. No code is loaded from "
        "this directory."
    ]
    return _card(
        pretrained,
        "MAELMForMaskedLM",
        "Filling in `<mask>`, with the decoder if the model has one.",
        warnings,
        "AutoModelForMaskedLM",
        lines,
        reordered,
    )


def _card(
    pretrained: Pretrained,
    architecture: str,
    use: str,
    warnings: list[str],
    auto_class: str,
    lines: int,
    reordered: int,
) -> str:
    about = pretrained.about
    name = about.get("architecture") or "unknown"
    preset = _PRESETS[ARCHITECTURES[name][0]] if name in ARCHITECTURES else ""
    facts = {
        "class": f"`{architecture}`, float32",
        "architecture in pretraining": f"`{name}` {preset}".rstrip(),
        "task": about.get("task"),
        "updates": about.get("updates"),
        "data": _inline(about.get("trained_on")),
        "dictionary (SHA-256)": about.get("dictionary_sha256"),
        "versions": _inline(about.get("versions")),
        "maximum sequence length": f"{pretrained.config.max_positions} tokens, `<s>` and `</s>` included",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value is not None)
    cautions = "\n\n".join(warnings)
    load = (
        f"from transformers import {auto_class}, AutoTokenizer\n"
        f'tokenizer, model = AutoTokenizer.from_pretrained("."), {auto_class}.from_pretrained(".")'
    )
    return f"""---
library_name: transformers
tags: [mae-lm, masked-language-modeling]
---

# {name} as {architecture}

Exported by `mae_lm_fairseq` (`mae-lm export`).

| | |
| --- | --- |
{table}

## Intended use

{use} It has the biases of the text that it was trained on.

```python
{load}
```

## Limitations

{cautions}

## Tokenizer

{_tokenizer(pretrained, lines, reordered)}
"""


def _tokenizer(pretrained: Pretrained, lines: int, reordered: int) -> str:
    if pretrained.tokenizer is None:
        return (
            "This directory has no tokenizer, because none was kept with the training data. Use the tokenizer of "
            "its training data; the ids are those of fairseq's dictionary. The hidden states were compared with the "
            "original's on random ids."
        )
    but = f", except for the order of subwords in {reordered} lines (see below)" if reordered else ""
    compared = (
        f"At export, ids, hidden states and predictions were compared with the original on {lines} lines of text, and "
        f"agreed{but}."
    )
    if not isinstance(pretrained.tokenizer, SentencePieceTokenizer):
        return (
            f"The tokenizer of the training data itself. {compared} Special tokens written out in a text are special "
            "tokens here; in the training data they were ordinary text."
        )
    exceptions = "\n".join(f"- {exception}" for exception in EXCEPTIONS)
    return (
        f"Built from the sentencepiece model, with fairseq's ids. {compared} On ordinary text the ids equal "
        f"sentencepiece's; they may differ for\n\n{exceptions}"
    )


def _inline(value) -> str | None:
    return None if not value else f"`{json.dumps(value, ensure_ascii=False)}`"

"""Model cards of bundles and exported directories, and the tokenizer of a bundle for ``transformers``."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mae_lm_fairseq.checkpoints.conversion import predicts
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.checkpoints.validation import head_names
from mae_lm_fairseq.core.config import ARCHITECTURES, MaskJoin
from mae_lm_fairseq.huggingface.task_classes import ENCODER
from mae_lm_fairseq.text.data_bin import TOKENIZER
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.utils.errors import UserError

if TYPE_CHECKING:  # it imports transformers
    from mae_lm_fairseq.huggingface.stock import Counterpart

EXCEPTIONS = (
    "`<mask>`, `<s>`, `</s>`, `<pad>` and `<unk>` written out in a text, which are special tokens here, but ordinary "
    "characters to sentencepiece (the space before a `<mask>` belongs to it; text that follows it without a space "
    "continues the same word)",
    "U+2581, sentencepiece's own sign for a space, at the start of a text",
    "decomposed text beyond a letter with one mark: several combining marks on a letter, a mark or a joiner behind a "
    "character that Unicode normalisation (NFKC) changes, Hangul in separate jamo; `tokenizers` normalises grapheme "
    "clusters, sentencepiece the longest match",
    "for a unigram model, equally probable splits into the same subwords, such as 0 00 and 00 0, where rounding "
    "decides",
)
"""Cases in which the ids of the fast tokenizer may differ from sentencepiece's."""

_PRESETS = {
    "mae_lm": "MAE-LM (Meng et al., ICLR 2024, arXiv 2302.02060)",
    "mae_lm_roberta": "vanilla masked language model (BERT, RoBERTa)",
    "mae_lm_3ml_self": "3ML-self (Liao et al., Findings of EMNLP 2022, arXiv 2211.04898)",
    "mae_lm_3ml_cross": "3ML-cross (Liao et al., Findings of EMNLP 2022, arXiv 2211.04898)",
    "mae_lm_mask_later": "[MASK] joins inside the encoder (the analysis of 3ML, arXiv 2211.04898)",
    "mae_lm_exlm": "ExLM (Zheng et al., ICML 2025, arXiv 2501.13397)",
    "mae_lm_exlm_decoder": "MAE-LM whose decoder expands [MASK] as ExLM does (arXiv 2302.02060, 2501.13397)",
}
_DECODER = "a decoder, which is not part of this export, predicted the masked ones."
_MASK_WARNING = {
    MaskJoin.decoder: (
        "**This encoder never saw a mask token.** In pretraining, the encoder received the visible tokens only, and "
        f"{_DECODER} Do not put mask tokens into its input: the hidden states of such tokens are meaningless, and they "
        "disturb the others. To fill in masks, use a bundle (`mae-lm bundle`)."
    ),
    MaskJoin.encoder: (
        "**The lower layers of this encoder never saw a mask token.** In pretraining it joined between two layers, "
        "which a stock model cannot do. On text without mask tokens the two compute the same; do not put mask tokens "
        "into its input."
    ),
}


_MASKS_IN_ENCODER = (
    "**This model does not fill in masks.** In pretraining, the encoder received the visible tokens and {:.0%} of the "
    f"mask tokens, and {_DECODER} To fill in masks, use a bundle (`mae-lm bundle`)."
)
_EXPANDED = (
    "**This model does not fill in masks.** In pretraining, every mask token became {} hidden states, which a stock "
    "model cannot do. On text without mask tokens the two compute the same; do not put mask tokens into its input. To "
    "fill in masks, use a bundle (`mae-lm bundle`)."
)
_WITHOUT_MASKS = (
    "**This model was trained without mask tokens.** Its predicted positions had random tokens, or their own. Do not "
    "put mask tokens into its input: their hidden states and predictions are meaningless."
)
_FINETUNED = "**Do not put mask tokens into the input.** Fine-tuning had none."


def _mask_warnings(pretrained: Pretrained, to: "Counterpart") -> list[str]:
    """Return what to know about mask tokens; whether the encoder saw any is not known after fine-tuning."""
    if _trained_without_masks(pretrained):
        return [_WITHOUT_MASKS]
    joins, fraction = pretrained.config.mask_join, pretrained.mask_in_encoder
    expands = joins is MaskJoin.embeddings and pretrained.config.mask_states > 1
    if joins not in _MASK_WARNING and not expands:
        return []
    if to.head:
        return [_FINETUNED]
    if expands:
        return [_EXPANDED.format(pretrained.config.mask_states)]
    return [_MASKS_IN_ENCODER.format(fraction) if joins is MaskJoin.decoder and fraction else _MASK_WARNING[joins]]


def _trained_without_masks(pretrained: Pretrained) -> bool:
    return pretrained.about.other_tokens == 1


def stock_card(pretrained: Pretrained, to: "Counterpart", lines: int, reordered: int) -> str:
    """Return the model card for an export as a stock class.

    Args:
        pretrained: the exported model.
        to: the class of ``transformers``.
        lines: number of lines of text that were compared.
        reordered: number of lines that the tokenizer splits into the same subwords in another order.
    """
    warnings = _mask_warnings(pretrained, to)
    if to.has_unset_pooler:
        warnings.append(
            f"The pooler of `{to.family.classes}Model` is not exported, because this encoder has none. "
            "`AutoModel` warns that it starts from random weights, and `pooler_output` is meaningless. Use "
            "`last_hidden_state`."
        )
    loading = _loading("AutoModel" if to.task is ENCODER else f"AutoModel{to.task.ending}")
    tokenizer = _stock_tokenizer(pretrained, lines, reordered)
    use = (ENCODER if _trained_without_masks(pretrained) else to.task).use
    return _card(pretrained, to.architecture, use, warnings, loading, tokenizer)


def add_tokenizer_and_card(pretrained: Pretrained, directory: Path) -> None:
    """Complete a bundle that :func:`~mae_lm_fairseq.checkpoints.bundle.write_bundle` writes.

    Where ``transformers`` is not installed, or cannot represent the tokenizer, the bundle has the tokenizer's own files
    only, which are all that this package reads; the model card says so.
    """
    lack = _add_tokenizer(pretrained, directory)
    (directory / "README.md").write_text(bundle_card(pretrained, lack), encoding="utf-8")


def _add_tokenizer(pretrained: Pretrained, directory: Path) -> str:
    """Write the tokenizer for ``transformers`` after comparing it; return why it is missing, or an empty string."""
    if pretrained.tokenizer is None:
        return "none was kept with the training data"
    try:
        from mae_lm_fairseq.huggingface.comparison import comparable, compare_ids
        from mae_lm_fairseq.huggingface.tokenizer import write_tokenizer
    except ImportError as error:
        return f"{error}, where the bundle was written"
    with tempfile.TemporaryDirectory() as temporary:
        try:
            write_tokenizer(pretrained, Path(temporary))
            compare_ids(Path(temporary), pretrained, comparable([]))
        except UserError as reason:
            return str(reason)
        shutil.copytree(temporary, directory, dirs_exist_ok=True)
    return ""


_OWN_LOADING = 'from mae_lm_fairseq import MAELMModel\nmodel = MAELMModel.from_pretrained(".")'


def bundle_card(pretrained: Pretrained, lack: str) -> str:
    """Return the model card of a bundle.

    Args:
        pretrained: the model.
        lack: why the bundle has no tokenizer for ``transformers``; empty if it has one.
    """
    heads = head_names(pretrained.weights)
    if heads:
        use = f"Predictions of the task that it was fine-tuned on (head {', '.join(f'`{head}`' for head in heads)})."
        code = _OWN_LOADING
    elif not predicts(pretrained):
        added = " and ".join(pretrained.about.untrained)
        use = f"Features of text, and further training. It predicts no tokens yet: it was imported without {added}."
        code = _OWN_LOADING
    elif _trained_without_masks(pretrained):
        use, code = ENCODER.use, _OWN_LOADING
    else:
        use = (
            "Features of text, fine-tuning, and filling in masked tokens, with the decoder if the model has one. "
            "`fill_mask` of a model that `MAELMModel.from_pretrained` loads takes `<mask>` for one, whatever the "
            "tokenizer calls it."
        )
        code = f"import mae_lm_fairseq.huggingface.modeling\n{_loading('AutoModelForMaskedLM')}"
    warning = (
        "Reading this directory needs the package `mae_lm_fairseq`; no code is loaded from it. `mae-lm export` makes a "
        "model of it that `transformers` reads by itself."
    )
    warnings = [warning, _WITHOUT_MASKS] if _trained_without_masks(pretrained) else [warning]
    if lack:
        tokenizer = f"`AutoTokenizer` cannot read this directory: {lack}."
    elif isinstance(pretrained.tokenizer, SentencePieceTokenizer):
        tokenizer = (
            f"`{TOKENIZER}` is the tokenizer of the training data, and this package reads it. `AutoTokenizer` reads "
            f"`tokenizer.json`, which was built from it. {_exceptions()}"
        )
    else:
        tokenizer = f"The tokenizer of the training data itself. {_SPECIAL_TOKENS}"
    return _card(pretrained, "MAELMForMaskedLM", use, warnings, code, tokenizer)


def _loading(auto_class: str) -> str:
    return (
        f"from transformers import {auto_class}, AutoTokenizer\n"
        f'tokenizer, model = AutoTokenizer.from_pretrained("."), {auto_class}.from_pretrained(".")'
    )


def _card(
    pretrained: Pretrained, architecture: str, use: str, warnings: list[str], loading: str, tokenizer: str
) -> str:
    about = pretrained.about
    name = about.architecture or "unknown"
    preset = _PRESETS[ARCHITECTURES[name][0]] if name in ARCHITECTURES else ""
    precision = "float32" if architecture != "MAELMForMaskedLM" else _precision(pretrained)
    facts = {
        "class": f"`{architecture}`, {precision}",
        "architecture in pretraining": f"`{name}` {preset}".rstrip(),
        "imported from": about.imported_from,
        "task": about.task,
        "updates": about.updates,
        "data": _inline(about.trained_on),
        "dictionary (SHA-256)": about.dictionary_sha256,
        "versions": _inline(about.versions),
        "maximum sequence length": f"{pretrained.config.max_positions} tokens, special tokens included",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in facts.items() if value is not None)
    cautions = "\n\n".join(warnings)
    return f"""---
library_name: transformers
tags: [mae-lm, masked-language-modeling]
---

# {name} as {architecture}

Written by `mae_lm_fairseq`.

| | |
| --- | --- |
{table}

## Intended use

{use} It has the biases of the text that it was trained on.

```python
{loading}
```

## Limitations

{cautions}

## Tokenizer

{tokenizer}
"""


def _stock_tokenizer(pretrained: Pretrained, lines: int, reordered: int) -> str:
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
        return f"The tokenizer of the training data itself. {compared} {_SPECIAL_TOKENS}"
    return f"Built from the sentencepiece model, with fairseq's ids. {compared} {_exceptions()}"


_SPECIAL_TOKENS = (
    "Special tokens written out in a text are special tokens here; in the training data they were ordinary text."
)


def _exceptions() -> str:
    exceptions = "\n".join(f"- {exception}" for exception in EXCEPTIONS)
    return f"On ordinary text the ids equal sentencepiece's; they may differ for\n\n{exceptions}"


def _precision(pretrained: Pretrained) -> str:
    return str(next(iter(pretrained.weights.values())).dtype).removeprefix("torch.")


def _inline(value) -> str | None:
    return None if not value else f"`{json.dumps(value, ensure_ascii=False)}`"

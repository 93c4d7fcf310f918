"""Model cards of bundles and exported directories, and the tokenizer of a bundle for ``transformers``."""

import json
import tomllib
from pathlib import Path
from typing import Any

from mae_lm_fairseq.core.config import MaskJoin
from mae_lm_fairseq.text.comparison_texts import texts_for
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.trained.conversion import architecture_of, predicts, preset_of
from mae_lm_fairseq.trained.huggingface.comparison import write_compared_tokenizer
from mae_lm_fairseq.trained.huggingface.stock import Counterpart, encodes_masks
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.trained.validation import head_names
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import code, escaped

_TEXTS = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
_USE, _WARNINGS, _TOKENIZER = (_TEXTS[part] for part in ("use", "warnings", "tokenizer"))


def stock_card(pretrained: Pretrained, to: Counterpart, lines: int, reordered: int) -> str:
    """Return the model card for an export as a stock class.

    ``lines`` of text were compared. The tokenizer splits ``reordered`` ones into the same subwords in another order.
    """
    warnings = [_mask_warning(pretrained, bool(to.head))]
    if to.has_unset_pooler:
        warnings.append(_WARNINGS["pooler"].format(classes=to.classes))
    use = "Model" if _trained_without_masks(pretrained) else to.task.ending
    auto_class = "AutoModel" + to.task.ending.removeprefix("Model")
    return _card(
        pretrained,
        architecture=to.architecture,
        precision="float32",
        use=_USE[use],
        loading=_TEXTS["stock_loading"].format(auto_class=auto_class),
        warnings=warnings,
        tokenizer=_compared_tokenizer(pretrained, lines, reordered),
    )


def card_with_decoder(pretrained: Pretrained, lines: int, reordered: int) -> str:
    """Return the model card for an export with its decoder; the arguments are those of :func:`stock_card`."""
    warnings = [_WARNINGS["code"]]
    if _trained_without_masks(pretrained):
        warnings.append(_WARNINGS["without_masks"])
    return _card(
        pretrained,
        architecture="MAELMForMaskedLM",
        precision="float32",
        use=_USE["Model" if _trained_without_masks(pretrained) else "ForMaskedLM"],
        loading=_TEXTS["code_loading"],
        warnings=warnings,
        tokenizer=_compared_tokenizer(pretrained, lines, reordered),
    )


def _compared_tokenizer(pretrained: Pretrained, lines: int, reordered: int) -> str:
    """Return the section about the tokenizer of an export."""
    but = _TOKENIZER["reordered"].format(reordered=reordered) if reordered else ""
    compared = _TOKENIZER["compared"].format(lines=lines, but=but)
    kind = "stock_sentencepiece" if _is_sentencepiece(pretrained) else "own"
    if pretrained.tokenizer is None:
        kind = "missing"
    return _TOKENIZER[kind].format(compared=compared, exceptions=_TOKENIZER["exceptions"])


def _mask_warning(pretrained: Pretrained, is_finetuned: bool) -> str:
    config, fraction = pretrained.config, pretrained.mask_in_encoder
    if _trained_without_masks(pretrained):
        return _WARNINGS["without_masks"]
    if encodes_masks(config):
        return ""
    if is_finetuned:  # whether the encoder saw any is not known
        return _WARNINGS["finetuned"]
    if config.mask_join is MaskJoin.embeddings:
        return _WARNINGS["expands_masks"].format(states=config.mask_states)
    if config.mask_join is MaskJoin.encoder:
        return _WARNINGS["masks_join_later"]
    return _WARNINGS["saw_some_masks" if fraction else "never_saw_masks"].format(fraction=fraction)


def _trained_without_masks(pretrained: Pretrained) -> bool:
    return pretrained.about.other_tokens == 1


def _is_sentencepiece(pretrained: Pretrained) -> bool:
    return isinstance(pretrained.tokenizer, SentencePieceTokenizer)


def add_tokenizer_and_card(pretrained: Pretrained, directory: Path) -> None:
    """Complete a bundle that :func:`~mae_lm_fairseq.trained.bundle.write_bundle` writes.

    Where ``transformers`` is not installed, or cannot represent the tokenizer, the bundle has the tokenizer's own files
    only, which are all that this package reads; the model card says so.
    """
    lack = _add_tokenizer(pretrained, directory)
    write_text(directory / "README.md", _bundle_card(pretrained, lack))


def _add_tokenizer(pretrained: Pretrained, directory: Path) -> str:
    if pretrained.tokenizer is None:
        return "none was kept with the training data"
    try:
        write_compared_tokenizer(pretrained, directory, texts_for(pretrained.tokenizer))
    except (UserError, ModuleNotFoundError) as reason:
        return str(reason)
    return ""


def _bundle_card(pretrained: Pretrained, lack: str) -> str:
    heads = head_names(pretrained.weights)
    loading = _TEXTS["own_loading"]
    if heads:
        use = _USE["heads"].format(heads=", ".join(map(code, heads)))
    elif not predicts(pretrained):
        use = _USE["predicts_nothing"].format(untrained=escaped(" and ".join(pretrained.about.untrained)))
    elif _trained_without_masks(pretrained):
        use = _USE["Model"]
    else:
        use = _USE["bundle"]
        stock = _TEXTS["stock_loading"].format(auto_class="AutoModelForMaskedLM")
        loading = f"import mae_lm_fairseq.trained.huggingface.modeling\n{stock}"
    warnings = [_WARNINGS["bundle"]]
    if _trained_without_masks(pretrained):
        warnings.append(_WARNINGS["without_masks"])
    kind = "bundle_sentencepiece" if _is_sentencepiece(pretrained) else "own"
    if lack:
        kind = "unreadable"
    return _card(
        pretrained,
        architecture="MAELMForMaskedLM",
        precision=pretrained.precision,
        use=use,
        loading=loading,
        warnings=warnings,
        tokenizer=_TOKENIZER[kind].format(lack=escaped(lack), compared="", exceptions=_TOKENIZER["exceptions"]),
    )


def _card(pretrained: Pretrained, *, architecture: str, precision: str, warnings: list[str], **texts: str) -> str:
    about = pretrained.about
    trained_as = architecture_of(pretrained)
    name = escaped((about.imported_from or trained_as).partition(",")[0])
    facts = {
        "class": f"`{architecture}`, {precision}",
        "trained here as": f"`{trained_as}` {_TEXTS['presets'][preset_of(pretrained)]}",
        "imported from": about.imported_from and escaped(about.imported_from),
        "task": about.task and escaped(about.task),
        "updates": about.updates,
        "data": _inline(about.trained_on),
        "dictionary (SHA-256)": about.dictionary_sha256 and escaped(about.dictionary_sha256),
        "versions": _inline(about.versions),
        "maximum sequence length": f"{pretrained.config.max_positions} tokens, special tokens included",
    }
    rows = [f"| {key} | {value} |" for key, value in facts.items() if value is not None]
    table = "\n".join(rows)
    cautions = "\n\n".join(filter(None, warnings))
    return _TEXTS["card"].format(name=name, architecture=architecture, facts=table, warnings=cautions, **texts)


def _inline(value: Any) -> str | None:
    """Return JSON as a span of code, in which no character ends it or the cell that it is in."""
    if not value:
        return None
    text = json.dumps(value, ensure_ascii=False)
    for sign in "`|<":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f"`{text}`"

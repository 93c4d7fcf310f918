"""Export of a pretrained or fine-tuned model to ``transformers``, verified against the original."""

import json
from collections.abc import Sequence
from pathlib import Path

from mae_lm_fairseq.huggingface.comparison import check_autoencoder, check_stock, comparable
from mae_lm_fairseq.huggingface.model_card import autoencoder_card, stock_card
from mae_lm_fairseq.huggingface.modeling import as_transformers_model
from mae_lm_fairseq.huggingface.stock import counterpart, write_stock
from mae_lm_fairseq.huggingface.tokenizer import exported_tokenizer
from mae_lm_fairseq.pretrained.reading import Pretrained
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import new_directory


def export_stock(pretrained: Pretrained, out: Path, head: str | None = None, lines: Sequence[str] = ()) -> str:
    """Write a directory for ``AutoModel`` and ``AutoTokenizer``, with a model card.

    Args:
        pretrained: the model to export.
        out: output directory, which must not exist yet.
        head: the head to export; required if the model has several.
        lines: text for the comparison, see :func:`~mae_lm_fairseq.huggingface.comparison.comparable`.

    Returns:
        Name of the class.

    Raises:
        UserError: if ``transformers`` has no equivalent model, or the exported model computes something else. Nothing
            is written in this case.
    """
    to, lines = counterpart(pretrained, head), comparable(lines)
    with new_directory(out) as directory:
        write_stock(pretrained, to, directory)
        write_tokenizer(pretrained, directory)
        reordered = check_stock(directory, pretrained, to, lines)
        card = stock_card(pretrained, to.architecture, to.task, len(lines), reordered)
        (directory / "README.md").write_text(card, encoding="utf-8")
    return to.architecture


def export_autoencoder(pretrained: Pretrained, out: Path, lines: Sequence[str] = ()) -> str:
    """Export the full autoencoder as :class:`~mae_lm_fairseq.huggingface.modeling.MAELMForMaskedLM`.

    Raises:
        UserError: if fine-tuning has removed the decoder, or the exported model makes other predictions.
    """
    if "autoencoder.lm_head.dense.weight" not in pretrained.weights:
        raise UserError("--autoencoder: this model was fine-tuned and has no decoder")
    lines = comparable(lines)
    with new_directory(out) as directory:
        model = as_transformers_model(pretrained)
        model.save_pretrained(directory)
        write_tokenizer(pretrained, directory)
        card = autoencoder_card(pretrained, len(lines), check_autoencoder(directory, pretrained, lines))
        (directory / "README.md").write_text(card, encoding="utf-8")
    return type(model).__name__


def write_tokenizer(pretrained: Pretrained, directory: Path):
    """Write the tokenizer, if the model has one, for ``transformers``; also the sentencepiece model of such a one."""
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        return
    exported_tokenizer(tokenizer, pretrained.symbols, pretrained.config.max_positions).save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    # transformers 4 knows the tokenizer class by this name, too.
    settings = {**json.loads(path.read_bytes()), "tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if isinstance(tokenizer, SentencePieceTokenizer):
        tokenizer.save(directory)

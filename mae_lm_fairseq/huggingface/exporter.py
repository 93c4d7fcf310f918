"""Export of a pretrained or fine-tuned model to ``transformers``, verified against the original."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mae_lm_fairseq.checkpoints.original import CONFIG
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.huggingface.comparison import check_stock, comparable, texts
from mae_lm_fairseq.huggingface.model_card import stock_card
from mae_lm_fairseq.huggingface.stock import Counterpart, counterpart, write_config, write_stock
from mae_lm_fairseq.huggingface.tokenizer import (
    load_tokenizer,
    pair_differences,
    read_lists_of_words,
    transformers_errors,
    write_tokenizer,
)
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.utils.files import new_directory


def export_stock(pretrained: Pretrained, out: Path, lines: Sequence[str] = ()) -> str:
    """Write a directory for ``AutoModel`` and ``AutoTokenizer``, with a model card.

    Args:
        pretrained: the model to export.
        out: output directory, which must not exist yet.
        lines: text for the comparison, see :func:`~mae_lm_fairseq.huggingface.comparison.comparable`.

    Returns:
        Name of the class.

    Raises:
        UserError: if ``transformers`` has no equivalent model, or the exported model computes something else. Nothing
            is written in this case.
    """
    to, lines = counterpart(pretrained), comparable(lines)
    with new_directory(out) as directory:
        write_stock(pretrained, to, directory)
        with _errors_of_kept_files(to, out):
            _write_tokenizer(pretrained, to, directory)
            if to.task.reads_words:
                read_lists_of_words(pretrained.tokenizer, directory)
            reordered = check_stock(directory, pretrained, to, lines)
        card = stock_card(pretrained, to, len(lines), reordered)
        (directory / "README.md").write_text(card, encoding="utf-8")
    return to.architecture


def check_exportable(pretrained: Pretrained) -> None:
    """Check that :func:`export_stock` has a class and a tokenizer for a model, whatever its weights are.

    Raises:
        UserError: if it has not; the message gives the reason.
    """
    to = counterpart(pretrained)
    with tempfile.TemporaryDirectory() as temporary, _errors_of_kept_files(to, Path(temporary)):
        write_config(pretrained, to, Path(temporary))
        _write_tokenizer(pretrained, to, Path(temporary))
        texts(Path(temporary), pretrained, to, comparable([]))


def _errors_of_kept_files(to: Counterpart, directory: Path) -> contextlib.AbstractContextManager:
    """Convert exceptions: the files that an import has kept may be damaged in ways that only their use shows."""
    return transformers_errors(directory) if to.original is not None else contextlib.nullcontext()


def _write_tokenizer(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write the tokenizer: the files of an imported model, or those of the model's own tokenizer, if it has one.

    The files of an imported model are not written if they join pairs of texts otherwise than the head was trained here.
    """
    if to.original is not None:
        files = [directory / name for name in to.original.files if name != CONFIG]
        for path in files:
            path.write_bytes(to.original.files[path.name])
        if not to.takes_our_pairs(pretrained) or not pair_differences(load_tokenizer(directory)):
            return
        for path in files:
            path.unlink()
    if pretrained.tokenizer is not None:
        write_tokenizer(pretrained, directory)
        if isinstance(pretrained.tokenizer, SentencePieceTokenizer):
            pretrained.tokenizer.save(directory)

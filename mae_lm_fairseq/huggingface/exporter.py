"""Export of a pretrained or fine-tuned model to ``transformers``, verified against the original."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mae_lm_fairseq.checkpoints.original import CONFIG
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.huggingface.comparison import check_stock, comparable
from mae_lm_fairseq.huggingface.model_card import stock_card
from mae_lm_fairseq.huggingface.stock import Counterpart, counterpart, write_stock
from mae_lm_fairseq.huggingface.task_classes import WORDS
from mae_lm_fairseq.huggingface.tokenizer import (
    pair_differences,
    read_lists_of_words,
    write_tokenizer,
)
from mae_lm_fairseq.huggingface.weight_files import transformers_errors
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer_files import load_from_transformers
from mae_lm_fairseq.utils.files import new_directory


def export_stock(pretrained: Pretrained, out: Path, lines: Sequence[str] = ()) -> str:
    """Write a directory for ``AutoModel`` and ``AutoTokenizer``, with a model card, and return the name of the class.

    ``lines`` are also compared, see :func:`~mae_lm_fairseq.huggingface.comparison.comparable`.

    Raises:
        UserError: if the directory exists, ``transformers`` has no equivalent model, or the exported model computes
            something else. Nothing is written in this case.
    """
    to, lines = counterpart(pretrained), comparable(lines)
    with new_directory(out) as directory:
        # The files that an import has kept may be damaged in ways that only their use shows.
        with transformers_errors(out) if to.original is not None else contextlib.nullcontext():
            write_stock(pretrained, to, directory)
            _write_tokenizer(pretrained, to, directory)
            if to.task is WORDS:
                read_lists_of_words(pretrained.tokenizer, directory)
            reordered = check_stock(directory, pretrained, to, lines)
        card = stock_card(pretrained, to, len(lines), reordered)
        (directory / "README.md").write_text(card, encoding="utf-8")
    return to.architecture


def check_exportable(pretrained: Pretrained, directory: Path) -> None:
    """Check that :func:`export_stock` exports a model, in a temporary subdirectory.

    Raises:
        UserError: if it does not; the message gives the reason.
    """
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        export_stock(pretrained, Path(temporary, "model"))


def _write_tokenizer(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write the tokenizer, if there is one: an imported model has its files, unless they do not join pairs as here."""
    if to.original is not None:
        files = [directory / name for name in to.original.files if name != CONFIG]
        for path in files:
            path.write_bytes(to.original.files[path.name])
        if not to.takes_our_pairs(pretrained) or not pair_differences(load_from_transformers(directory)):
            return
        for path in files:
            path.unlink()
    if pretrained.tokenizer is not None:
        write_tokenizer(pretrained, directory)
        if isinstance(pretrained.tokenizer, SentencePieceTokenizer):
            pretrained.tokenizer.save(directory)

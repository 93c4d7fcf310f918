"""Export of a pretrained or fine-tuned model to ``transformers``, verified against the original."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mae_lm_fairseq.core.config import plain_values
from mae_lm_fairseq.text.comparison_texts import texts_for
from mae_lm_fairseq.text.sentencepiece_tokenizer import SentencePieceTokenizer
from mae_lm_fairseq.text.tokenizer_files import load_from_transformers
from mae_lm_fairseq.trained.bundle import write_bundle
from mae_lm_fairseq.trained.conversion import why_no_predictions
from mae_lm_fairseq.trained.huggingface.comparison import (
    check_stock,
    check_with_decoder,
    random_ids,
    write_compared_tokenizer,
)
from mae_lm_fairseq.trained.huggingface.model_card import card_with_decoder, stock_card
from mae_lm_fairseq.trained.huggingface.stock import Counterpart, counterpart, write_stock
from mae_lm_fairseq.trained.huggingface.task_classes import WORDS
from mae_lm_fairseq.trained.huggingface.tokenizer import pair_differences, read_lists_of_words, write_tokenizer
from mae_lm_fairseq.trained.huggingface.weight_files import transformers_errors
from mae_lm_fairseq.trained.original import (
    CONFIG,
    ENCODER,
    LENGTH,
    MODULES,
    POOLING,
    STOCK_FILES,
    write_files,
)
from mae_lm_fairseq.trained.reading import Pretrained
from mae_lm_fairseq.utils.directories import new_directory
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, write_bytes, write_json, write_text
from mae_lm_fairseq.utils.writing import remove

CODE = Path(__file__).with_name("modeling_mae_lm.py")
"""The classes that an export with its decoder includes."""
_CLASSES = {"AutoConfig": "MAELMConfig", "AutoModel": "MAELMModel", "AutoModelForMaskedLM": "MAELMForMaskedLM"}


def export_with_decoder(
    pretrained: Pretrained, out: Path, lines: Sequence[str] = (), pooling: Literal["mean", "cls"] | None = None
) -> str:
    """Write encoder, decoder and language model head, with the code that computes them, and return the class's name.

    The directory is a bundle in float32 that ``AutoModelForMaskedLM`` reads with ``trust_remote_code=True``. The
    arguments are those of :func:`export_stock`.

    Raises:
        UserError: as :func:`export_stock`, or if the code does not compute the network. Nothing is written in this
            case.
    """
    reason = why_no_code(pretrained)
    if reason:
        raise UserError(
            f"--with-decoder does not export this model ({reason}). mae-lm bundle writes the whole model for this "
            "package, and mae-lm export without --with-decoder the encoder"
        )
    weights = {name: weight.float() for name, weight in pretrained.weights.items()}
    lines = texts_for(pretrained.tokenizer, lines)
    complete = partial(_add_code, lines=lines, pooling=pooling)
    write_bundle(replace(pretrained, weights=weights), out, complete)
    return _CLASSES["AutoModelForMaskedLM"]


def why_no_code(pretrained: Pretrained) -> str:
    """Return why a model cannot be exported with its decoder; empty if it can."""
    from mae_lm_fairseq.trained.huggingface.modeling_mae_lm import why_unsupported

    return why_unsupported(plain_values(pretrained.config)) or why_no_predictions(pretrained)


def _add_code(pretrained: Pretrained, directory: Path, lines: Sequence[str], pooling: str | None):
    """Complete a bundle with tokenizer, code and model card, and compare it with the original."""
    ids, reordered = random_ids(pretrained), 0
    if pretrained.tokenizer is not None:
        ids, reordered = write_compared_tokenizer(pretrained, directory, lines)
    _write_pooling(pretrained, pooling, directory)
    write_bytes(directory / CODE.name, CODE.read_bytes())
    auto_map = {auto: f"{CODE.stem}.{name}" for auto, name in _CLASSES.items()}
    write_json(directory / CONFIG, read_json(directory / CONFIG) | {"auto_map": auto_map})
    check_with_decoder(directory, pretrained, ids)
    write_text(directory / "README.md", card_with_decoder(pretrained, len(lines), reordered))


def export_stock(
    pretrained: Pretrained, out: Path, lines: Sequence[str] = (), pooling: Literal["mean", "cls"] | None = None
) -> str:
    """Write a directory for ``AutoModel`` and ``AutoTokenizer``, with a model card, and return the name of the class.

    Args:
        lines: are also compared, see :func:`~mae_lm_fairseq.text.comparison_texts.texts_for`.
        pooling: what ``sentence-transformers`` makes a vector of; None for what an imported model had, if anything.

    Raises:
        UserError: if the directory exists, ``transformers`` has no equivalent model, or the exported model computes
            something else. Nothing is written in this case.
    """
    to = counterpart(pretrained)
    lines = texts_for(pretrained.tokenizer, lines)
    with new_directory(out) as directory:
        # The files that an import has kept may be damaged in ways that only their use shows.
        with transformers_errors(out) if to.original is not None else contextlib.nullcontext():
            write_stock(pretrained, to, directory)
            _write_tokenizer(pretrained, to, directory)
            _write_pooling(pretrained, pooling, directory)
            if to.task is WORDS:
                read_lists_of_words(pretrained.tokenizer, directory)
            reordered = check_stock(directory, pretrained, to, lines)
        card = stock_card(pretrained, to, len(lines), reordered)
        write_text(directory / "README.md", card)
    return to.architecture


def _write_tokenizer(pretrained: Pretrained, to: Counterpart, directory: Path):
    """Write the tokenizer, if there is one: an imported model has its files, unless they do not join pairs as here."""
    if to.original is not None:
        stored = to.original.files
        files = {name: stored[name] for name in stored if name in STOCK_FILES and name != CONFIG}
        write_files(files, directory)
        if not to.takes_our_pairs(pretrained) or not pair_differences(load_from_transformers(directory)):
            return
        for name in files:
            remove(directory / name)
    if pretrained.tokenizer is not None:
        write_tokenizer(pretrained, directory)
        if isinstance(pretrained.tokenizer, SentencePieceTokenizer):
            pretrained.tokenizer.save(directory)


def sentence_files(pretrained: Pretrained) -> dict[str, bytes]:
    """Return the files of ``sentence-transformers`` that an imported model had, by name."""
    if pretrained.original is None:
        return {}
    files = pretrained.original.files
    return {name: files[name] for name in files if name not in STOCK_FILES}


def _write_pooling(pretrained: Pretrained, pooling: str | None, directory: Path):
    """Write the files of ``sentence-transformers``, whose versions all read the names that version 2 had."""
    files = sentence_files(pretrained)
    if pooling:
        folder = f"1_{POOLING}"
        settings = {
            "word_embedding_dimension": pretrained.config.encoder_embed_dim,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
        }
        described = {
            MODULES: [_module(0, "", ENCODER), _module(1, folder, POOLING)],
            f"{folder}/{CONFIG}": settings,
            LENGTH: {"max_seq_length": pretrained.config.max_positions, "do_lower_case": False},
        }
        files = {name: json.dumps(content, indent=2).encode() for name, content in described.items()}
    write_files(files, directory)


def _module(number: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}

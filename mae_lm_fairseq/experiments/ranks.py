"""Effective ranks of trained models on a text, for our checkpoints and bundles, and for Hugging Face encoders."""

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.analysis.effective_rank import MEASURES
from mae_lm_fairseq.analysis.rank_profile import rank_profile
from mae_lm_fairseq.analysis.rank_settings import DEFAULTS, RankSettings
from mae_lm_fairseq.analysis.token_states import EncoderStates, HuggingFaceStates, StatesOf
from mae_lm_fairseq.experiments.rank_options import STOCK
from mae_lm_fairseq.pretrained.reading import build, read
from mae_lm_fairseq.text.text_samples import read_lines, text_samples
from mae_lm_fairseq.text.tokenizer import EOS, SPECIALS
from mae_lm_fairseq.text.tokenizer_files import NAMES
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.progress import progress_bar


@dataclass(frozen=True)
class Reader:
    """An encoder and its tokenizer.

    Attributes:
        states: the encoder.
        encode: returns the ids of a line.
        opening, closing: ids at the start and end of every text.
        special: ids that are never masked.
    """

    states: StatesOf
    encode: Callable[[str], list[int]]
    opening: list[int]
    closing: list[int]
    special: list[int]

    def texts(self, path: str | Path, length: int, limit: int) -> list[list[int]]:
        """Return texts of a file for the encoder, see :func:`~mae_lm_fairseq.text.text_samples.text_samples`."""
        return text_samples(read_lines(path), self.encode, length, self.opening, self.closing, limit)


def model_ranks(
    path: str | Path,
    text: str | Path,
    data_bin: str | Path | None = None,
    tokens: int = 50_000,
    tokens_per_sample: int = 128,
    settings: RankSettings = DEFAULTS,
    label: str | None = None,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Measure the effective ranks of a model, layer by layer, and return them as JSON-serialisable data.

    Args:
        path: a checkpoint of ``fairseq-train`` (pretrained or fine-tuned), a bundle, or the directory of a Hugging Face
            ``bert``, ``roberta`` or ``mpnet`` model with its tokenizer.
        text: UTF-8 text file, plain, ``.gz`` or ``.xz``, with blank lines between documents.
        data_bin: for a checkpoint, the data-bin with its dictionary and tokenizer.
        tokens: amount of text to read, in tokens.
        tokens_per_sample: maximum sequence length.
        settings: settings of the measurement.
        label: name of the model; None to derive it from the path.
        show_progress: whether to show a progress bar.

    Returns:
        ``label``, ``model`` (the path), ``text``, ``tokens_per_sample``, and the result of
        :func:`~mae_lm_fairseq.analysis.rank_profile.rank_profile`.

    Raises:
        UserError: if a file is missing, files do not belong together, or the text is too short.
    """
    reader = open_model(Path(path), data_bin)
    least, most = len(reader.opening) + len(reader.closing) + 1, reader.states.max_tokens
    if not least <= tokens_per_sample <= most:
        raise UserError(f"--tokens-per-sample {tokens_per_sample}: {path} takes sequences of {least} to {most} tokens")
    texts = reader.texts(text, tokens_per_sample, tokens)
    if len(texts) < 2:
        raise UserError(f"{text} is too short: at least two texts of up to {tokens_per_sample} tokens are needed")
    label = label or default_label(path)

    def progress(steps: Sequence, name: str) -> Iterable:
        return progress_bar(steps, desc=f"{label}, {name}", disable=not show_progress)

    profile = rank_profile(reader.states, texts, reader.special, settings, progress)
    described = {"label": label, "model": str(path), "text": str(text), "tokens_per_sample": tokens_per_sample}
    return described | profile


def default_label(path: str | Path) -> str:
    """Return the name of a directory, or the directory name and stem of a checkpoint."""
    path = Path(path)
    return path.name if path.is_dir() else f"{path.absolute().parent.name}/{path.stem}"


def open_model(path: Path, data_bin: str | Path | None) -> Reader:
    """Load a model for evaluation, on a GPU if available.

    Raises:
        UserError: see :func:`model_ranks`.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file or directory")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if path.is_dir() and (kind := _hugging_face_kind(path)):
        if kind not in STOCK:
            raise UserError(f"{path}: the model type {kind} is not supported; {', '.join(STOCK)} are")
        return _open_hugging_face(path, device)
    if not path.is_dir() and data_bin is None:
        raise UserError(f"{path} is a checkpoint; give its data-bin with --tokenizer")
    pretrained = read(path, None if path.is_dir() else data_bin)
    encoder = build(pretrained).encoder.float().to(device)
    folder = path if path.is_dir() else Path(data_bin)
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        raise UserError(f"{folder} has no tokenizer ({NAMES}), which is needed to tokenize the text")
    return Reader(
        EncoderStates(encoder, pretrained.pad, pretrained.mask, pretrained.mask_in_encoder),
        encode=lambda line: [*tokenizer.encode_lines([line])[0].tolist(), EOS],
        opening=[SPECIALS.index("<s>")],
        closing=[],
        special=[SPECIALS.index(token) for token in ("<s>", "<pad>", "</s>")],
    )


def _hugging_face_kind(directory: Path) -> str | None:
    """Return the type of a Hugging Face model, such as "bert"; None if the directory has no such model."""
    try:
        kind = json.loads((directory / "config.json").read_bytes()).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return kind if isinstance(kind, str) else None


def _open_hugging_face(directory: Path, device: str) -> Reader:
    try:
        import mae_lm_fairseq.huggingface  # noqa: F401, I001  hides a broken torchaudio: must come before transformers

        from transformers import AutoModel, AutoTokenizer

        from mae_lm_fairseq.huggingface.foreign import transformers_errors
    except ImportError:
        raise UserError(
            f"{directory} is a Hugging Face model, which needs transformers; pip install transformers"
        ) from None
    with transformers_errors(directory):
        tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        model = AutoModel.from_pretrained(directory, local_files_only=True, add_pooling_layer=False)
    model = model.float().eval().to(device)
    opening, closing, pad, mask = (getattr(tokenizer, f"{x}_token_id") for x in ("cls", "sep", "pad", "mask"))
    if None in (opening, closing, pad, mask):
        raise UserError(f"{directory}: its tokenizer lacks a token for the start, the end, padding or the mask")
    if max(len(tokenizer), mask + 1) > model.config.vocab_size:
        raise UserError(
            f"{directory}: its tokenizer has {len(tokenizer)} tokens, its model only {model.config.vocab_size}"
        )
    return Reader(
        HuggingFaceStates(model, pad, mask),
        encode=lambda line: tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"],
        opening=[opening],
        closing=[closing],
        special=[token for token in tokenizer.all_special_ids if token != tokenizer.unk_token_id],
    )


def measure_models(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the result of :func:`model_ranks` for each model of a command line, and show progress.

    Raises:
        UserError: see :func:`model_ranks`; also if the labels do not match the models, or an option is out of range.
    """
    paths, text = arguments.models, arguments.text
    labels = arguments.labels or [default_label(path) for path in paths]
    if len(labels) != len(paths) or len(set(labels)) < len(labels):
        raise UserError(f"--labels: {len(paths)} models need as many different labels, not {' '.join(labels)}")
    try:
        settings = RankSettings(**{field.name: getattr(arguments, field.name) for field in fields(RankSettings)})
    except ValueError as problem:
        raise UserError(str(problem)) from None
    for path in paths:
        open_model(Path(path), arguments.tokenizer)  # reject unreadable models before the first measurement
    shape = arguments.tokens, arguments.tokens_per_sample
    return [
        model_ranks(path, text, arguments.tokenizer, *shape, settings, label, show_progress=True)
        for path, label in zip(paths, labels, strict=True)
    ]


def write_csv(path: Path, models: Sequence[dict[str, Any]]) -> None:
    """Write the ranks atomically as CSV, with a row for each model, layer, input and kind of tokens."""
    measured = [name + end for name in MEASURES for end in ("", "_low", "_high")]
    names = ["label", "layer", "input", "tokens", "count", "width", *measured]
    rows = [{"label": model["label"], "width": model["width"], **row} for model in models for row in model["ranks"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())

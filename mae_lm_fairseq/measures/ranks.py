"""Effective ranks of trained models on a text, for our checkpoints and bundles, and for Hugging Face encoders."""

import argparse
import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from mae_lm_fairseq.measures.readers import checked_models, open_model
from mae_lm_fairseq.statistics.effective_rank import MEASURES
from mae_lm_fairseq.statistics.rank_profile import rank_profile
from mae_lm_fairseq.statistics.rank_settings import RankSettings
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.progress import progress_bar


def model_ranks(
    path: Path,
    label: str,
    text: str | Path,
    data_bin: str | Path | None,
    tokens: int,
    tokens_per_sample: int,
    settings: RankSettings,
    ema: bool,
) -> dict[str, Any]:
    """Measure the effective ranks of a model, layer by layer, and return them as JSON-serialisable data.

    Shows progress.

    Args:
        path: a checkpoint of ``fairseq-train`` (pretrained or fine-tuned), a bundle, or the directory of a Hugging Face
            ``bert``, ``roberta`` or ``mpnet`` model with its tokenizer.
        label: name of the model.
        text: UTF-8 text file, plain or compressed, with blank lines between documents.
        data_bin: for a checkpoint, the data-bin with its dictionary and tokenizer.
        tokens: amount of text to read, in tokens.
        tokens_per_sample: maximum sequence length.
        settings: settings of the measurement.
        ema: use the moving average of a checkpoint's weights.

    Returns:
        ``label``, ``model`` (the path), ``ema``, ``text``, ``tokens_per_sample``, and the result of
        :func:`~mae_lm_fairseq.statistics.rank_profile.rank_profile`.

    Raises:
        UserError: if a file is missing, files do not belong together, or the text is too short.
    """
    reader = open_model(path, data_bin, ema)
    texts = reader.texts(text, tokens_per_sample, tokens)
    if len(texts) < 2:
        raise UserError(
            f"{text} is too short, or --tokens {tokens} too small: at least two texts of up to {tokens_per_sample} "
            "tokens are needed"
        )

    def progress(steps: Sequence, name: str) -> Iterable:
        return progress_bar(steps, desc=f"{label}, {name}")

    profile = rank_profile(reader.states, texts, reader.special, settings, progress)
    described = {"label": label, "model": str(path), "ema": ema, "text": str(text)}
    return described | {"tokens_per_sample": tokens_per_sample} | profile


def measure_models(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the result of :func:`model_ranks` for each model of a command line.

    Raises:
        UserError: see :func:`model_ranks`; also if the labels do not match the models, or an option is out of range.
    """
    try:
        settings = RankSettings(**{field.name: getattr(arguments, field.name) for field in fields(RankSettings)})
    except ValueError as problem:
        raise UserError(str(problem)) from None
    paths = checked_models(arguments.models, arguments.labels, arguments.data_bin, arguments.ema)
    shape = arguments.tokens, arguments.tokens_per_sample
    return [
        model_ranks(path, label, arguments.text, arguments.data_bin, *shape, settings, arguments.ema)
        for label, path in paths.items()
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

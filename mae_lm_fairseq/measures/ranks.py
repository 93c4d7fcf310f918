"""Effective ranks of trained models on a text, for our checkpoints and bundles, and for Hugging Face encoders."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mae_lm_fairseq.measures.options import MaskedText, RankOptions
from mae_lm_fairseq.measures.readers import Reader, checked_models, open_model
from mae_lm_fairseq.statistics.effective_rank import MEASURES, SecondMoments
from mae_lm_fairseq.statistics.exclusivity import exclusivity, halves
from mae_lm_fairseq.statistics.rank_profile import rank_profile
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import progress_bars


def model_ranks(path: Path, label: str, options: RankOptions) -> dict[str, Any]:
    """Measure the effective ranks of a model, layer by layer, and return them as JSON-serialisable data.

    Shows progress.

    Args:
        path: the model.
        label: name of the model.
        options: the text, and settings of the measurement.

    Returns:
        ``label``, ``model`` (the path), ``ema``, ``text``, ``tokens_per_sample``, the result of
        :func:`~mae_lm_fairseq.statistics.rank_profile.rank_profile`, and ``exclusivity``, that of
        :func:`exclusive_directions`, empty if the text has a single document.

    Raises:
        UserError: if a file is missing, files do not belong together, or the text is too short.
    """
    reader = open_model(path, options.data_bin, options.ema)
    texts = reader.texts(options.text, options.tokens_per_sample, options.tokens)
    if len(texts) < 2:
        raise UserError(
            f"{options.text} is too short, or --tokens {options.tokens} too small: at least two texts of up to "
            f"{options.tokens_per_sample} tokens are needed"
        )

    longest = max(len(text) for text in texts)
    if not round(options.mask_prob * longest):
        raise UserError(f"--mask-prob {options.mask_prob}: masks no token of texts of up to {longest} tokens")

    progress = progress_bars(label)
    profile = rank_profile(reader.states, texts, reader.special, options, progress)
    described = {"label": label, "model": str(path), "ema": options.ema, "text": str(options.text)}
    try:
        exclusive = exclusive_directions(reader, options.text, options, progress)
    except OneDocumentError:
        exclusive = []
    return described | {"tokens_per_sample": options.tokens_per_sample} | profile | {"exclusivity": exclusive}


def exclusive_directions(
    reader: Reader,
    text: Path,
    sample: MaskedText,
    progress: Callable[[Sequence, str], Iterable],
    keep_moments: Callable[[int, str, SecondMoments], None] = lambda *moments: None,
) -> list[dict[str, Any]]:
    """Measure the exclusivity of ``[MASK]`` in a text, see :mod:`~mae_lm_fairseq.statistics.exclusivity`.

    Args:
        reader: the model.
        text: UTF-8 text with blank lines between documents.
        sample: amount of text, and what is masked.
        progress, keep_moments: as in :func:`~mae_lm_fairseq.statistics.exclusivity.exclusivity`, whose rows are
            returned.

    Raises:
        OneDocumentError: if the text read is a single document.
        UserError: if the text cannot be read.
    """
    texts = reader.texts_of_documents(text, sample.tokens_per_sample, sample.tokens)
    if len({document for _, document in texts}) < 2:
        raise OneDocumentError(f"{text} must have at least two documents, with a blank line between them")
    ids, words, documents = zip(*((of.ids.tolist(), of.words.tolist(), number) for of, number in texts), strict=True)
    parts = halves(ids, documents, words)
    return exclusivity(
        reader.states, parts, reader.special, sample.mask_prob, sample.seed, progress, keep_moments=keep_moments
    )


class OneDocumentError(UserError):
    """A text has a single document, where two are needed: one to fit on, another one to compare with."""


def measure_models(options: RankOptions) -> list[dict[str, Any]]:
    """Return the result of :func:`model_ranks` for each model.

    Raises:
        UserError: see :func:`model_ranks`; also if the labels do not match the models.
    """
    return [model_ranks(path, label, options) for label, path in checked_models(options).items()]


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

"""Answers to the questions of a file, by a model that was fine-tuned on SQuAD."""

import math
from pathlib import Path
from typing import Any

import torch

from mae_lm_fairseq.finetuning.models import with_progress
from mae_lm_fairseq.finetuning.squad.decoding import answer_all
from mae_lm_fairseq.finetuning.squad.questions import read_squad
from mae_lm_fairseq.finetuning.squad.run import BATCH, logits_of_batches
from mae_lm_fairseq.finetuning.squad.windows import DOC_STRIDE, MIN_SAMPLE, TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.utils.files import write_json

EVEN_CHANCE = 0.5
"""Threshold for no answer where that of the development set is not known."""


def answer_file(model: torch.nn.Module, source: Path, out: Path):
    """Write the answers of a fine-tuned model as the JSON that SQuAD's official scripts read.

    Sequences are those of the fine-tuning. After SQuAD 2.0 an answer is empty if no answer is more probable than the
    threshold that was best for the development set.

    Args:
        model: its hub interface.
        source: questions in SQuAD's JSON, with or without answers.
        out: the file to write.

    Raises:
        UserError: if the questions are not in SQuAD's format, or the file cannot be written.
    """
    paragraphs = read_squad(source, version_2=True, with_answers=False)
    task, metrics = (_mapping(model.about.get(name)) for name in ("finetuned_on", "development_set"))
    longest = model.model.max_positions()
    length = _integer(task.get("tokens_per_sample"), MIN_SAMPLE, longest, min(TOKENS_PER_SAMPLE, longest))
    stride = _integer(task.get("doc_stride"), 1, math.inf, DOC_STRIDE)
    windows = SpanWindows(paragraphs, model.tokenizer, length, stride, seed=0)
    batches = with_progress(logits_of_batches(model.model, windows), math.ceil(len(windows) / BATCH))
    answers = answer_all(batches, windows)
    threshold = math.inf
    if task.get("version_2"):
        best = metrics.get("best_f1_thresh")
        threshold = best if isinstance(best, int | float) else EVEN_CHANCE
    write_json(
        out, {name: "" if found.no_answer_probability > threshold else found.text for name, found in answers.items()}
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any, low: int, high: float, default: int) -> int:
    """Return a number that a bundle states, or the default if it is none that can be used."""
    return value if isinstance(value, int) and low <= value <= high else default

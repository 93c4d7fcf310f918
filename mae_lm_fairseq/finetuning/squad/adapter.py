"""Fine-tuning on SQuAD 1.1 and 2.0."""

from functools import partial
from pathlib import Path
from typing import Any

from mae_lm_fairseq.finetuning.adapter import Adapter, TaskSetup, window_inputs, window_settings
from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.recipes import Recipe
from mae_lm_fairseq.finetuning.results import report_text
from mae_lm_fairseq.finetuning.squad.metrics import best_2_0, evaluate_1_1, evaluate_2_0, gold_answers
from mae_lm_fairseq.finetuning.start import recipe_for
from mae_lm_fairseq.text.span_windows import TOKENS_PER_SAMPLE, SpanWindows
from mae_lm_fairseq.text.squad import read_squad
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.trained.answers import answers_to
from mae_lm_fairseq.trained.hub import open_finetuned
from mae_lm_fairseq.trained.opening import Description
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.training.runner import Run
from mae_lm_fairseq.utils.files import parse_json, read_bytes, write_json, write_text
from mae_lm_fairseq.wrapped.heads import ANSWERS

PREDICTIONS, NA_PROB = "predictions.json", "na_prob.json"

ROBERTA_ON_SQUAD = Recipe((1.5e-5,), batch_size=48, weight_decay=0.01, epochs=2)
"""For RoBERTa large: the SQuAD column of Table 10 in Liu et al. (2019, arXiv 1907.11692)."""


class SquadAdapter(Adapter):
    """Questions about texts, in SQuAD's format."""

    kind = ANSWERS
    outputs = (PREDICTIONS, NA_PROB)

    def __init__(self, options: SquadOptions):
        self.options = options

    def prepare(self, start: Description, tokenizer: Tokenizer, products: Products) -> TaskSetup:
        options = self.options
        length = options.tokens_per_sample or min(TOKENS_PER_SAMPLE, start.config.max_positions)
        counts = {
            "train": _count(options.train, options, tokenizer, length),
            "dev": _count(options.dev, options, tokenizer, length),
        }
        task = {
            "_name": ANSWERS.task,
            "tokens_per_sample": length,
            "doc_stride": options.doc_stride,
            "version_2": options.version_2,
            "skip_malformed": options.skip_malformed,
        }
        return TaskSetup(
            content={"task": "SQuAD 2.0" if options.version_2 else "SQuAD 1.1", "data": counts},
            data=options.tokenizer.resolve(),
            sequences=counts["train"]["windows"],
            recipe=recipe_for(start, ROBERTA_ON_SQUAD),
            settings=window_settings(task, options.train, options.dev),
            inputs=window_inputs(options.train, options.dev),
            evaluate=partial(evaluate_and_write_answers, options=options),
            selection="f1",
        )

    def write_predictions(self, best: Run, directory: Path) -> dict[str, Any]:
        """Copy the answers that the evaluation of the best run has written."""
        for name in self.outputs:
            text = (best.result.parent / name).read_text(encoding="utf-8")
            write_text(directory / name, text)
        return {"predictions_by": best.name}

    def report(self, content: dict[str, Any]) -> str:
        ending = f"{PREDICTIONS}: {content['predictions_by']}."
        return report_text(content, "F1", hidden_suffixes=("total", "thresh"), ending=ending)


def _count(path: Path, options: SquadOptions, tokenizer: Tokenizer, length: int) -> dict[str, int]:
    questions = read_squad(path, options.version_2, skip_malformed=options.skip_malformed)
    counts = SpanWindows(questions, tokenizer, length, options.doc_stride, seed=1).counts
    if options.skip_malformed:
        content = parse_json(read_bytes(path), path, dict, "restore it")
        total = 0
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                total += len(paragraph["qas"])
        counts["malformed_questions"] = total - counts["questions"]
    return counts


def evaluate_and_write_answers(checkpoint: Path, directory: Path, options: SquadOptions) -> dict[str, float]:
    """Return the official metrics of a checkpoint, and write its answers to a directory.

    For SQuAD 2.0, a question is left unanswered if its no-answer probability exceeds the threshold with the best F1, as
    the papers do for the development set.
    """
    questions = read_squad(options.dev, options.version_2, skip_malformed=options.skip_malformed)
    answers = answers_to(open_finetuned(checkpoint, options.tokenizer), questions)
    predictions = {name: answer.text for name, answer in answers.items()}
    na_probs = {name: answer.no_answer_probability for name, answer in answers.items()}
    gold = gold_answers(questions)
    if options.version_2:
        best = best_2_0(gold, predictions, na_probs)
        threshold = best["best_f1_thresh"]
        for name, probability in na_probs.items():
            if probability > threshold:
                predictions[name] = ""
        metrics = evaluate_2_0(gold, predictions) | best
    else:
        metrics = evaluate_1_1(gold, predictions)
    write_json(directory / PREDICTIONS, predictions)
    write_json(directory / NA_PROB, na_probs)
    return metrics

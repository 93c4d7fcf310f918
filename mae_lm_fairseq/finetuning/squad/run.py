"""Fine-tuning on SQuAD: runs, answers, metrics and report; used by ``mae-lm finetune squad``."""

from functools import partial
from pathlib import Path

from mae_lm_fairseq.finetuning.models import load
from mae_lm_fairseq.finetuning.options import SquadOptions
from mae_lm_fairseq.finetuning.origin import Origin, find_origin
from mae_lm_fairseq.finetuning.results import report
from mae_lm_fairseq.finetuning.squad.metrics import evaluate_1_1, evaluate_2_0, gold_answers
from mae_lm_fairseq.finetuning.squad.prediction import answer_all, logits_of_batches
from mae_lm_fairseq.finetuning.squad.questions import read_json, read_squad
from mae_lm_fairseq.finetuning.squad.task import QuestionAnsweringConfig
from mae_lm_fairseq.finetuning.squad.windows import MIN_SAMPLE, SpanWindows
from mae_lm_fairseq.finetuning.sweep import Recipe, Sweep, claim, for_size, inputs_of, run_sweep, window_sweep
from mae_lm_fairseq.text.tokenizer import Tokenizer
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import file_sha256, write_json, write_results, write_text
from mae_lm_fairseq.utils.locks import directory_lock

PREDICTIONS, NA_PROB = "predictions.json", "na_prob.json"

ROBERTA = Recipe((1.5e-5,), batch_size=48, weight_decay=0.01, epochs=2)
"""For RoBERTa large: the SQuAD column of Table 10 in Liu et al. (2019, arXiv 1907.11692)."""
OURS = Recipe((5e-4,), batch_size=16, weight_decay=0.01, epochs=10)
"""For tiny and small models and few questions."""


def finetune(options: SquadOptions) -> dict:
    """Fine-tune, or resume an unfinished sweep, and return the content of ``results.json``.

    Raises:
        UserError: if options, data or model are invalid; existing results are kept.
    """
    with directory_lock(options.out):
        return _finetune(options)


def _finetune(options: SquadOptions) -> dict:
    out = options.out
    origin = find_origin(options)
    tokenizer = open_tokenizer(options.tokenizer, options.model, origin.dictionary)
    length = sample_length(options, origin)
    counts = {
        "train": count_samples(options.train, options, tokenizer, length),
        "dev": count_samples(options.dev, options, tokenizer, length),
    }
    files = {"train-file": file_sha256(options.train), "valid-file": file_sha256(options.dev)}
    claim(out, PREDICTIONS, NA_PROB)
    sweep = make_sweep(options, origin, length, counts["train"]["windows"])
    ran, chosen = run_sweep(sweep, inputs_of(origin, tokenizer, **files))
    content = {
        "task": "SQuAD 2.0" if options.version_2 else "SQuAD 1.1",
        "data": counts,
        **ran,
        "predictions_by": chosen.name,
    }
    for path in (chosen.result.parent / name for name in (PREDICTIONS, NA_PROB)):
        if not path.exists():
            raise UserError(f"{path} is missing; remove {path.parent}, and the same command trains this run again")
        write_text(out / path.name, path.read_text(encoding="utf-8"))
    write_results(out, content, report_of(content))
    return content


def report_of(content: dict) -> str:
    """Return the text of ``report.md``."""
    settings = "{updates:,} updates of {batch_size} sequences of up to {tokens_per_sample} tokens, stride {doc_stride}"
    data = "; ".join(f"{split}: {describe(counts)}" for split, counts in content["data"].items())
    ending = f"Data: {data}. {PREDICTIONS}: {content['predictions_by']}."
    return report(content, settings.format(**content["settings"]), "F1", ("total", "thresh"), ending)


def sample_length(options: SquadOptions, origin: Origin) -> int:
    """Return the maximum sequence length in tokens.

    Raises:
        UserError: if it is too short, or exceeds the model's positions.
    """
    length = options.tokens_per_sample
    if length is None:
        length = min(QuestionAnsweringConfig.tokens_per_sample, origin.max_positions)
    if not MIN_SAMPLE <= length <= origin.max_positions:
        raise UserError(
            f"--tokens-per-sample {length}: must be from {MIN_SAMPLE} to {origin.max_positions}, the model's number "
            "of positions"
        )
    return length


def count_samples(path: Path, options: SquadOptions, tokenizer: Tokenizer, length: int) -> dict[str, int]:
    """Count and print the windows of a file, see :class:`~mae_lm_fairseq.finetuning.squad.windows.SpanWindows`."""
    questions = read_squad(path, options.version_2, skip_malformed=options.skip_malformed)
    counts = SpanWindows(questions, tokenizer, length, options.doc_stride, seed=1).counts
    if options.skip_malformed:
        total = sum(len(part["qas"]) for article in read_json(path)["data"] for part in article["paragraphs"])
        counts["malformed_questions"] = total - counts["questions"]
    print(f"{path.name}: {describe(counts)}")
    return counts


def describe(counts: dict[str, int]) -> str:
    """Format the counts as text."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def make_sweep(options: SquadOptions, origin: Origin, length: int, windows: int) -> Sweep:
    """Return the sweep over learning rates and seeds, with ``windows`` sequences per epoch."""
    task = {
        "_name": "question_answering",
        "train_file": options.train.resolve(),
        "valid_file": options.dev.resolve(),
        "tokens_per_sample": length,
        "doc_stride": options.doc_stride,
        **{name: True for name in ("version_2", "skip_malformed") if getattr(options, name)},
    }
    usual = for_size(origin.model["_name"], ROBERTA, OURS)
    return window_sweep(options, origin, usual, windows, task, partial(evaluate, options=options), "f1")


def evaluate(checkpoint: Path, options: SquadOptions) -> dict[str, float]:
    """Compute the official metrics of a checkpoint, and write its answers next to the checkpoint directory.

    For SQuAD 2.0, a question is left unanswered if its no-answer probability exceeds the threshold with the best F1, as
    the papers do for the development set.
    """
    model, task = load(checkpoint, options.tokenizer)
    task.load_dataset("valid")
    windows = task.dataset("valid")
    answers = answer_all(logits_of_batches(model, windows), windows)
    predictions = {name: found.text for name, found in answers.items()}
    na_probs = {name: found.no_answer_probability for name, found in answers.items()}
    gold = gold_answers(read_squad(options.dev, options.version_2, skip_malformed=options.skip_malformed))
    if options.version_2:
        searched = evaluate_2_0(gold, predictions, na_probs)
        threshold = searched["best_f1_thresh"]
        predictions = {name: "" if na_probs[name] > threshold else text for name, text in predictions.items()}
        best = {name: value for name, value in searched.items() if name.startswith("best_")}
        metrics = evaluate_2_0(gold, predictions) | best
    else:
        metrics = evaluate_1_1(gold, predictions)
    folder = checkpoint.parent.parent
    write_json(folder / PREDICTIONS, predictions)
    write_json(folder / NA_PROB, na_probs)
    return metrics

"""The report of an adaptation, made from its ``results.json`` alone."""

from collections.abc import Mapping
from typing import Any

from mae_lm_fairseq.core.config import ARCHITECTURES
from mae_lm_fairseq.measures.evaluation import evaluation_table
from mae_lm_fairseq.measures.retrieval import VECTORS
from mae_lm_fairseq.study.objectives import OBJECTIVES
from mae_lm_fairseq.text.manifest import splits_table
from mae_lm_fairseq.utils.output import code, escaped, markdown_table

_HARM = (
    "Training on masked tokens harms sentence vectors: 120 small updates of MLM on docstrings took MiniLM from 62.2 to "
    "60.1 nDCG@10 by the defaults for sentence encoders, and to 42.3 at a learning rate of 1e-4, see docs/adapting.md."
)
_REPORT = """\
# Adapted model

{model}, trained further with {objective} for {updates:,} updates of up to {batch:,} tokens (at most {passes:.2g}
times the training text), which took {seconds:,.0f} s on {machine}. The learning rate was {rate:g} at
most, and the encoder was frozen in the first {frozen:,} updates.

## Held-out text

{measurements}

- Loss: cross-entropy at {predicted:,} masked positions, the same ones before and after.
- Pseudo-perplexity of {pseudo_tokens:,} tokens: each token, or each word, is masked on its own.
- Before: {before}
- Unigram entropy: {entropy:.3f} nats, the lowest loss with one prediction for all tokens that are measured.{advice}
{retrieval}
## Text

{text}

{unknown}

## Use

- `stock/`: `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` of transformers load it (`{stock_class}`).
- `model/`: a bundle with the whole network, for `mae-lm` and `MAELMModel.from_pretrained`.
- `runs/{directory}/` has the checkpoint; `training-{updates}.json` there has the training command, and
  `training-{updates}.log` its output.
- `results.json` has all options and versions.
"""
_RETRIEVAL = """
## Retrieval

nDCG@10 (%) with the questions of {questions}, as `mae-lm retrieval` measures it. BM25, which compares words, has
{bm25:.1f}.

{table}
"""


def report(content: dict[str, Any]) -> str:
    """Return the text of ``report.md`` for the content of ``results.json``."""
    options = content["options"]
    text = content["text"]
    after = content["after"]
    measured = {name: content[name] for name in ("before", "after") if content[name]}
    return _REPORT.format(
        model=code(options["model"]),
        objective=OBJECTIVES[content["objective"]].name,
        updates=options["updates"],
        directory=content["training"]["directory"],
        batch=options["batch_size"],
        rate=options["learning_rate"],
        frozen=options["freeze_encoder_updates"],
        passes=passes(options, text),
        predicted=after["predicted"],
        pseudo_tokens=after["tokens"],
        seconds=content["training"]["seconds"],
        machine=escaped(content["machine"]),
        measurements=evaluation_table(measured, content["measurement"]["mask_prob"]),
        before=_before(content),
        entropy=after["unigram_entropy"],
        advice=_advice(content),
        retrieval=_retrieval(content),
        text=splits_table(text),
        unknown=_unknown(text),
        stock_class=content["stock_class"],
    )


def passes(options: Mapping[str, Any], text: Mapping[str, Any]) -> float:
    """Return how often the training sees the training text at most, given the options by name."""
    return options["updates"] * options["batch_size"] / text["train"]["tokens_out"]


def harm(options: Mapping[str, Any]) -> str:
    """Return what training on masked tokens does to sentence vectors, given the options by name."""
    return _HARM if options["questions"] else f"{_HARM} Measure yours with --questions."


def _before(content: dict[str, Any]) -> str:
    """Return what predicted before the training, and whether that can be compared."""
    if not content["before"]:
        return "the model lacked a trained head or decoder, so there is nothing to compare with."
    before = "predicted by the model's own head, through its decoder if it had one."
    preset, _ = ARCHITECTURES[content["start"].get("architecture") or "mae_lm"]
    if preset not in OBJECTIVES[content["objective"]].presets:
        before += " After: through another decoder, or none, so that **the rows cannot be compared**."
    return before


def _advice(content: dict[str, Any]) -> str:
    """Return what to do about a model that has learned nothing, or that the training harms."""
    advice = ""
    has_learned = content["after"]["loss"] < content["after"]["unigram_entropy"]
    if not has_learned:
        advice = " **The loss after is not below it**"
        advice += "." if content["sentence_encoder"] else ": train for more updates."
    if content["sentence_encoder"]:
        advice += f"\n- **The model is a sentence encoder.** {harm(content['options'])}"
    return advice


def _retrieval(content: dict[str, Any]) -> str:
    """Return the section about ``--questions``; else nothing."""
    measured = content["retrieval"]
    if not measured:
        return ""
    rows = []
    for label, values in measured.items():
        cells = [f"{values[f'{vector}_ndcg']:.1f}" for vector in VECTORS]
        rows.append([label, *cells])
    return _RETRIEVAL.format(
        questions=code(content["options"]["questions"]),
        table=markdown_table(["model", *VECTORS.values()], rows),
        bm25=measured["after"]["bm25_ndcg"],
    )


def _unknown(text: dict[str, Any]) -> str:
    """Return whether the tokenizer fits the text."""
    rate = max(split["unk_rate"] for split in text.values())
    if rate < 0.01:
        return "The model's tokenizer fits the text."
    return f"**The model's tokenizer does not know {rate:.1%} of the tokens of a split**; the model cannot learn them."

"""Markdown report of an adaptation."""

from typing import Any

from mae_lm_fairseq.measures.evaluation import table
from mae_lm_fairseq.text.manifest import splits_table
from mae_lm_fairseq.utils.output import markdown_table

_NAMES = {
    "mlm": "masked language modelling (MLM)",
    "mae_lm": "MAE-LM",
    "3ml": "3ML",
    "mask_later": "masks that join later",
}
_REPORT = """\
# Adapted model

`{model}`, trained further with {objective} for {updates:,} updates of up to {batch:,} tokens (at most {passes:.1f}
times the training text), which took {seconds:,.0f} s on {machine}.

## Held-out text

{measurements}

- Loss: cross-entropy at masked positions, the same ones in both rows.
- Pseudo-perplexity: each token, or each word, is masked on its own.
- Before: {before}
- Unigram entropy: {unigram}

## Text

{text}

{unknown}

## Use

- `stock/`: `AutoModel.from_pretrained` and `AutoTokenizer.from_pretrained` of transformers load it (`{stock_class}`).
- `model/`: a bundle with the whole network, for `mae-lm` and `MAELMModel.from_pretrained`.
- `training/result.json` has the training command and `training/result.log` its output.

## Options

{options}

## Versions

{versions}
"""


def report(content: dict[str, Any]) -> str:
    """Return the text of ``report.md`` for the content of ``results.json``."""
    options, text = content["options"], content["text"]
    measured = {name: content[name] for name in ("before", "after") if content[name]}
    return _REPORT.format(
        model=options["model"],
        objective=_NAMES[content["objective"]],
        updates=options["updates"],
        batch=options["batch_size"],
        passes=options["updates"] * options["batch_size"] / text["train"]["tokens_out"],
        seconds=content["training"]["seconds"],
        machine=content["machine"],
        measurements=table(measured, content["measurement"]["mask_prob"]),
        before="predicted by the model's own head, through its decoder if it had one."
        if content["before"]
        else "the model had no language model head, so there is nothing to compare with.",
        unigram=_unigram(content["after"]),
        text=splits_table(text),
        unknown=_unknown(text),
        stock_class=content["stock_class"],
        options=markdown_table(["option", "value"], [[f"`{name}`", _shown(value)] for name, value in options.items()]),
        versions=markdown_table(["package", "version"], list(content["versions"].items())),
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return "" if value is None else str(value)


def _unigram(after: dict[str, Any]) -> str:
    entropy = f"{after['unigram_entropy']:.3f} nats, the lowest loss with the same prediction at every position."
    if after["loss"] < after["unigram_entropy"]:
        return entropy
    return f"{entropy} **The loss after is not below it**: train for more updates."


def _unknown(splits: dict[str, dict[str, Any]]) -> str:
    rate = max(split["unk_rate"] for split in splits.values())
    if rate < 0.01:
        return "The model's tokenizer fits the text."
    return f"**The model's tokenizer does not know {rate:.1%} of the tokens of a split**; the model cannot learn them."

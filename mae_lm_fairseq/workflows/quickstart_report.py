"""Markdown report of the quickstart."""

from pathlib import Path

from mae_lm_fairseq.text.manifest import Manifest, splits_table
from mae_lm_fairseq.utils.files import write_text
from mae_lm_fairseq.utils.output import markdown_table


def _losses(content: dict, labels: dict[str, str]) -> str:
    header = [
        "model",
        "`--arch`",
        "updates",
        "seconds",
        "validation loss (nats)",
        "below the entropy",
        "effective rank",
    ]
    rows = [
        [
            labels[name],
            f"`{name}`",
            f"{run['updates']:,}",
            f"{run['seconds']:.0f}",
            f"{run['valid_loss']:.2f}",
            f"{content['unigram_entropy'] - run['valid_loss']:.2f}",
            f"{run['effective_rank']} of {run['width']}",
        ]
        for name, run in content["runs"].items()
    ]
    return markdown_table(header, rows)


def _completions(content: dict, labels: dict[str, str]) -> str:
    rows = []
    for name, run in content["runs"].items():
        answers = zip(run["top5"], run["top5_probabilities"], strict=True)
        # Format as code because Markdown would take </s> for HTML, and escape bars, which would end the table's cell.
        cells = [f"`{token}` ({probability:.0%})".replace("|", "\\|") for token, probability in answers]
        rows.append([labels[name], ", ".join(cells)])
    return markdown_table(["model", "five most probable tokens"], rows)


REPORT = """\
# Quickstart

Two language models of the same size were pretrained on {origin}, with the same data, the same masked positions and the
same number of updates. In the RoBERTa preset, the encoder reads `[MASK]` tokens. In MAE-LM, they join after it, in a
small decoder that is dropped before fine-tuning.

{losses}

- Validation loss: mean cross-entropy per masked token of the validation text.
- Entropy: {entropy:.2f} nats is the entropy of the token frequencies in the validation text, without padding (`<s>` and
  `</s>` count, because they can be masked). A model that knows the frequencies and ignores the context has this loss.
- Effective rank: the number of directions that hold 90 % of the sum of squares of the last encoder layer's hidden
  states on unmasked validation text. A very low rank would mean that the encoder has collapsed. Both models are small
  and trained briefly; the papers' comparison of ranks and scores needs longer training.
- Dropout is off for both, because in so few updates the text is seen only about twice.
- Seconds: wall time of the training program on one core, validation included; both ran at the same time.

![Losses](losses.png)

## A completed sentence

> `{sentence}`{truth}

{completions}

## Data

{splits}

## Versions

{versions}

## Next steps

- `runs/ARCHITECTURE/result.json` has the full training command, `result.log` its output, and `checkpoints/` the model.
  To train longer, run the command with a higher `--max-update` and `--total-num-update`.
- `mae-lm quickstart --corpus FILE` does the same with your own text.
"""


def write_report(path: Path, content: dict, labels: dict[str, str], origin: str, manifest: Manifest) -> None:
    """Write ``report.md`` next to the figure.

    Args:
        path: path of the report.
        content: content of ``results.json``.
        labels: display names of the architectures.
        origin: description of the text.
        manifest: manifest of the prepared data.
    """
    text = REPORT.format(
        origin=origin,
        losses=_losses(content, labels),
        entropy=content["unigram_entropy"],
        sentence=content["sentence"],
        truth=f" (the text has: {content['true_word']})" if content["true_word"] else "",
        completions=_completions(content, labels),
        splits=splits_table({name: vars(split) for name, split in manifest.splits.items()}),
        versions=markdown_table(["package", "version"], list(content["versions"].items())),
    )
    write_text(path, text)

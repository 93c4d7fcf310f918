"""Pretraining and comparison of two small models, in minutes on two CPU cores.

The steps are: collect text, preprocess it, pretrain MAE-LM and the RoBERTa preset on the same data with the same masks
and number of updates, and write a report.
"""

import zlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mae_lm_fairseq import MAELMModel, docstrings
from mae_lm_fairseq.corpus import split_corpus
from mae_lm_fairseq.measures import inspection
from mae_lm_fairseq.measures.figures import plot_losses
from mae_lm_fairseq.measures.inspection import Gap
from mae_lm_fairseq.measures.masked_prediction import unigram_entropy
from mae_lm_fairseq.study.options import QuickstartOptions
from mae_lm_fairseq.study.plan import Plan, read_plan
from mae_lm_fairseq.study.results import Training
from mae_lm_fairseq.study.training import command
from mae_lm_fairseq.text import preparation
from mae_lm_fairseq.text.manifest import MANIFEST, Manifest, splits_table
from mae_lm_fairseq.text.sentencepiece_tokenizer import WORD_START
from mae_lm_fairseq.text.tokenizer_files import open_tokenizer_path
from mae_lm_fairseq.training.runner import Run, reserve, run_all
from mae_lm_fairseq.training.training_log import loss_curve, training_seconds
from mae_lm_fairseq.utils.errors import UserError
from mae_lm_fairseq.utils.files import read_json, write_json, write_text
from mae_lm_fairseq.utils.output import markdown_table, step
from mae_lm_fairseq.utils.versions import versions

FIGURE = "losses.png"
DATA = ("text", "data-bin")
"""Directories of :func:`make_text` and :func:`prepare`."""
DOCSTRING_GAP = Gap("Returns the <mask> of the array.")


@dataclass(frozen=True)
class Recipe:
    """Text and plan of a full run or a smoke run of the quickstart.

    Args:
        packages: packages whose docstrings are read.
        max_bytes: maximum number of bytes read from a user's corpus.
        vocabulary: size of a trained tokenizer.
        plan: the plan that has the models and their length; they are validated at the first checkpoint and after as
            many updates each time.
    """

    packages: tuple[str, ...]
    max_bytes: int
    vocabulary: int
    plan: Plan

    @property
    def titles(self) -> dict[str, str]:
        """Names of the models by architecture."""
        return {model.arch: model.name for model in self.plan.models}


FULL = Recipe(docstrings.PACKAGES, 40_000_000, 3000, read_plan("quickstart"))
SMOKE = Recipe(("stdlib", "numpy"), 4_000_000, 1500, read_plan("quickstart-smoke"))


def describe(corpus: Path) -> str:
    """Describe a corpus by name, size and checksum, independent of its location."""
    try:
        with open(corpus, "rb") as file:
            return f"{corpus.name}, {corpus.stat().st_size} bytes, CRC {zlib.crc32(file.read(FULL.max_bytes)):08x}"
    except OSError as error:
        raise UserError(f"cannot read {corpus}: {error.strerror}") from None


def make_text(out: Path, recipe: Recipe, corpus: Path | None) -> dict[str, int]:
    """Write ``train.txt`` and ``valid.txt`` to ``out/text``, and return their counts."""
    folder = out / "text"
    counted = folder / "counts.json"
    if counted.exists():
        print(f"done before, reusing {folder}")
        return read_json(counted)
    folder.mkdir(exist_ok=True)
    if corpus:
        counts = split_corpus(corpus, folder / "train.txt", folder / "valid.txt", recipe.max_bytes)
    else:
        counts = docstrings.write_corpus(folder / "train.txt", folder / "valid.txt", recipe.packages)
    write_json(counted, counts)
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return counts


def prepare(out: Path, recipe: Recipe) -> Path:
    """Create ``out/data-bin`` from the text, and return its path.

    An interruption leaves nothing in it, so that the next call starts again.

    Args:
        out: output directory of the quickstart.
        recipe: has the size of the vocabulary.

    Raises:
        UserError: if preparation fails.
    """
    data = out / "data-bin"
    if (data / MANIFEST).exists():
        print(f"done before, reusing {data}")
        return data
    text = out / "text"
    options = preparation.PreparationOptions(
        train=(str(text / "train.txt"),),
        valid=(str(text / "valid.txt"),),
        destdir=data,
        vocab_size=recipe.vocabulary,
        workers=2,
    )
    try:
        preparation.prepare(options)
    except OSError as error:
        raise UserError(f"{error.filename or data}: {error.strerror or error}") from None
    return data


def training_runs(out: Path, data: Path, recipe: Recipe, gap: Gap) -> list[Run]:
    """Return one run for each model of the plan, on CPUs, validated at the pace of the plan's checkpoints."""
    plan = replace(recipe.plan, data=replace(recipe.plan.data, data_bin=data))
    updates, every, runs = plan.train.updates, plan.train.checkpoints[0], []
    validation = {"disable_validation": False, "validate_interval_updates": every, "save_interval_updates": every}
    for model in plan.models:
        folder = out / "runs" / model.arch
        training, save = Training(model, None, 1, out), folder / "checkpoints"
        words = command(plan, training, updates, save, **validation, cpu=True, distributed_world_size=1)
        read_result = partial(_measured, data=data, sentence=gap.sentence)
        runs.append(Run(model.arch, words, folder / "result.json", read_result, (0, updates)))
    return runs


def _measured(run: Run, data: Path, sentence: str) -> dict:
    """Return what the report says of a trained model."""
    updates, losses = loss_curve(run.log, "valid")
    checkpoint = run.result.parent / "checkpoints" / "checkpoint_last.pt"
    model, task = inspection.load(checkpoint, data)
    batches = inspection.clean_batches(task)
    rank, width = inspection.encoder_rank(model, batches, task.source_dictionary.pad())
    fillings = MAELMModel.from_pretrained(checkpoint, data_bin=data).fill_mask(sentence)
    return {
        "valid_loss": round(float(losses[-1]), 4),
        "updates": int(updates[-1]),
        "seconds": training_seconds(run.log),
        "top5": [filling.token.strip() or WORD_START for filling in fillings],
        "top5_probabilities": [round(filling.probability, 4) for filling in fillings],
        "effective_rank": rank,
        "width": width,
    }


def choose_sentence(out: Path, data: Path, corpus: Path | None) -> Gap:
    """Choose the sentence for the models to complete."""
    if corpus is None:
        return DOCSTRING_GAP
    return inspection.find_gap(out / "text" / "valid.txt", open_tokenizer_path(data))


def conclude(
    out: Path, data: Path, origin: str, titles: dict[str, str], runs: list[Run], results: list[dict], gap: Gap
) -> dict:
    """Write the figure, ``results.json`` and ``report.md``; return the content of ``results.json``."""
    _, task = inspection.load(runs[0].result.parent / "checkpoints" / "checkpoint_last.pt", data)
    pad = task.source_dictionary.pad()
    entropy = unigram_entropy(batch[batch.ne(pad)] for batch in inspection.clean_batches(task))
    curves = {
        stage: {titles[run.name]: loss_curve(run.log, stage) for run in runs} for stage in ("train_inner", "valid")
    }
    title = f"Pretraining on {origin}"
    plot_losses(out / FIGURE, title, curves["train_inner"], curves["valid"], entropy)
    content = {
        "unigram_entropy": round(entropy, 4),
        "sentence": gap.sentence,
        "true_word": gap.true_word,
        "runs": {run.name: result for run, result in zip(runs, results, strict=True)},
        "versions": versions(),
    }
    write_json(out / "results.json", content)
    write_report(out / "report.md", content, titles, origin, Manifest.read(data / MANIFEST))
    return content


def quickstart(options: QuickstartOptions) -> None:
    """Run, or resume, all steps in the output directory."""
    out, corpus = options.directory, options.corpus
    recipe = SMOKE if options.smoke else FULL
    train = recipe.plan.train
    origin = corpus.name if corpus else "the docstrings of the installed Python packages"
    described = {"smoke": options.smoke, "corpus": describe(corpus) if corpus else None}
    reserve(out, described, owned=DATA)
    with step(1, 4, f"Text: {origin}"):
        make_text(out, recipe, corpus)
    with step(2, 4, "Preprocessing"):
        data = prepare(out, recipe)
    with step(3, 4, f"Pretraining: {' and '.join(recipe.titles.values())}, {train.updates:,} updates, one core each"):
        gap = choose_sentence(out, data, corpus)
        runs = training_runs(out, data, recipe, gap)
        results = run_all(runs, jobs=2)
    with step(4, 4, "Report"):
        content = conclude(out, data, origin, recipe.titles, runs, results, gap)
    print_summary(out, content, recipe.titles)


def print_summary(out: Path, content: dict, titles: dict[str, str]) -> None:
    """Print a summary of the report."""
    print(f"\nUnigram entropy of the validation text: {content['unigram_entropy']:.2f} nats")
    for name, result in content["runs"].items():
        print(
            f"{titles[name]:14}  validation loss {result['valid_loss']:.2f} nats,"
            f"  effective rank {result['effective_rank']} of {result['width']}"
        )
    print(content["sentence"])
    for name, result in content["runs"].items():
        print(f"{titles[name]:14}  {', '.join(result['top5'])}")
    print(f"Report: {out / 'report.md'}   Figure: {out / FIGURE}", flush=True)


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

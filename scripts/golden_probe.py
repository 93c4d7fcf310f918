#!/usr/bin/env python3
"""Compute the values that scripts/golden.py compares, with one revision of the package.

golden.py runs this file with an interpreter that imports mae_lm_fairseq from CHECKOUT, in an empty working directory.
The same code runs for every revision. It therefore uses only interfaces that all revisions share: fairseq-train, the
programs in scripts/ and preprocess/, and MAELMModel.from_pretrained with the methods of its result.
"""

import argparse
import csv
import hashlib
import json
import logging
import random
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Items = dict[str, Any]
"""Values that JSON can hold, by the name under which differences are reported."""

PRESETS = ("mae_lm", "mae_lm_roberta", "mae_lm_mask_later", "mae_lm_3ml_self", "mae_lm_3ml_cross")
UPDATES = 50
TRAINING = shlex.split(f"""
    --task masked_autoencoder_lm --criterion masked_autoencoder_lm --cpu --seed 1 --num-workers 1
    --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay --warmup-updates 5 --total-num-update 100 --clip-norm 2.0
    --batch-size 8 --tokens-per-sample 64 --sample-break-mode complete_doc --max-update {UPDATES}
    --no-epoch-checkpoints --log-format json --log-interval 1
""")
FINETUNING = shlex.split("--seeds 1 --learning-rates 1e-3 --max-updates 10")
SYLLABLES = ("ba", "do", "ki", "lé", "mu", "ñe", "ros", "tan", "vi", "zü")
SENTENCES = ["Bado kilé.", "Mutan viros, züba?", "Doki badoki ñemu rostan vizü léros tanba kiki dodo mumu."]
MASKED = ["Bado <mask> mutan.", "<mask> doki <mask> viros."]


@dataclass(frozen=True)
class Revision:
    """The programs of one revision.

    Attributes:
        checkout: its files.
        label: what progress and error messages call it.
    """

    checkout: Path
    label: str

    def report(self, step: str) -> None:
        """Print which step begins."""
        print(f"{self.label}: {step}", file=sys.stderr, flush=True)

    def train(self, *arguments: object) -> str:
        """Run fairseq-train and return its log."""
        return self._run("-m", "fairseq_cli.train", *arguments, "--user-dir", self.checkout / "mae_lm_fairseq")

    def program(self, path: str, *arguments: object) -> str:
        """Run a program of the checkout and return what it printed."""
        return self._run(self.checkout / path, *arguments)

    def _run(self, *words: object) -> str:
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"error: {self.label}: {' '.join(map(str, words[:2]))} failed: {reason}")
        return done.stdout + done.stderr


def main() -> None:
    """Compute all items and write them as JSON."""
    arguments = parser().parse_args()
    revision = Revision(arguments.checkout, arguments.label)
    check_origin(revision)
    logging.disable(logging.INFO)
    # Checkpoints hold a configuration and NumPy scalars besides tensors.
    scalars = [type(np.dtype(kind)) for kind in (np.bool_, np.int32, np.int64, np.float32, np.float64)]
    torch.serialization.add_safe_globals([argparse.Namespace, np.dtype, np.float64().__reduce__()[0], *scalars])
    write_texts()
    items = {}
    for step in STEPS:
        items |= step(revision)
    arguments.out.write_text(json.dumps(items, indent=1), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="files of the revision")
    parser.add_argument("out", type=Path, metavar="OUT", help="JSON file to write")
    parser.add_argument("--label", default="probe", metavar="NAME", help="prefix of the progress lines")
    return parser


def check_origin(revision: Revision) -> None:
    """Fail if another copy of the package than the revision's would be measured."""
    import mae_lm_fairseq

    if revision.checkout.resolve() not in Path(mae_lm_fairseq.__file__).resolve().parents:
        raise SystemExit(f"error: {revision.label}: {mae_lm_fairseq.__file__} is not in {revision.checkout}")


# -------------------------------------------------------------------------------------------------------------- texts


def write_texts() -> None:
    """Write train.txt, valid.txt, GLUE's RTE and a SQuAD file, all made of random words."""
    generator = random.Random(1)
    for split, documents in (("train", 250), ("valid", 25)):
        text = "\n\n".join(
            "\n".join(make_sentence(generator) for _ in range(generator.randint(2, 6))) for _ in range(documents)
        )
        Path(f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    write_rte(generator)
    write_squad(generator)


def make_sentence(generator: random.Random) -> str:
    """Return 4 to 14 words of 1 to 3 syllables."""
    words = ["".join(generator.choices(SYLLABLES, k=generator.randint(1, 3))) for _ in range(generator.randint(4, 14))]
    return " ".join(words).capitalize() + generator.choice(".?!")


def write_rte(generator: random.Random) -> None:
    """Write glue/RTE in the official layout."""
    folder = Path("glue", "RTE")
    folder.mkdir(parents=True)
    for split, rows in (("train", 40), ("dev", 16), ("test", 16)):
        lines = ["index\tsentence1\tsentence2" + "\tlabel" * (split != "test")]
        for index in range(rows):
            label = f"\t{generator.choice(('entailment', 'not_entailment'))}" * (split != "test")
            lines.append(f"{index}\t{make_sentence(generator)}\t{make_sentence(generator)}{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_squad(generator: random.Random) -> None:
    """Write squad.json: questions whose answer is the second word of the context."""
    articles = []
    for number in range(12):
        context = " ".join(make_sentence(generator) for _ in range(6))
        answer = context.split()[1].strip(".?!")
        answers = [{"text": answer, "answer_start": context.index(answer, context.index(" "))}]
        qas = [{"id": str(number), "question": make_sentence(generator), "answers": answers}]
        articles.append({"title": str(number), "paragraphs": [{"context": context, "qas": qas}]})
    Path("squad.json").write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")


# -------------------------------------------------------------------------------------------------------------- steps


def prepare(revision: Revision) -> Items:
    """Make the data-bin. Its manifest is not compared: it names versions and options."""
    revision.report("prepare")
    texts = ["--train", "train.txt", "--valid", "valid.txt"]
    revision.program("preprocess/pretrain/prepare.py", *texts, "--vocab-size", 200, "--workers", 1, "--destdir", "data")
    names = ("train.bin", "train.idx", "valid.bin", "valid.idx", "dict.txt", "sentencepiece.bpe.model")
    return {f"data-bin: {name}": of_bytes(Path("data", name).read_bytes()) for name in names}


def pretrain(revision: Revision) -> Items:
    """Train every preset at size tiny."""
    items = {}
    for preset in PRESETS:
        arch = f"{preset}_tiny"
        revision.report(f"{arch}, {UPDATES} updates")
        log = revision.train("data", *TRAINING, "--arch", arch, "--save-dir", preset)
        state = torch.load(checkpoint_of(preset), weights_only=True)
        items |= {f"{arch}: logged losses": list(logged_losses(log))}
        items |= of_tensors(f"{arch}: weight", state["model"])
        items |= of_tensors(f"{arch}: optimizer", state["last_optimizer_state"])
    return items


def bundle(revision: Revision) -> Items:
    """Bundle two models, and use the bundles and the checkpoints through MAELMModel."""
    items = {}
    for preset in PRESETS[:2]:
        revision.report(f"bundle of {preset}")
        out = Path("bundles", preset)
        revision.program("scripts/bundle.py", checkpoint_of(preset), "--data-bin", "data", "--out", out)
        items |= of_files(f"bundle of {preset}", out)
        items |= use(f"bundle of {preset}", out)
        items |= use(f"checkpoint of {preset}", checkpoint_of(preset), "data")
    return items


def use(subject: str, *source: object) -> Items:
    """Return token ids, features and filled masks of a pretrained model."""
    from mae_lm_fairseq import MAELMModel

    model = MAELMModel.from_pretrained(*source)
    one, *layers = (model.extract_features(SENTENCES[2]), *model.extract_features(SENTENCES[0], True))
    return {
        f"{subject}: ids": [model.encode(text).tolist() for text in (*SENTENCES, *MASKED)],
        f"{subject}: ids of a pair": model.encode(*SENTENCES[:2]).tolist(),
        f"{subject}: decoded": [model.decode(model.encode(text)) for text in SENTENCES],
        f"{subject}: features": [of_tensor(x) for x in (*model.extract_features(SENTENCES), one)],
        f"{subject}: features of all layers": [of_tensor(x) for x in layers],
        f"{subject}: fill_mask": [exact(model.fill_mask(text)) for text in MASKED],
    }


def export(revision: Revision) -> Items:
    """Export to Hugging Face and import again. The model card is not compared: it is prose."""
    items = {}
    for out, preset in (
        ("encoder", "mae_lm"),
        ("masked-lm", "mae_lm_roberta"),
    ):
        revision.report(f"export of {preset}: {out}")
        words = [checkpoint_of(preset), "--data-bin", "data", "--out", Path("exports", out)]
        revision.program("scripts/export_hf.py", *words)
        items |= of_files(f"export: {out}", Path("exports", out), without=("README.md",))
    revision.report("import")
    revision.program("scripts/import_hf.py", "exports/masked-lm", "--out", "imported")
    from mae_lm_fairseq import MAELMModel

    # Older revisions leave a checkpoint, newer ones a bundle.
    source = ("imported/model.pt", "imported") if Path("imported", "model.pt").exists() else ("imported",)
    return items | of_tensors("import: weight", MAELMModel.from_pretrained(*source).model.state_dict())


def measure_rank(revision: Revision) -> Items:
    """Measure effective ranks. Numbers are compared in the order of the files, whatever their names."""
    revision.report("effective rank")
    words = [checkpoint_of("mae_lm"), "--text", "valid.txt", "--tokenizer", "data", "--out", "ranks"]
    sizes = ["--tokens", 2000, "--tokens-per-sample", 64, "--bootstrap", 5]
    revision.program("scripts/effective_rank.py", *words, *sizes)
    with open("ranks/ranks.csv", encoding="utf-8", newline="") as file:
        rows = [[cell for cell in row if is_number(cell)] for row in csv.reader(file)]
    content = json.loads(Path("ranks", "ranks.json").read_bytes())
    return {"effective rank: ranks.csv": rows, "effective rank: ranks.json": list(floats(content))}


def finetune_glue(revision: Revision) -> Items:
    """Fine-tune on RTE."""
    from mae_lm_fairseq import MAELMModel

    revision.report("fine-tuning on RTE")
    start = ["--checkpoint", checkpoint_of("mae_lm"), "--tokenizer", "data", "--out", "rte"]
    revision.program("scripts/finetune_glue.py", "RTE", "--glue-dir", "glue", *start, *FINETUNING)
    model = MAELMModel.from_pretrained(finetuned("rte"), "data")
    pairs = [model.encode(SENTENCES[0], text) for text in SENTENCES]
    return {
        **of_run("RTE", Path("rte"), "RTE.tsv"),
        "RTE: predict": of_tensor(model.predict("RTE", pairs)),
    }


def finetune_squad(revision: Revision) -> Items:
    """Fine-tune on SQuAD."""
    from mae_lm_fairseq import MAELMModel

    revision.report("fine-tuning on SQuAD")
    start = ["--checkpoint", checkpoint_of("mae_lm"), "--tokenizer", "data", "--out", "squad"]
    files = ["--train", "squad.json", "--dev", "squad.json", "--tokens-per-sample", 96, "--doc-stride", 32]
    revision.program("scripts/finetune_squad.py", *files, *start, *FINETUNING)
    answers = MAELMModel.from_pretrained(finetuned("squad"), "data").answer(SENTENCES[0], " ".join(SENTENCES))
    return {
        **of_run("SQuAD", Path("squad"), "predictions.json", "nbest.json", "na_prob.json"),
        "SQuAD: answer": [answers.text, exact(answers.no_answer_probability)],
    }


STEPS = (prepare, pretrain, bundle, export, measure_rank, finetune_glue, finetune_squad)


# ------------------------------------------------------------------------------------------------------------- values


def checkpoint_of(preset: str) -> Path:
    """Return the last checkpoint of a pretraining run."""
    return Path(preset, "checkpoint_last.pt")


def finetuned(out: str) -> Path:
    """Return the one checkpoint that a fine-tuning program keeps."""
    [path] = Path(out).rglob("*.pt")
    return path


def of_run(subject: str, out: Path, *predictions: str) -> Items:
    """Return metrics, weights and predictions of a fine-tuning run."""
    metrics = json.loads((out / "results.json").read_bytes())["metrics"]
    weights = torch.load(finetuned(str(out)), weights_only=True)["model"]
    return {
        f"{subject}: metrics": {name: exact(metric["values"]) for name, metric in metrics.items()},
        **of_tensors(f"{subject}: weight", weights),
        **{f"{subject}: {name}": of_bytes((out / name).read_bytes()) for name in predictions},
    }


def logged_losses(log: str) -> Iterator[str]:
    """Yield every loss in a log of fairseq-train, as it was printed, with the name of its field."""
    for line in log.splitlines():
        _, brace, rest = line.partition("{")
        if brace and rest.startswith('"'):
            entry = json.loads(brace + rest)
            yield from (f"{name}={value}" for name, value in entry.items() if name.endswith("loss"))


def of_files(subject: str, directory: Path, without: Iterable[str] = ()) -> Items:
    """Return the hash of each file."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in without)
    return {f"{subject}: {path.relative_to(directory)}": of_bytes(path.read_bytes()) for path in paths}


def of_tensors(subject: str, tree: object) -> Items:
    """Return the hash of each tensor in nested dictionaries and lists, by its path."""
    if isinstance(tree, Tensor):
        return {subject: of_tensor(tree)}
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    items = {}
    for name, child in children:
        items |= of_tensors(f"{subject} {name}", child)
    return items


def of_tensor(tensor: Tensor) -> str:
    """Return a hash of type, shape and bits."""
    tensor = tensor.detach().contiguous()
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    return of_bytes(head + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def of_bytes(content: bytes) -> str:
    """Return the SHA-256."""
    return hashlib.sha256(content).hexdigest()


def exact(value: object) -> object:
    """Return a value with its floats written bit for bit."""
    if isinstance(value, float):
        return value.hex()
    return [exact(element) for element in value] if isinstance(value, list | tuple) else value


def floats(content: object) -> Iterator[str]:
    """Yield all floats of nested data in its order."""
    if isinstance(content, float):
        yield content.hex()
    elif isinstance(content, dict | list):
        for child in content.values() if isinstance(content, dict) else content:
            yield from floats(child)


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()

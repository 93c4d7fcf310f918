#!/usr/bin/env python3
"""Compute the values that scripts/golden.py compares, with one revision of the package.

golden.py runs this file with an interpreter that imports mae_lm_fairseq from CHECKOUT, in an empty working directory.
The same code runs for every revision. It uses fairseq-train and MAELMModel.from_pretrained with the methods of its
result, and the verbs of mae-lm.
"""

import argparse
import hashlib
import json
import logging
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Items = dict[str, Any]
"""Values that JSON can hold, by the name under which differences are reported."""

VERBS = {
    "prepare": "prepare --destdir {out}",
    "pretrain": "pretrain {model} data {out}",
    "bundle": "bundle {model} --data-bin data --out {out}",
    "export": "export {model} --data-bin data --out {out}",
    "import": "import {model} --out {out}",
    "adapt": "adapt {model} --out {out}",
    "average": "average --out {out}",
    "plan": "plan {model} --json",
    "rank": "rank {model} --data-bin data --out {out}",
    "evaluate": "evaluate {model} --data-bin data --out {out}",
    "probe": "probe {model} --data-bin data --out {out}",
    "minimal-pairs": "minimal-pairs {model} --data-bin data --out {out}",
    "glue": "finetune glue RTE {model} --data-bin data --out {out}",
    "squad": "finetune squad {model} --data-bin data --out {out}",
    "classification": "finetune classification {model} --data-bin data --out {out}",
    "tagging, random weights": "finetune tagging {model} --data-bin data --out {out}",
    "predict": "predict {model} --out {out}",
}
"""Verb, model and output of each invocation."""
PRESETS = ("mae_lm", "mae_lm_roberta", "mae_lm_mask_later", "mae_lm_3ml_self", "mae_lm_3ml_cross")
EXPANDING = ("mae_lm_exlm", "mae_lm_exlm_decoder")
"""Presets that older revisions do not have."""
UPDATES, SAVED = 50, 30
"""Length of a pretraining run, and the updates after which it also saves a checkpoint."""
TRAINING = shlex.split(f"""
    --task masked_autoencoder_lm --criterion masked_autoencoder_lm --cpu --seed 1 --num-workers 1
    --optimizer adam --lr 1e-3 --lr-scheduler polynomial_decay --warmup-updates 5 --total-num-update 100 --clip-norm 2.0
    --batch-size 8 --tokens-per-sample 64 --sample-break-mode complete_doc --max-update {UPDATES}
    --no-epoch-checkpoints --save-interval-updates {SAVED} --log-format json --log-interval 1
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

    def run(self, invocation: str, *arguments: object, model: object = "", out: object = "") -> str:
        """Run a verb of mae-lm and return what it printed."""
        words = [word.format(model=model, out=out) for word in VERBS[invocation].split()]
        return self._run("-m", "mae_lm_fairseq", *words, *arguments)

    def _run(self, *words: object) -> str:
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"error: {self.label}: {' '.join(map(str, words[1:4]))} failed: {reason}")
        return done.stdout


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
    for step in [partial(train_on, before=arguments.train_on)] if arguments.train_on else STEPS:
        items |= step(revision)
    arguments.out.write_text(json.dumps(items, indent=1), encoding="utf-8")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="files of the revision")
    parser.add_argument("out", type=Path, metavar="OUT", help="JSON file to write")
    parser.add_argument("--train-on", type=Path, metavar="DIR", help="only resume a training in this working directory")
    parser.add_argument("--label", default="probe", metavar="NAME", help="prefix of the progress lines")
    return parser


def check_origin(revision: Revision) -> None:
    """Fail if another copy of the package than the revision's would be measured."""
    import mae_lm_fairseq

    if revision.checkout.resolve() not in Path(mae_lm_fairseq.__file__).resolve().parents:
        raise SystemExit(f"error: {revision.label}: {mae_lm_fairseq.__file__} is not in {revision.checkout}")


# -------------------------------------------------------------------------------------------------------------- texts


def write_texts() -> None:
    """Write text, GLUE's RTE, a SQuAD file, CoNLL-U files and minimal pairs, all made of random words."""
    generator = random.Random(1)
    for split, documents in (("train", 250), ("valid", 25)):
        text = "\n\n".join(
            "\n".join(make_sentence(generator) for _ in range(generator.randint(2, 6))) for _ in range(documents)
        )
        Path(f"{split}.txt").write_text(text + "\n", encoding="utf-8")
    write_rte(generator)
    write_squad(generator)
    for split in ("train", "dev"):
        write_conllu(generator, Path(f"{split}.conllu"))
    write_pairs(generator)


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


def write_conllu(generator: random.Random, path: Path) -> None:
    """Write sentences in CoNLL-U; the part of speech of a word depends on its length and position."""
    rows = []
    for _ in range(40):
        for number, word in enumerate(make_sentence(generator).split(), 1):
            rows.append(f"{number}\t{word}\t_\t{'ABC'[len(word) % 2 + number % 2]}" + "\t_" * 6)
        rows.append("")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_pairs(generator: random.Random) -> None:
    """Write a file of minimal pairs as Zorro does; the ungrammatical sentence, with its words sorted, is first."""
    good = [make_sentence(generator) for _ in range(20)]
    lines = [line for text in good for line in (" ".join(sorted(text.split())), text)]
    Path("pairs").mkdir()
    Path("pairs", "order-of_words.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


# -------------------------------------------------------------------------------------------------------------- steps


def prepare(revision: Revision) -> Items:
    """Make the data-bin. Its manifest is not compared: it names versions and options."""
    revision.report("prepare")
    texts = ["--train", "train.txt", "--valid", "valid.txt"]
    revision.run("prepare", *texts, "--vocab-size", 200, "--workers", 1, out="data")
    names = ("train.bin", "train.idx", "valid.bin", "valid.idx", "dict.txt", "sentencepiece.bpe.model")
    return {f"data-bin: {name}": of_bytes(Path("data", name).read_bytes()) for name in names}


def pretrain(revision: Revision) -> Items:
    """Train every preset at size tiny, and one with its recipe."""
    items, config = {}, (revision.checkout / "mae_lm_fairseq" / "core" / "config.py").read_text(encoding="utf-8")
    for preset in PRESETS + (EXPANDING if EXPANDING[0] in config else ()):
        revision.report(f"{preset}_tiny, {UPDATES} updates")
        log = revision.train("data", *TRAINING, "--arch", f"{preset}_tiny", "--save-dir", preset)
        items |= of_training(f"{preset}_tiny", log, Path(preset))
    revision.report("recipe")
    flags = shlex.split("--cpu --seed 1 --num-workers 1 --max-update 2 --log-format json --log-interval 1")
    log = revision.run("pretrain", *flags, model="mae_lm_tiny", out="recipe")
    return items | of_training("recipe", log, Path("recipe"))


def train_on(revision: Revision, before: Path) -> Items:
    """Resume the training in another probe's working directory with its data-bin, and use its bundle.

    A revision refuses bundles from before its network got an option: the item is then missing.
    """
    theirs, own = (
        json.loads(Path(folder, "bundles", "mae_lm", "config.json").read_bytes()) for folder in (before, "../all")
    )
    same_options = theirs["network"].keys() == own["network"].keys()
    items = use("other bundle", before / "bundles" / "mae_lm") if same_options else {}
    for preset in ("mae_lm", "mae_lm_3ml_self"):
        revision.report(f"{preset}_tiny, resumed")
        Path(preset).mkdir()
        [saved] = Path(before, preset).glob(f"checkpoint_*_{SAVED}.pt")
        shutil.copy(saved, checkpoint_of(preset))
        log = revision.train(before / "data", *TRAINING, "--arch", f"{preset}_tiny", "--save-dir", preset)
        items |= of_training(f"{preset}_tiny, resumed", log, Path(preset))
    return items


def bundle(revision: Revision) -> Items:
    """Bundle two models, and use the bundles and the checkpoints through MAELMModel."""
    items = {}
    for preset in PRESETS[:2]:
        revision.report(f"bundle of {preset}")
        out = Path("bundles", preset)
        revision.run("bundle", model=checkpoint_of(preset), out=out)
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
    """Export to Hugging Face, import again, and adapt."""
    from mae_lm_fairseq import MAELMModel

    items = {}
    for out, preset in (("encoder", "mae_lm"), ("masked-lm", "mae_lm_roberta")):
        revision.report(f"export of {preset}: {out}")
        revision.run("export", model=checkpoint_of(preset), out=Path("exports", out))
        items |= of_files(f"export: {out}", Path("exports", out))
    revision.report("import")
    revision.run("import", model="exports/masked-lm", out="imported")
    items |= of_tensors("import: weight", MAELMModel.from_pretrained("imported").model.state_dict())
    revision.report("adapt")
    texts = ["--train", "train.txt", "--valid", "valid.txt", "--updates", 3, "--batch-size", 1024]
    revision.run("adapt", *texts, model="exports/masked-lm", out="adapted")
    return items | of_output("adapt", Path("adapted"))


def average(revision: Revision) -> Items:
    """Average two checkpoints, and plan a pretraining run."""
    revision.report("average, plan")
    [saved] = Path("mae_lm").glob(f"checkpoint_*_{SAVED}.pt")
    revision.run("average", saved, "mae_lm/checkpoint_last.pt", out="averaged.pt")
    plan = json.loads(revision.run("plan", "--batch-size", 4, model="mae_lm_tiny"))
    weights = torch.load("averaged.pt", weights_only=True)["model"]
    return {**of_tensors("average: weight", weights), **of_numbers("plan", plan)}


def measure(revision: Revision) -> Items:
    """Run every measure of a pretrained model."""
    measures = {
        "rank": "--text valid.txt --tokens 2000 --tokens-per-sample 64 --bootstrap 5",
        "evaluate": "--text valid.txt --tokens 2000 --pseudo-tokens 200 --tokens-per-sample 64",
        "probe": "--train train.conllu --test dev.conllu --column UPOS",
        "minimal-pairs": "--pairs pairs",
    }
    items = {}
    for name, words in measures.items():
        revision.report(name)
        out = Path("measures", name)
        out.mkdir(parents=True)
        file = out / "results.json" if name == "evaluate" else out
        revision.run(name, *words.split(), model=checkpoint_of("mae_lm"), out=file)
        items |= of_output(name, out)
    return items


def finetune(revision: Revision) -> Items:
    """Fine-tune on RTE, SQuAD, a file of labelled texts and a file of labelled words."""
    from mae_lm_fairseq import MAELMModel

    tasks = {
        "glue": "--glue-dir glue",
        "squad": "--train squad.json --dev squad.json --tokens-per-sample 96 --doc-stride 32",
        "classification": "--train glue/RTE/train.tsv --dev glue/RTE/dev.tsv --text sentence1 --label label",
        "tagging, random weights": "--train train.conllu --dev dev.conllu --column UPOS",
    }
    items = {}
    for name, words in tasks.items():
        revision.report(f"fine-tuning: {name}")
        model = "mae_lm_tiny" if "random" in name else checkpoint_of("mae_lm")
        revision.run(name, *words.split(), *FINETUNING, model=model, out=name)
        items |= of_output(name, Path(name))
        items |= of_tensors(f"{name}: weight", torch.load(finetuned(name), weights_only=True)["model"])
    revision.report("prediction")
    revision.run("predict", "--input", "glue/RTE/test.tsv", model="classification/model", out="predicted.tsv")
    classifier = MAELMModel.from_pretrained(finetuned("glue"), "data")
    pairs = [classifier.encode(SENTENCES[0], text) for text in SENTENCES]
    answers = MAELMModel.from_pretrained(finetuned("squad"), "data").answer(SENTENCES[0], " ".join(SENTENCES))
    return {
        **items,
        "classification: predict": of_bytes(Path("predicted.tsv").read_bytes()),
        "glue: predict": of_tensor(classifier.predict("RTE", pairs)),
        "squad: answer": [answers.text, exact(answers.no_answer_probability)],
    }


STEPS = (prepare, pretrain, bundle, export, average, measure, finetune)


# ------------------------------------------------------------------------------------------------------------- values


def checkpoint_of(preset: str | Path) -> Path:
    """Return the last checkpoint of a pretraining run."""
    return Path(preset, "checkpoint_last.pt")


def finetuned(out: str) -> Path:
    """Return the one checkpoint that a fine-tuning program keeps."""
    [path] = Path(out).rglob("*.pt")
    return path


def of_training(subject: str, log: str, directory: Path) -> Items:
    """Return the losses, weights and optimizer state of a pretraining run."""
    state = torch.load(checkpoint_of(directory), weights_only=True)
    return {
        f"{subject}: logged losses": list(logged_losses(log)),
        **of_tensors(f"{subject}: weight", state["model"]),
        **of_tensors(f"{subject}: optimizer", state["last_optimizer_state"]),
    }


def of_output(subject: str, out: Path) -> Items:
    """Return the numbers of results and the hashes of other files, without reports, figures and names of options."""
    items = {}
    for path in sorted(path for path in out.iterdir() if path.is_file()):
        if path.name in ("results.json", "ranks.json"):
            items |= of_numbers(f"{subject}: {path.name}", json.loads(path.read_bytes()))
        elif path.name not in ("options.json", "made.json") and path.suffix not in (".md", ".png"):
            items[f"{subject}: {path.name}"] = of_bytes(path.read_bytes())
    return items


def of_numbers(subject: str, tree: object) -> Items:
    """Return every number but durations in the content of a JSON file, by its path."""
    numbers = {name: leaf for name, leaf in leaves(subject, tree) if isinstance(leaf, int | float)}
    return {name: exact(number) for name, number in numbers.items() if not name.endswith(" seconds")}


def logged_losses(log: str) -> Iterator[str]:
    """Yield every loss in a log of fairseq-train, as it was printed, with the name of its field."""
    for line in log.splitlines():
        _, brace, rest = line.partition("{")
        if brace and rest.startswith('"'):
            entry = json.loads(brace + rest)
            yield from (f"{name}={value}" for name, value in entry.items() if name.endswith("loss"))


def of_files(subject: str, directory: Path) -> Items:
    """Return the hash of each file of a model, without its model card and its list of hashes."""
    others = ("README.md", "SHA256SUMS")
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in others)
    return {f"{subject}: {path.relative_to(directory)}": of_bytes(path.read_bytes()) for path in paths}


def of_tensors(subject: str, tree: object) -> Items:
    """Return the hash of each tensor in nested dictionaries and lists, by its path."""
    return {name: of_tensor(leaf) for name, leaf in leaves(subject, tree) if isinstance(leaf, Tensor)}


def leaves(path: str, tree: object) -> Iterator[tuple[str, object]]:
    """Yield the path and value of everything in nested dictionaries and lists."""
    if not isinstance(tree, dict | list):
        yield path, tree
        return
    for name, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(f"{path} {name}", child)


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


if __name__ == "__main__":
    main()

"""Data for fairseq's ``sentence_prediction`` task, and in-process fine-tuning."""

import random
import shlex
from pathlib import Path

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from fairseq_cli import train

from mae_lm_fairseq.text.data_bin import DataBinWriter
from mae_lm_fairseq.training.runner import read_result
from mae_lm_fairseq.utils.files import write_json
from tests.support.training import RECIPE, built, parse, set_up

WITHOUT_EPOCHS = ["--num-workers", 0, "--no-epoch-checkpoints"]
"""Options of short trainings: no data workers, and one checkpoint."""
HEAD = "sentence_classification_head"
SHAPE = RECIPE[RECIPE.index("--encoder-layers") : RECIPE.index("--max-positions")]
FINETUNING = shlex.split(
    "--task sentence_prediction --criterion sentence_prediction --init-token 0 --separator-token 2 --max-positions 64 "
    "--cpu --optimizer fused_adamw --lr 1e-3 --lr-scheduler fixed --batch-size 8 --required-batch-size-multiple 1 "
    "--log-format simple --log-interval 1 --num-workers 0 --no-epoch-checkpoints"
)


def write_sentences(directory: Path, dictionary: Path, classes: int = 2, size: int = 40) -> Path:
    """Write a data-bin of synthetic sentence pairs.

    The label depends on the first token: its id modulo ``classes`` or, with 1 class (regression), proportional to its
    id.
    """
    generator = random.Random(1)
    for part in ("input0", "input1", "label"):
        (directory / part).mkdir(parents=True)
    symbols = dictionary.read_text(encoding="utf-8")
    (directory / "input0/dict.txt").write_text(symbols, encoding="utf-8")
    (directory / "input1/dict.txt").write_text(symbols, encoding="utf-8")
    (directory / "label/dict.txt").write_text("".join(f"{label} 1\n" for label in range(max(classes, 2))))
    for split in ("train", "valid"):
        first = [generator.randrange(4, 100) for _ in range(size)]
        for part in ("input0", "input1"):
            rows = [
                [token, *(generator.randrange(4, 100) for _ in range(generator.randint(2, 9))), 2] for token in first
            ]
            _write(directory / part / split, rows, 100)
        if classes == 1:
            (directory / "label" / f"{split}.label").write_text("".join(f"{token / 20}\n" for token in first))
        else:
            _write(directory / "label" / split, [[4 + token % classes, 2] for token in first], 10)
    return directory


def _write(prefix: Path, rows: list[list[int]], symbols: int):
    with DataBinWriter(prefix, symbols) as writer:
        writer.write(np.concatenate(rows), np.array([len(row) for row in rows]))


def save_pretrained(path: Path, data_bin: Path, arch: str, *arguments) -> Path:
    """Save a randomly initialised checkpoint in the format of pretraining."""
    trainer = Trainer(*set_up(data_bin, *arguments, arch=arch))
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}})
    return path


def set_up_finetuning(data: Path, *arguments, arch: str = "mae_lm_tiny", classes: int = 2):
    """Return what fine-tunes on a data-bin of sentences with further options."""
    return built(parse(data, *FINETUNING, *SHAPE, "--arch", arch, "--num-classes", classes, *arguments))


def finetune(data: Path, save: Path, *arguments, arch: str = "mae_lm_tiny", classes: int = 2) -> dict:
    """Train as ``fairseq-train`` does and return the contents of the last checkpoint."""
    train_here(data, *FINETUNING, *SHAPE, "--arch", arch, "--num-classes", classes, "--save-dir", save, *arguments)
    return torch.load(save / "checkpoint_last.pt", weights_only=True)


def train_here(*arguments):
    """Run ``fairseq-train`` with these arguments in this process."""
    metrics.reset()
    checkpoint_utils.save_checkpoint.__dict__.pop("best", None)
    train.main(parse(*arguments))


def run_here(runs, jobs: int, threads: int) -> list[dict]:
    """Replace the runner's ``run_all``: run every ``fairseq-train`` command without a result in this process."""
    for run in runs:
        if not run.result.exists():
            train_here(*run.command[3:])
            write_json(run.result, {"result": run.read_result(run)})
            run.clean_up(run)
    return [read_result(run) for run in runs]

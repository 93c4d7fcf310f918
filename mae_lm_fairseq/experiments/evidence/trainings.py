"""Training runs of the evidence study."""

import sys
from pathlib import Path
from statistics import fmean

from mae_lm_fairseq import PACKAGE
from mae_lm_fairseq.experiments.evidence.arms import COMMON, Arm
from mae_lm_fairseq.experiments.evidence.settings import Extent, Setup
from mae_lm_fairseq.experiments.inspection import checkpoint_after
from mae_lm_fairseq.utils.runner import Run, updates_done
from mae_lm_fairseq.utils.training_log import read_records, seconds_per_update


def folder_of(setup: Setup, stage: str, arm: Arm, seed: int) -> Path:
    """Return the directory of a training and its measurements."""
    return setup.out / stage / f"{arm.directory}-seed{seed}"


def _command(setup: Setup, arm: Arm, seed: int, save: Path, updates: int, *options: str) -> list[str]:
    chosen = COMMON | dict(arm.options)
    words = [word for name, value in chosen.items() for word in (name, value) if word is not None]
    words += ["--cpu", "--seed", str(seed), "--save-dir", str(save), "--max-update", str(updates)]
    words += ["--no-epoch-checkpoints", "--disable-validation", "--log-format", "json", "--num-workers", "0"]
    words += ["--user-dir", str(PACKAGE), *options]
    return [sys.executable, "-m", "fairseq_cli.train", str(setup.files.data_bin), *words]


def _linear(extent: Extent) -> list[str]:
    updates = str(extent.short)
    return ["--lr-scheduler", "polynomial_decay", "--warmup-updates", str(extent.warmup), "--total-num-update", updates]


def _constant(extent: Extent, begin: int, end: int) -> list[str]:
    """Return the options of a constant learning rate that decays from one number of updates to another."""
    steps = {"warmup": extent.warmup, "hold": begin - extent.warmup, "decay": end - begin}
    return ["--lr-scheduler", "tri_stage", *(word for name, n in steps.items() for word in (f"--{name}-steps", str(n)))]


def _pace(run: Run) -> dict:
    tokens = [float(record["wpb"]) for record in read_records(run.log, "train_inner").values()]
    return {"seconds_per_update": round(seconds_per_update(run.log), 4), "tokens_per_update": round(fmean(tokens), 1)}


def updates_of(setup: Setup, stage: str, arm: Arm) -> int:
    """Return the number of updates at the end of a training."""
    return setup.extent.branch[1] if arm.branch_of else setup.extent.updates(stage)


def training_run(setup: Setup, stage: str, arm: Arm, seed: int) -> Run:
    """Return the run that trains a model of a stage."""
    extent, folder, updates = setup.extent, folder_of(setup, stage, arm, seed), updates_of(setup, stage, arm)
    if arm.branch_of:
        begin = extent.branch[0]
        start = checkpoint_after(folder_of(setup, "main", arm.branch_of, seed) / "checkpoints", begin)
        options = [*_constant(extent, begin, updates), "--restore-file", str(start), "--no-save-optimizer-state"]
    elif stage == "main":
        options = _constant(extent, 3 * updates // 4, updates)
        options += ["--save-interval-updates", str(updates // 16), "--keep-interval-updates", "-1"]
    else:
        options = _linear(extent)
        options += ["--save-interval-updates", str(updates // 4), "--keep-interval-updates", "1"]
    options += ["--log-interval", str(max(1, min(50, updates // 4)))]
    command = _command(setup, arm, seed, folder / "checkpoints", updates, *options)

    def read_result(run: Run) -> dict:
        for needed in (*extent.checkpoints[:-1], extent.branch[0]) if stage == "main" else ():
            checkpoint_after(folder / "checkpoints", needed)
        return _pace(run)

    return Run(f"{arm.title}, seed {seed}", command, folder / "training.json", read_result, updates_done(updates))

"""The measurements of CUDA graphs for :mod:`benchmark.gpu`: each returns values for JSON."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmark.batches import PAD, UNK
from benchmark.gpu_rows import PEAK_FLOPS, SEED, Step, timed
from experiments.one_model import Job
from experiments.sentence_data import save, smoke_data
from mae_lm_fairseq.core.fixed_sizes import Bucket, FixedSizes
from mae_lm_fairseq.core.graphs import GraphedStep
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, pack, to_device
from mae_lm_fairseq.cost.flops import training_flops

WIDTHS = {"cuda": 512, "cpu": 12}
"""Most tokens of a row."""
FEWER = (7 / 8, 3 / 4)
"""Fractions of the rows, with which a batch is of a smaller bucket."""


class FixedBatch(NamedTuple):
    """A batch of fixed sizes: its bucket, tokens, layout and targets, and the fraction of tokens that were added."""

    bucket: Bucket
    inputs: tuple[Tensor, BatchLayout, Tensor]
    padding: float


class FixedStep(Step):
    """A model in training on batches of fixed sizes, at first without graphs."""

    def __init__(self, device: str, model: str, variant: str, rows: int | None = None):
        super().__init__(device, model, variant)
        self.rows = rows or self.scale.rows
        self.sizes = FixedSizes(
            rows=self.rows,
            width=WIDTHS[device],
            rate=self.mask_prob,
            kept=0.0,
            pad=PAD,
            mask=self.model.mask,
            token=UNK + 1,
        )
        self.graphed: GraphedStep | None = None

    def begin_graphs(self) -> None:
        """Compute gradients by graphs from now on."""

        def masked_loss(inputs: tuple) -> tuple[Tensor, Tensor]:
            return self.model.masked_loss(*inputs)

        self.graphed = GraphedStep(masked_loss, self.model.parameters())

    def batch(self, rows: int | None = None, seed: int = SEED) -> FixedBatch:
        """Return a batch of documents, of which as many tokens are masked as by fairseq."""
        generator = torch.Generator().manual_seed(seed)
        tokens = self.documents(rows or self.rows, generator)
        is_token = tokens.ne(PAD)
        counts = self.mask_prob * is_token.sum(1) + torch.rand(len(tokens), generator=generator)
        order = torch.rand(tokens.shape, generator=generator).masked_fill(~is_token, 1)
        is_masked = order.argsort(1).argsort(1) < counts.long()[:, None]
        corrupted = tokens.masked_fill(is_masked, self.model.mask)
        target = tokens.masked_fill(~is_masked, PAD)
        needs = self.model.autoencoder.needs()
        ragged = batch_layout(corrupted, is_masked, PAD, self.model.mask, needs=needs)
        self.flops = training_flops(self.model.autoencoder.config, self.scale.vocabulary, ragged)

        fixed = self.sizes.pad_batch(corrupted, target)
        width = fixed.bucket.width
        layout = batch_layout(fixed.tokens, fixed.target.ne(PAD), PAD, self.model.mask, needs=needs, width=width)
        targets = pack(fixed.target, layout.predicted)
        inputs = fixed.tokens.to(self.device), to_device(layout, self.device), targets.to(self.device)
        return FixedBatch(fixed.bucket, inputs, fixed.dummies.tokens / int(is_token.sum()))

    def batches_of_a_bucket(self) -> Iterator[FixedBatch]:
        """Yield batches of the bucket of the first one."""
        first = self.batch()
        yield first
        for seed in itertools.count(SEED + 1):
            batch = self.batch(seed=seed)
            if batch.bucket == first.bucket:
                yield batch

    def gradients(self, batch: FixedBatch) -> Tensor:
        """Add the gradients of a batch, and return its loss."""
        if self.graphed is not None:
            return self.graphed(batch.bucket, batch.inputs)[0]
        loss, _ = self.model.masked_loss(*batch.inputs)
        loss.backward()
        return loss.detach()

    def compute(self, batch: FixedBatch) -> None:
        """Train on a batch, without waiting for the device."""
        self.gradients(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def values(self, batch: FixedBatch, seed: int = SEED) -> list[Tensor]:
        """Return loss and gradients of a batch, on the CPU, with the dropout of a seed."""
        torch.manual_seed(seed)
        self.optimizer.zero_grad()
        loss = self.gradients(batch)
        values = [loss, *(parameter.grad for parameter in self.model.parameters())]
        copies = [value.to("cpu", copy=True) for value in values]
        self.optimizer.zero_grad()
        return copies


def graphed(device: str, model: str, variant: str, rows: int | None = None) -> dict:
    """Compare a step of fixed sizes by graphs with one without.

    Returns the times of :func:`~benchmark.gpu_rows.step` for both, the seconds of captures, and how many of loss and
    gradients differ in a bit. ``memory`` is what is allocated at most, or what the graphs keep, if that is more.
    """
    training = FixedStep(device, model, variant, rows)
    batches = training.batches_of_a_bucket()
    first, second = next(batches), next(batches)
    results = {"pause_s": training.pause, "padding": first.padding}
    expected = [training.values(first), training.values(second), training.values(first, SEED + 1)]
    has_dropout = not torch.equal(expected[0][0], expected[2][0])

    training.begin_graphs()
    seconds = [_capture_seconds(training, first)]
    replayed = [training.values(first), training.values(second), training.values(first, SEED + 1)]
    unequal = {
        name: sum(not torch.equal(ours, theirs) for ours, theirs in zip(*values, strict=True))
        for name, *values in zip(("first", "second", "other dropout"), replayed, expected, strict=True)
    }
    results |= {"unequal": sum(unequal.values()), "unequal_by_batch": unequal, "dropout_changes": has_dropout}
    del expected, replayed

    # Without graphs first, so that their memory does not count.
    graphs, training.graphed = training.graphed, None
    del graphs
    _forget_peak(device)
    results |= {f"ungraphed_{name}": value for name, value in timed(training, first).items()}
    results["ungraphed_memory"] = _memory(device)
    _forget_peak(device)
    training.begin_graphs()
    training.graphed.prepare(first.bucket, first.inputs)
    results |= timed(training, first)
    for fraction in FEWER:
        seconds.append(_capture_seconds(training, training.batch(int(fraction * training.rows))))
    results |= {"capture_s": seconds, "captures": len(training.graphed.graphs), "memory": _memory(device)}
    training.batch()  # whose FLOPs the rate has
    flops_per_second = training.flops / results["step_in_a_row_ms"] * 1e3
    results["mfu"] = flops_per_second / PEAK_FLOPS if device == "cuda" else None
    return results


def _capture_seconds(training: FixedStep, batch: FixedBatch) -> float:
    training.wait()
    began = time.perf_counter()
    training.graphed.prepare(batch.bucket, batch.inputs)
    training.wait()
    return time.perf_counter() - began


def _forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory(device: str) -> int | None:
    """Return the bytes that were allocated at most, or that remain reserved, if they are more."""
    if device != "cuda":
        return None
    allocated = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    return max(allocated, torch.cuda.memory_reserved())


def one_rank(device: str, model: str) -> dict:
    """Compare gradients by graphs, and after fairseq's legacy_ddp has summed them over one rank, bit for bit."""
    from fairseq.distributed import LegacyDistributedDataParallel
    from torch import distributed

    training = FixedStep(device, model, "eager")
    backend = "nccl" if device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as directory:
        distributed.init_process_group(backend, init_method=f"file://{directory}/ranks", rank=0, world_size=1)
        parallel = LegacyDistributedDataParallel(training.model, distributed.group.WORLD)
        training.begin_graphs()
        batch = training.batch()
        expected = training.values(batch)[1:]
        torch.manual_seed(SEED)
        training.gradients(batch)
        parallel.all_reduce_grads()
        reduced = [parameter.grad.cpu() for parameter in training.model.parameters()]
        distributed.destroy_process_group()
    return {"unequal": sum(not torch.equal(*pair) for pair in zip(reduced, expected, strict=True)), "backend": backend}


def at_once(device: str, models: int, graphs: str) -> dict:
    """Time the pretraining of some models of the main-sentence experiment at once, each in a process of its own.

    ``updates_per_second`` is that of all together: the more at once, the more of the time of the GPU they share.
    """
    size = "main" if device == "cuda" else "smoke"
    processes = []
    with tempfile.TemporaryDirectory() as directory:
        save(Path(directory), smoke_data(8000 if device == "cuda" else 60))
        for seed in range(1, models + 1):
            job = Job("MAE-LM", seed, 1e-3, 0, size, device, directory, "", ("timing",), graphs == "with graphs")
            command = [sys.executable, "-m", "experiments.one_model", json.dumps(asdict(job))]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env=environment(), **pipes))
        rows = [json.loads(process.stdout.readline()) for process in processes]
        for process in processes:
            process.communicate()
    updates = [1 / row["update"] for row in rows]
    return {"updates_per_second": sum(updates), "update_ms": 1e3 * len(updates) / sum(updates), "models": len(rows)}


def environment() -> dict[str, str]:
    """Return the environment of a process that imports the package and scripts/ of this checkout."""
    scripts = Path(__file__).resolve().parents[1]
    paths = [str(scripts.parent), str(scripts), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


ROWS = {function.__name__: function for function in (graphed, one_rank, at_once)}

"""Pretraining and all measures of one model of the main-sentence experiment, in a process of its own.

The process gets a :class:`Job` as JSON and prints a line of JSON after every measure. It ends when its standard input
is closed, so that it never outlives the program that started it.
"""

import functools
import itertools
import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.metrics import METRICS
from experiments.sentence_data import LENGTH, PAD, SST2_DEV, UNK, Data, Rows, load
from mae_lm_fairseq.core.attention_backends import AttentionBackend, fastest_backend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import MaskedAutoencoderConfig, preset_config
from mae_lm_fairseq.core.encoder import Encoder, build_encoder
from mae_lm_fairseq.core.fixed_sizes import FixedSizes
from mae_lm_fairseq.core.graphs import GraphedStep
from mae_lm_fairseq.core.heads import ClassificationHead, TokenClassificationHead
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, restore
from mae_lm_fairseq.core.transformer import TransformerStack
from mae_lm_fairseq.statistics.exclusivity import Halves, exclusivity_profile
from mae_lm_fairseq.statistics.token_states import EncoderStates

ARMS = {
    "MLM": ("mae_lm_roberta", {}),
    "MAE-LM": ("mae_lm", {"decoder_layers": 2}),
    "reset": ("mae_lm", {"decoder_layers": 2, "reset_mask_states": True}),
}
"""Preset and options of each arm. In the arm "reset", the encoder sees ``[MASK]``, and the decoder does not get its
hidden states."""
MASK_PROB = 0.15
FINE_TUNING_RATES, FINE_TUNING_SEEDS = (5e-5, 1e-4), (1, 2)
TIMED_SECONDS = {"cuda": (8.0, 4.0), "cpu": (0.5, 0.5)}
"""How long pretraining and fine-tuning are timed."""
SKIPPED = 5
"""Updates that are not timed."""
VALIDATED, EXCLUSIVITY_ROWS, PROBED = 800, 800, 2500
"""Held-out sequences for the loss and for exclusivity, and training sentences of the probe."""


class Size(NamedTuple):
    """Size of the network and of an update."""

    layers: int
    dim: int
    heads: int
    sequences: int


SIZES = {"main": Size(6, 384, 6, 64), "rates": Size(4, 256, 4, 64), "smoke": Size(2, 32, 2, 16)}


class Optimisation(NamedTuple):
    """Settings of AdamW with linear warm-up and decay; ``clip`` 0 is no maximum of the gradient norm."""

    weight_decay: float
    clip: float
    warmup: float = 0.06


PRETRAINING, FINE_TUNING = Optimisation(0.01, 2.0), Optimisation(0.1, 0.0)


class Task(NamedTuple):
    """Fine-tuning of a task: its metric, rows per update, and passes over the training set."""

    metric: str
    batch: int
    epochs: int


TASKS = {
    "SST-2": Task("accuracy", 128, 1),
    "CoLA": Task("matthews", 32, 2),
    "STS-B": Task("spearman", 32, 3),
    "UPOS": Task("accuracy", 64, 1),
    "RTE": Task("accuracy", 32, 2),
}
PRIMARY_TASKS = ("SST-2", "CoLA", "STS-B")


def fine_tunings(*tasks: str, rates: Sequence[float] = FINE_TUNING_RATES) -> tuple[str, ...]:
    """Return the measures of some tasks: every seed of all rates, or of some."""
    return tuple(f"{task} {rate:g} {seed}" for task in tasks for rate in rates for seed in FINE_TUNING_SEEDS)


TIMING = ("timing",)
PRIMARY = ("pretraining", *fine_tunings(*PRIMARY_TASKS))
SECONDARY = ("probe", "exclusivity", *fine_tunings("UPOS", "RTE"))
CHOICE_OF_RATE = ("pretraining", "probe")


@dataclass(frozen=True)
class Job:
    """Order to a process: a model, and what to measure.

    Attributes:
        arm: a key of :data:`ARMS`.
        seed: seed of weights, order and masks, which all arms share.
        rate: learning rate of pretraining.
        updates: updates of pretraining.
        size: a key of :data:`SIZES`.
        device: cuda or cpu; on a GPU, products are computed in bfloat16.
        data: directory of the data.
        weights: file of the pretrained encoder, written after pretraining.
        measures: what to do, in this order.
        graphs: whether pretraining launches forward and backward pass as one CUDA graph; on a CPU, a rehearsal.
    """

    arm: str
    seed: int
    rate: float
    updates: int
    size: str
    device: str
    data: str
    weights: str
    measures: Sequence[str]
    graphs: bool = False


class MaskedBatch(NamedTuple):
    """A batch of pretraining on the device; ``targets`` are those of the predicted positions."""

    tokens: Tensor
    layout: BatchLayout
    targets: Tensor


def config(job: Job, dropout: float) -> MaskedAutoencoderConfig:
    """Return the network: the recipe of the sizes tiny and small at another size."""
    size, (preset, options) = SIZES[job.size], ARMS[job.arm]
    shape = {
        "encoder_layers": size.layers,
        "encoder_embed_dim": size.dim,
        "encoder_ffn_embed_dim": 4 * size.dim,
        "encoder_attention_heads": size.heads,
        "init_std": 0.02 * (768 / size.dim) ** 0.5,
        "max_positions": LENGTH,
    }
    return preset_config(preset, "small", **shape, dropout=dropout, attention_dropout=dropout, **options)


class Classifier(nn.Module):
    """Encoder with a head on the hidden states of some positions."""

    def __init__(self, encoder: Encoder, head: nn.Module):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, tokens: Tensor, layout: BatchLayout, wanted: Tensor) -> Tensor:
        """Return the logits [number wanted, classes]; ``wanted`` are indices of packed positions."""
        states = self.encoder(tokens, layout)[-1].index_select(0, wanted)
        return self.head(states[:, None]).flatten(0, -2)


class OneModel:
    """Measures of one model; each method that :meth:`measure` calls returns the values of a row."""

    def __init__(self, job: Job, data: Data):
        self.job, self.data, self.device = job, data, torch.device(job.device)
        self.autocast = functools.partial(torch.autocast, job.device, torch.bfloat16, enabled=job.device == "cuda")

    def measure(self, name: str) -> dict:
        """Return the values of one measure."""
        alone = {each: getattr(self, each) for each in ("timing", "pretraining", "probe", "exclusivity")}
        return alone[name]() if name in alone else self.fine_tuning(*name.split())

    def timing(self) -> dict:
        """Return the seconds per update of pretraining and of fine-tuning, beside the processes that run now."""
        first, second = TIMED_SECONDS[self.job.device]
        network, rows = self.network(), self.data.tasks["CoLA"]["train"]
        update = train(network, self.pretraining_steps(network), self.job.rate, 10_000, PRETRAINING, first)
        model = self.classifier(network.encoder.state_dict(), "CoLA", 1)
        steps = self.fine_tuning_steps(model, rows, TASKS["CoLA"], 1)
        return {
            "update": update,
            "fine_tuning": train(model, steps, FINE_TUNING_RATES[0], 10_000, FINE_TUNING, second),
        }

    def pretraining(self) -> dict:
        """Pretrain, keep the encoder, and return the loss and accuracy on held-out sequences with fixed masks."""
        job, network = self.job, self.network()
        backend = network.encoder.attention_backend.value
        update = train(network, self.pretraining_steps(network), job.rate, job.updates, PRETRAINING)
        partial = Path(f"{job.weights}.partial")
        torch.save(network.encoder.state_dict(), partial)
        partial.replace(job.weights)
        tokens = job.updates * SIZES[job.size].sequences * LENGTH
        return {
            "updates": job.updates,
            "tokens": tokens,
            "update": update,
            "backend": backend,
            **self.held_out(network),
        }

    def network(self) -> MaskedAutoencoder:
        torch.manual_seed(self.job.seed)
        network = MaskedAutoencoder(config(self.job, 0.0), self.data.vocab_size, PAD, self.data.mask).to(self.device)
        set_backend(network.stacks(), self.device)
        return network

    def pretraining_steps(self, network: MaskedAutoencoder) -> Iterator[Tensor]:
        """Add the gradients of one update after another, and yield its loss.

        Every arm of a seed has the same sequences and masks.
        """
        step = self.graphed_step(network) if self.job.graphs else functools.partial(self.plain_step, network)
        for update, rows in enumerate(order(self.job.seed, len(self.data.train), SIZES[self.job.size].sequences)):
            generator = np.random.default_rng((self.job.seed, 1, update))
            yield step(*self.masked(self.data.train[rows], generator))

    def plain_step(self, network: MaskedAutoencoder, tokens: Tensor, target: Tensor) -> Tensor:
        """Add the gradients of the mean loss of a batch, and return the loss."""
        batch = self.masked_batch(network, tokens, target)
        summed, _ = self.masked_loss(network, batch)
        loss = summed / len(batch.targets)
        loss.backward()
        return loss.detach()

    def graphed_step(self, network: MaskedAutoencoder) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function that does by CUDA graphs what :meth:`plain_step` does."""
        sizes = FixedSizes(
            rows=SIZES[self.job.size].sequences,
            width=LENGTH,
            rate=MASK_PROB,
            kept=0.0,
            pad=PAD,
            mask=self.data.mask,
            token=UNK + 1,
        )
        graphed = GraphedStep(functools.partial(self.masked_loss, network), network.parameters())

        def step(tokens: Tensor, target: Tensor) -> Tensor:
            fixed = sizes.pad_batch(tokens, target)  # not None: all rows are full, and none is masked far more
            batch = self.masked_batch(network, fixed.tokens, fixed.target, fixed.bucket.width)
            scale = 1 / (len(batch.targets) - fixed.dummies.predicted)
            summed, _ = graphed(fixed.bucket, batch, scale)
            return scale * summed

        return step

    def masked(self, rows: np.ndarray, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return the tokens [B, T] with masks, and the target [B, T], which is ``<pad>`` where there is no mask."""
        clean = torch.from_numpy(rows.astype(np.int64))
        is_masked = torch.from_numpy(draw_masks(rows.shape, generator))
        return clean.masked_fill(is_masked, self.data.mask), clean.masked_fill(~is_masked, PAD)

    def masked_batch(
        self, network: MaskedAutoencoder, tokens: Tensor, target: Tensor, width: int | None = None
    ) -> MaskedBatch:
        """Move a batch to the device; ``width`` is that of :func:`batch_layout`."""
        mask, is_predicted = self.data.mask, target.ne(PAD)
        early_masks = tokens.eq(mask) if self.job.arm == "reset" else None
        layout = batch_layout(tokens, is_predicted, PAD, mask, early_masks, network.needs(), width)
        tokens, layout, targets = on_device((tokens, layout, target[is_predicted]), self.device)
        return MaskedBatch(tokens, restore(layout), targets)

    def masked_loss(self, network: MaskedAutoencoder, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Return the summed loss, and the number of correct predictions."""
        with self.autocast():
            states = network.predicted_states(batch.tokens, batch.layout)
            return network.lm_head.loss(states, batch.targets, batch.layout)

    @torch.no_grad()
    def held_out(self, network: MaskedAutoencoder) -> dict:
        network.eval()
        for stack in network.stacks():
            stack.attention_backend = fastest_backend(self.device, training=False)
        batches = np.array_split(self.data.valid[:VALIDATED], -(-len(self.data.valid[:VALIDATED]) // 64))
        generator = np.random.default_rng(0)
        sums = []
        for rows in batches:
            batch = self.masked_batch(network, *self.masked(rows, generator))
            loss, correct = self.masked_loss(network, batch)
            sums.append([float(loss), float(correct), len(batch.targets)])
        loss, correct, count = np.sum(sums, axis=0)
        return {"loss": loss / count, "accuracy": 100 * correct / count}

    def weights(self) -> dict[str, Tensor]:
        return torch.load(self.job.weights, map_location=self.device, weights_only=True)

    def plain_encoder(self, weights: dict[str, Tensor], dropout: float) -> Encoder:
        """Return the MLM's encoder with the weights of any arm: they differ only where ``[MASK]`` tokens are."""
        options = config(replace(self.job, arm="MLM"), dropout)
        encoder = build_encoder(options, self.data.vocab_size, PAD).to(self.device)
        encoder.load_state_dict(weights)
        set_backend([encoder], self.device)
        return encoder

    def classifier(self, weights: dict[str, Tensor], task: str, seed: int) -> Classifier:
        rows, dim = self.data.tasks[task]["train"], SIZES[self.job.size].dim
        encoder = self.plain_encoder(weights, dropout=0.1)
        torch.manual_seed(seed)
        classes = 1 if task == "STS-B" else int(rows.labels.max()) + 1
        if rows.labels_words:
            head = TokenClassificationHead(dim, classes, 0.1, 0.02)
        else:
            head = ClassificationHead(dim, classes, dim, 0.1, 0.02)
        return Classifier(encoder, head.to(self.device))

    def fine_tuning(self, name: str, rate: str, seed: str) -> dict:
        """Fine-tune, and return the metric on the test rows, and on those of SST-2's development set alone."""
        task, sets = TASKS[name], self.data.tasks[name]
        updates = task.epochs * (len(sets["train"]) // task.batch)
        model = self.classifier(self.weights(), name, int(seed))
        steps = self.fine_tuning_steps(model, sets["train"], task, int(seed))
        train(model, steps, float(rate), updates, FINE_TUNING)
        predicted, true = self.predictions(model, sets["test"])
        metric = METRICS[task.metric]
        values = {"metric": task.metric, "updates": updates, "value": 100 * metric(predicted, true)}
        if name == "SST-2":
            values["dev"] = 100 * metric(predicted[:SST2_DEV], true[:SST2_DEV])
        return values

    def fine_tuning_steps(self, model: Classifier, rows: Rows, task: Task, seed: int) -> Iterator[Tensor]:
        """Add the gradients of one update after another, and yield its loss."""
        for chosen in order(seed, len(rows), task.batch):
            *inputs, labels = self.batch(rows, chosen)
            with self.autocast():
                logits = model(*inputs).float()
            # Outside: what waits at the yield must not keep the cast weights of autocast.
            is_score = logits.shape[1] == 1
            loss = F.mse_loss(logits[:, 0], labels) if is_score else F.cross_entropy(logits, labels.long())
            loss.backward()
            yield loss.detach()

    def batch(self, rows: Rows, chosen: Sequence[int]) -> tuple[Tensor, BatchLayout, Tensor, Tensor]:
        """Return tokens, layout, the packed positions that have a label, and the labels."""
        texts, labels = zip(*(rows.text(int(row)) for row in chosen), strict=True)
        tokens = nn.utils.rnn.pad_sequence([torch.from_numpy(text) for text in texts], True, PAD)
        layout = batch_layout(tokens, torch.zeros_like(tokens).bool(), PAD, self.data.mask, needs=frozenset())
        lengths, labels = np.array([len(text) for text in texts]), np.concatenate(labels)
        wanted = np.flatnonzero(labels >= 0) if rows.labels_words else np.cumsum(lengths) - lengths
        labels = labels[wanted] if rows.labels_words else labels
        moved = on_device((tokens, layout, torch.from_numpy(wanted), torch.from_numpy(labels)), self.device)
        return moved[0], restore(moved[1]), *moved[2:]

    @torch.no_grad()
    def predictions(self, model: Classifier, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted and true classes or scores, in the order of the rows."""
        model.eval()
        model.encoder.attention_backend = fastest_backend(self.device, training=False)
        found = []
        for start in range(0, len(rows), 256):
            *inputs, labels = self.batch(rows, range(start, min(start + 256, len(rows))))
            with self.autocast():
                logits = model(*inputs).float()
            found.append((logits[:, 0] if logits.shape[1] == 1 else logits.argmax(1), labels))
        predicted, true = (torch.cat(parts).cpu().double().numpy() for parts in zip(*found, strict=True))
        return predicted, true

    def probe(self) -> dict:
        """Return the accuracy of a linear probe for UPOS on each layer, from the embeddings up."""
        states = EncoderStates(self.plain_encoder(self.weights(), 0.0), PAD, self.data.mask)
        sets = self.data.tasks["UPOS"]
        step = max(1, len(sets["train"]) // PROBED)
        parts = {name: self.layers(states, rows, step if name == "train" else 1) for name, rows in sets.items()}
        layers = []
        for layer in range(states.layers + 1):
            labelled = [(x[layer], labels) for x, labels in (parts["train"], parts["dev"], parts["test"])]
            dev, test = logistic_regression(*labelled)
            layers.append({"layer": layer, "dev": 100 * dev, "test": 100 * test})
        return {"layers": layers, "last": layers[-1]["test"], "best": max(layers, key=lambda row: row["dev"])["test"]}

    def layers(self, states: EncoderStates, rows: Rows, step: int) -> tuple[list[Tensor], Tensor]:
        """Return the states [words, dim] of every layer at the labelled words, and the labels."""
        found, labels = [], []
        chosen = range(0, len(rows), step)
        for start in range(0, len(chosen), 64):
            tokens, _, wanted, of_words = self.batch(rows, chosen[start : start + 64])
            found.append([layer.states[wanted] for layer in states(tokens.cpu(), see_masks=False)])
            labels.append(of_words.long())
        return [torch.cat(layer) for layer in zip(*found, strict=True)], torch.cat(labels)

    def exclusivity(self) -> dict:
        """Return the exclusivity of ``[MASK]`` by layer, and the fraction of frequent tokens below it."""
        states = EncoderStates(self.plain_encoder(self.weights(), 0.0), PAD, self.data.mask)
        rows = [row.astype(np.int64) for row in self.data.valid[:EXCLUSIVITY_ROWS]]
        blocks = [rows[start : start + 32] for start in range(0, len(rows), 32)]
        fit, held_out = (list(itertools.chain(*blocks[half::2])) for half in (0, 1))
        frequent = np.bincount(self.data.valid.ravel(), minlength=self.data.vocab_size)[4:].argsort()[::-1][:20] + 4
        found = exclusivity_profile(states, Halves(fit, held_out, frequent.tolist()), special_ids=range(4))
        names = ("layer", "exclusivity_0.9", "type_quantile")
        return {"layers": [{name: row[name] for name in names} for row in found]}


def train(
    module: nn.Module, steps: Iterator[Tensor], rate: float, updates: int, how: Optimisation, seconds: float = math.inf
) -> float:
    """Train a module by AdamW: the rate rises linearly in the warm-up, and then falls linearly to 0.

    Args:
        module: the module.
        steps: adds the gradients of an update, yields its loss, and goes on after the update.
        rate: the largest learning rate.
        updates: number of updates.
        how: further settings.
        seconds: when to stop, for a timing.

    Returns:
        The seconds per update, without the first updates, which compile kernels.
    """
    module.train()
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=how.weight_decay, fused=True
    )
    warmup, began = max(1, round(how.warmup * updates)), time.monotonic()
    for update, loss in zip(range(updates), steps, strict=False):
        if update == SKIPPED:
            loss.item()  # waits for the device
            began = time.monotonic()
        factor = min((update + 1) / warmup, (updates - update) / max(1, updates - warmup))
        for group in optimizer.param_groups:
            group["lr"] = rate * factor
        if how.clip:
            nn.utils.clip_grad_norm_(parameters, how.clip)
        optimizer.step()
        optimizer.zero_grad()
        if update > SKIPPED and time.monotonic() - began > seconds:
            break
    loss.item()
    return (time.monotonic() - began) / max(1, update + 1 - SKIPPED)


def order(seed: int, rows: int, batch: int) -> Iterator[np.ndarray]:
    """Yield batches of row numbers without end, in another order in each epoch; incomplete batches are dropped."""
    for epoch in itertools.count():
        permutation = np.random.default_rng((seed, 0, epoch)).permutation(rows)
        yield from permutation[: rows // batch * batch].reshape(-1, batch)


def draw_masks(shape: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Return which tokens are masked, bool[B, T]: of each sequence the same number, rounded at random as in fairseq."""
    counts = (MASK_PROB * shape[1] + generator.random(shape[0])).astype(int)
    return generator.random(shape).argsort(1).argsort(1) < counts[:, None]


def on_device(tree, device: torch.device):
    """Return nested tuples with their tensors on a device, without waiting for it."""
    if isinstance(tree, tuple):
        return tuple(on_device(part, device) for part in tree)
    if not isinstance(tree, Tensor) or device.type == "cpu":
        return tree
    return (tree.pin_memory() if tree.numel() else tree).to(device, non_blocking=True)


def set_backend(stacks: Sequence[TransformerStack], device: torch.device) -> None:
    """Let stacks train with the fused kernel on a GPU where it agrees with eager attention, and with sdpa otherwise."""
    backend = fastest_backend(device, training=True)
    if backend is AttentionBackend.fused:
        from mae_lm_fairseq.models.kernel_comparison import TOLERANCES, difference_from_eager  # needs triton

        try:
            differences = [difference_from_eager(stack, torch.bfloat16) for stack in stacks]
        except Exception as problem:  # triton's, of many classes
            print(f"the fused kernel fails: {problem}", file=sys.stderr)
            differences = [float("nan")]
        if not all(difference <= TOLERANCES[torch.bfloat16] for difference in differences):
            backend = AttentionBackend.sdpa
    for stack in stacks:
        stack.attention_backend = backend


def logistic_regression(train: tuple[Tensor, Tensor], *tests: tuple[Tensor, Tensor]) -> list[float]:
    """Train a logistic regression on standardised states, as the package's probes do, and return its accuracies.

    Args:
        train: states [N, dim] and labels [N].
        tests: the same of other sets.
    """
    states, labels = train
    mean, deviation = states.mean(0), states.std(0).clamp(min=1e-6)
    weight = torch.zeros(int(labels.max()) + 1, states.shape[1] + 1, device=states.device, requires_grad=True)
    solver = torch.optim.LBFGS([weight], max_iter=300, tolerance_grad=1e-5, line_search_fn="strong_wolfe")

    def logits(x: Tensor) -> Tensor:
        return F.linear((x - mean) / deviation, weight[:, :-1], weight[:, -1])

    def objective() -> Tensor:
        solver.zero_grad()
        loss = F.cross_entropy(logits(states), labels) + weight[:, :-1].square().sum() / (2 * len(labels))
        loss.backward()
        return loss

    solver.step(objective)
    with torch.no_grad():
        return [float((logits(x).argmax(1) == y).float().mean()) for x, y in tests]


def main(job: Job) -> None:
    """Do the job, and print a line after every measure."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if job.device == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)
    model = OneModel(job, load(Path(job.data)))
    for name in job.measures:
        began = time.monotonic()
        values = model.measure(name)
        row = {"arm": job.arm, "seed": job.seed, "rate": job.rate, "name": name, **values}
        print(json.dumps(row | {"seconds": time.monotonic() - began}), flush=True)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))

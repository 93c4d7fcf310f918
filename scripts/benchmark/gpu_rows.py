"""The measurements of :mod:`benchmark.gpu`: each returns values for JSON."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch.autograd import DeviceType

from benchmark.batches import PAD
from benchmark.workers.training import fused_adamw
from mae_lm_fairseq.core import dropout as dropouts
from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.config import preset_config
from mae_lm_fairseq.core.kernels import fused_attention, operator  # noqa: F401  fused_attention registers the kernels
from mae_lm_fairseq.core.kernels.operator import PositionBias, Rows
from mae_lm_fairseq.core.packing import BatchLayout, batch_layout, to_device
from mae_lm_fairseq.core.relative_position import relative_position_bucket
from mae_lm_fairseq.cost.flops import training_flops
from mae_lm_fairseq.fairseq_patches.patching import replaced
from mae_lm_fairseq.models.mae_lm import Autocast, MAELMModel
from mae_lm_fairseq.utils import compilation

RECORDED = Path(__file__).resolve().parents[1] / "results" / "day-one" / "steps-2.json"
"""Has the numbers of tokens of 64 documents."""
DROPOUT, SEED, SHOWN = 0.1, 1, 60
PEAK_FLOPS = 989e12
"""FLOP/s in bfloat16 by the data sheet of an H100."""
SMALL = {
    "encoder_layers": 6,
    "encoder_embed_dim": 384,
    "encoder_ffn_embed_dim": 1536,
    "encoder_attention_heads": 6,
    "decoder_layers": 2,
}
MODELS = {
    "RoBERTa": ("mae_lm_roberta", 0.15, {}),
    "MAE-LM": ("mae_lm", 0.15, {}),
    "3ML": ("mae_lm_3ml_self", 0.5, {}),
    "6 x 384": ("mae_lm", 0.15, SMALL),
}
"""Preset, fraction of masked tokens, and how the network on a GPU differs from base."""
WITHOUT = {"separate casts": "combo_kernels", "code chosen by measurements": "deterministic"}
"""Inductor's setting that a variant of compilation does without."""


@dataclass(frozen=True)
class Scale:
    """Sizes on a GPU, and of the rehearsal on a CPU."""

    size: str
    vocabulary: int
    rows: int
    tokens: int | None
    """Tokens of a row at most; None for those of the recorded documents."""
    repetitions: int
    heads: int
    head_size: int


SCALES = {"cuda": Scale("base", 32_000, 64, None, 15, 12, 64), "cpu": Scale("tiny", 100, 6, 12, 1, 1, 16)}


class Step:
    """A model in training in bfloat16 (``--autocast bf16``) with PyTorch's fused AdamW."""

    def __init__(self, device: str, model: str, variant: str = "eager", dropout: float = DROPOUT):
        self.device, self.scale = torch.device(device), SCALES[device]
        preset, self.mask_prob, shape = MODELS[model]
        if device == "cpu":
            shape = {}
        config = preset_config(preset, self.scale.size, dropout=dropout, attention_dropout=dropout, **shape)
        torch.manual_seed(SEED)
        network = MaskedAutoencoder(config, self.scale.vocabulary, PAD, self.scale.vocabulary - 1)
        half = Autocast.bf16 if device == "cuda" else Autocast.none
        model = MAELMModel(network, PAD, network.mask, half, AttentionBackend.fused, variant != "eager")
        self.model = model.to(self.device)
        self.optimizer = fused_adamw(self.model.parameters())
        self.wait = torch.get_device_module(device).synchronize
        began = time.perf_counter()
        self.model.begin_training(self.device)
        self.wait()
        self.pause = time.perf_counter() - began

    def batch(self, rows: int | None = None, seed: int = SEED) -> tuple[Tensor, BatchLayout, Tensor]:
        """Return tokens, layout and targets of a batch of ``rows`` documents."""
        generator = torch.Generator().manual_seed(seed)
        tokens = self.documents(rows or self.scale.rows, generator)
        is_masked = (torch.rand(tokens.shape, generator=generator) < self.mask_prob) & tokens.ne(PAD)
        corrupted = tokens.masked_fill(is_masked, self.model.mask)
        layout = batch_layout(corrupted, is_masked, PAD, self.model.mask, needs=self.model.autoencoder.needs())
        self.flops = training_flops(self.model.autoencoder.config, self.scale.vocabulary, layout)
        moved = to_device(layout, self.device)
        return corrupted.to(self.device), moved, tokens[is_masked].to(self.device)

    def documents(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return random tokens of documents, [rows, T] int64."""
        lengths = document_lengths(self.scale, rows, generator)
        tokens = torch.randint(4, self.scale.vocabulary - 1, (len(lengths), max(lengths)), generator=generator)
        tokens[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = PAD
        return tokens

    def update(self, batch: tuple[Tensor, BatchLayout, Tensor]) -> dict[str, float]:
        """Train on a batch; return the milliseconds until its last launch, and until its end."""
        self.wait()
        began = time.perf_counter()
        self.compute(batch)
        launched = time.perf_counter()
        self.wait()
        return {"host_ms": 1e3 * (launched - began), "step_ms": 1e3 * (time.perf_counter() - began)}

    def compute(self, batch: tuple[Tensor, BatchLayout, Tensor]) -> None:
        """Train on a batch, without waiting for the device."""
        self.model.masked_loss(*batch)[0].backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def document_lengths(scale: Scale, rows: int, generator: torch.Generator) -> list[int]:
    """Return the numbers of tokens of documents: the recorded ones, again and again, or random ones."""
    if scale.tokens:
        return torch.randint(scale.tokens // 2, scale.tokens + 1, (rows,), generator=generator).tolist()
    recorded = json.loads(RECORDED.read_text())["batches"]["64 x 512, 15%"]["tokens"]
    return [recorded[row % len(recorded)] for row in range(rows)]


def operator_difference(device: str, dtype: str) -> dict:
    """Compare attention on the device with the CPU's equations, with the same dropout."""
    case = [attention_case(dtype)]
    case.append([x.to(device) if isinstance(x, Tensor) else x for x in case[0]])
    found = []
    for arguments in case:
        packed, table = (x.detach().requires_grad_() for x in (arguments[0], arguments[2]))
        output, _ = torch.ops.mae_lm_fairseq.attend(packed, None, table, *arguments[3:])
        output.float().square().sum().backward()
        found.append([x.detach().float().cpu() for x in (output, packed.grad, table.grad)])
    difference = max(float((one - other).abs().max() / other.abs().max()) for other, one in zip(*found, strict=True))
    return {"difference": difference, "tolerance": 0.01 if dtype != "bfloat16" else 0.05}


def attention_case(dtype: str) -> list:
    """Return the arguments of the operator for the documents of the rehearsal."""
    scale, generator = SCALES["cpu"], torch.Generator().manual_seed(SEED)
    lengths = document_lengths(scale, scale.rows, generator)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    positions = torch.cat([torch.arange(number) for number in lengths])
    rows = Rows(starts, starts, positions, positions, max(lengths), max(lengths))
    table = torch.randn(32, scale.heads, generator=generator)
    bias = PositionBias.of(table, relative_position_bucket(torch.arange(-511, 512), 32, 128), rows)
    shape = sum(lengths), 3, scale.heads, scale.head_size
    packed = torch.randn(shape, generator=generator).to(getattr(torch, dtype))
    random = operator.random_numbers(shape[0], packed)
    return [packed, None, *bias[:1], *rows[:4], *bias[1:], random, *rows[4:], DROPOUT]


def compiled_difference(device: str, model: str) -> dict:
    """Compare gradients of compiled layers with eager ones, without dropout."""
    found = []
    for variant in ("eager", "compiled"):
        step = Step(device, model, variant, dropout=0.0)
        step.model.masked_loss(*step.batch())[0].backward()
        found.append(torch.cat([p.grad.flatten().float() for p in step.model.parameters() if p.grad is not None]))
    return {"difference": float((found[1] - found[0]).norm() / found[0].norm()), "tolerance": 0.02}


def repeated(device: str, model: str, variant: str) -> dict:
    """Return the parameters whose gradients differ when a batch with frequent tokens is repeated with its dropout."""
    training, found = Step(device, model, variant), []
    tokens, *others = training.batch()
    batch = torch.where(tokens % 2 == 0, tokens, tokens % 50 + 4).where(tokens.ne(training.model.mask), tokens), *others
    for _ in range(2):
        torch.manual_seed(SEED)
        training.model.masked_loss(*batch)[0].backward()
        found.append({name: p.grad for name, p in training.model.named_parameters() if p.grad is not None})
        training.optimizer.zero_grad(set_to_none=True)
    return {"unequal_gradients": [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]}


def step(device: str, model: str, variant: str, rows: int | None = None) -> dict:
    """Time a training step; ``variant`` is eager or compiled.

    Returns pause before the first one, host and step time, time of a step in a row of them without waiting in between,
    as in training, kernels and memory. In ``compiled, dropout of torch``, ``compiled, separate casts`` and ``compiled,
    code chosen by measurements``, layers are compiled without what the package does instead.
    """
    before = counters["stats"]["unique_graphs"]
    dropout = F.dropout if "torch" in variant else dropouts.hashed_dropout
    chosen = compilation.inductor_options()
    options = lambda: chosen | {name: False for form, name in WITHOUT.items() if form in variant}  # noqa: E731
    with replaced(dropouts, "hashed_dropout", dropout), replaced(compilation, "inductor_options", options):
        training = Step(device, model, variant)
        found = timed(training, training.batch(rows))
    found["pause_s"] = training.pause
    found["mfu"] = training.flops / found["step_ms"] * 1e3 / PEAK_FLOPS if device == "cuda" else None
    found["memory"] = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return found | {"graphs": counters["stats"]["unique_graphs"] - before}


def timed(training: Step, batch: tuple) -> dict:
    """Return the times of :func:`step` for a batch."""
    number = training.scale.repetitions
    steps = [training.update(batch) for _ in range(number + 1)][1:]
    times = {name: median(values[name] for values in steps) for name in steps[0]}
    began = time.perf_counter()
    for _ in range(number):
        training.compute(batch)
    training.wait()
    times["step_in_a_row_ms"] = 1e3 * (time.perf_counter() - began) / number
    kernels = kernel_milliseconds(lambda: training.update(batch), training.device.type)
    times |= {"steps": steps, "kernel_ms": sum(kernels.values())}
    times["kernels"] = dict(sorted(kernels.items(), key=lambda item: -item[1])[:SHOWN])
    return times


def kernel_milliseconds(function: Callable[[], object], device: str) -> dict[str, float]:
    """Return the milliseconds of each kernel of the GPU, or of each operator of the CPU."""
    kind = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    with torch.profiler.profile() as profile:
        function()
    own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    events = [each for each in profile.key_averages() if each.device_type == kind and not each.is_user_annotation]
    return {event.key: getattr(event, own) / 1e3 for event in events if getattr(event, own)}


def ragged(device: str, model: str, batches: int) -> dict:
    """Train on batches of different sizes, and count what is compiled after the first."""
    training = Step(device, model, "compiled")
    torch._logging.set_logs(recompiles=True)  # with the reason
    before = counters["stats"]["unique_graphs"]
    steps = [training.update(training.batch(3 + number % training.scale.rows, number)) for number in range(batches)]
    return {"recompilations": counters["stats"]["unique_graphs"] - before, "graphs": before, "steps": steps}


def train(device: str, path: str, updates: int, is_killed: bool = False, variant: str = "compiled") -> dict:
    """Train from the state in a file, if there is one; write the state, or kill the process after it.

    Each update has another number of documents.
    """
    training, file, done = Step(device, "MAE-LM", variant), Path(path), 0
    if file.exists():
        state = torch.load(file, map_location=device)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        done = state["updates"]
    for update in range(done + 1, updates + 1):
        torch.manual_seed(SEED + update)
        training.update(training.batch(training.scale.rows - update, update))
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "updates": updates}
    torch.save(state, file)
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"updates": updates - done, "pause_s": training.pause}


def compare(device: str, one: str, other: str) -> dict:
    """Compare the weights of two files: how many of them differ, and by how much at most."""
    left, right = (torch.load(path, map_location="cpu")["model"] for path in (one, other))
    differences = [(weight.double() - right[name].double()).abs() for name, weight in left.items()]
    number = sum(int(each.ne(0).sum()) for each in differences)
    largest = max(each.max().item() for each in differences)
    return {"unequal": number, "weights": sum(each.numel() for each in differences), "largest_difference": largest}


ROWS = {
    each.__name__: each for each in (operator_difference, compiled_difference, repeated, step, ragged, train, compare)
}

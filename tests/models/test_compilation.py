"""``--compile``: equal results, and no recompilation after the first batch."""

import copy
import functools
import pickle

import pytest
import torch
from fairseq.models.ema import build_ema
from fairseq.optim import FP16Optimizer
from torch import multiprocessing
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.graph import GraphLowering
from torch.nn.parallel import DistributedDataParallel

from mae_lm_fairseq.core.attention_backends import AttentionBackend
from mae_lm_fairseq.core.config import PRESETS
from mae_lm_fairseq.core.dropout import Dropout, hashed_dropout
from mae_lm_fairseq.utils.compilation import compiled
from tests.support.comparisons import assert_equal
from tests.support.networks import MASK, PAD, batch, layout_for, network, text
from tests.support.processes import untraced
from tests.support.training import batches, make_update, set_up

pytestmark = pytest.mark.integration  # compiles

SLOW = pytest.mark.slow
FIRST, *OTHERS = (8, 64, 64), (1, 30, 30), (3, 30, 60), (7, 100, 298), (2, 64, 64)
"""Rows of a batch, and least and most tokens per row."""
WITHOUT_DROPOUT = {"dropout": 0, "attention_dropout": 0, "decoder_dropout": 0}


@pytest.fixture
def compile_with(monkeypatch, tmp_path):
    """Return a function that chooses torch.compile's backend; nothing is compiled before."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compile_ = torch.compile
    torch._dynamo.reset()
    counters.clear()
    compiled.cache_clear()
    with untraced():
        yield lambda backend: monkeypatch.setattr(torch, "compile", functools.partial(compile_, backend=backend))
    compiled.cache_clear()


def graphs():
    assert not counters["graph_break"]
    return counters["stats"]["unique_graphs"]


def case(rows, least, most):
    generator = torch.Generator().manual_seed(rows)
    lengths = torch.randint(least, most + 1, (rows,), generator=generator).tolist()
    tokens = batch(*(text(length, row) for row, length in enumerate(lengths)))
    hidden = (torch.rand(tokens.shape, generator=generator) < 0.2) & tokens.ne(PAD)
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, PAD)


def build(preset="mae_lm", **changes):
    options = WITHOUT_DROPOUT | {"max_positions": 300, "encoder_layers": 2} | changes
    net = network(preset, **options).train()
    for stack in net.stacks():
        stack.attention_backend = AttentionBackend.fused
    return net


def run(net, sizes, compiles, seed=0, forward=None):
    """Return loss and gradients of a batch."""
    for stack in net.stacks():
        stack.compiles_layers = compiles
    net.zero_grad()
    torch.manual_seed(seed)
    tokens, targets = case(*sizes)
    layout = layout_for(tokens, targets)
    states = (forward or net.predicted_states)(tokens, layout)
    loss, _ = net.lm_head.loss(states, targets[targets.ne(PAD)], layout)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}


def assert_close(gradients, expected, tolerance=0.0):
    assert gradients.keys() == expected.keys()
    for name, tensor in expected.items():
        atol = tolerance * float(tensor.abs().max())
        torch.testing.assert_close(gradients[name], tensor, rtol=0, atol=atol, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    ("preset", "backend"),
    [
        *(
            (preset, "aot_eager") if preset == "mae_lm" else pytest.param(preset, "aot_eager", marks=SLOW)
            for preset in PRESETS
        ),
        *(pytest.param(preset, "inductor", marks=SLOW) for preset in PRESETS),
    ],
)
def test_compiled_layers_equal_eager_and_are_not_compiled_again(compile_with, preset, backend):
    compile_with(backend)
    net = build(preset)
    # Inductor's sums have another order; so have aot_eager's of the two uses of one tensor in 3ML-cross.
    tolerance = 1e-5 if backend == "inductor" else 2e-7 * (preset == "mae_lm_3ml_cross")
    for number, sizes in enumerate((FIRST, *OTHERS)):
        expected = run(net, sizes, compiles=False)
        assert_close(run(net, sizes, compiles=True), expected, tolerance)
        if number == 0:
            after_the_first = graphs()
    assert 1 <= after_the_first == graphs() <= 3


def _as_compiled(module: Dropout, x: torch.Tensor) -> torch.Tensor:
    return hashed_dropout(x, module.p) if module.training and module.p else x


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=SLOW)])
def test_dropout_is_repeatable(compile_with, backend, monkeypatch):
    monkeypatch.setattr(Dropout, "forward", _as_compiled)  # also outside of compiled layers
    compile_with(backend)
    net = build("mae_lm_roberta", dropout=0.2, attention_dropout=0.2)
    first, second, other = (run(net, FIRST, True, seed) for seed in (1, 1, 2))
    assert_close(second, first)
    assert not torch.equal(other["loss"], first["loss"])
    if backend == "aot_eager":
        assert_close(first, run(net, FIRST, False, 1))
    for stack in net.stacks():
        stack.checkpoint_activations = True
    assert_close(run(net, FIRST, True, 1), first)
    assert graphs() == 1


@SLOW
def test_settings_of_inductor_are_in_effect(compile_with, monkeypatch):
    """In the forward and in the backward pass; what is set for the whole process, dynamo resets."""
    compile_with("inductor")
    compile_, settings = GraphLowering.compile_to_module, []

    def record(graph):
        settings.append((inductor.deterministic, inductor.combo_kernels))
        return compile_(graph)

    monkeypatch.setattr(GraphLowering, "compile_to_module", record)
    run(build("mae_lm_roberta"), FIRST, True)
    assert settings == 2 * [(True, True)]


def test_compile_option(compile_with, data_bin, caplog):
    compile_with("aot_eager")
    options = ("--encoder-layers 1 --decoder-layers 1",)
    cfg, task, model, criterion = set_up(data_bin, *options, "--compile", "--ema-fp32")
    plain = set_up(data_bin, *options).model
    state = torch.get_rng_state()
    plain.begin_training(torch.device("cpu"))
    assert "--compile does not pay" not in caplog.text
    model.begin_training(torch.device("cpu"))
    assert caplog.text.count("--compile does not pay on CPUs") == 1
    assert graphs() == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert list(model.state_dict()) == list(plain.state_dict())
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), build_ema(model, cfg.ema, "cpu").model):
        assert_equal(twin.state_dict(), model.state_dict())
    sample = batches(task)[0]
    criterion(model, sample)[0].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    criterion(model.eval(), sample)
    with torch.no_grad():
        criterion(model.train(), sample)
    assert graphs() == 2


def test_small_sizes_are_not_compiled(compile_with):
    compile_with("aot_eager")
    net = build("mae_lm_roberta")
    sizes = (2, 1, 1)
    assert_close(run(net, sizes, True), run(net, sizes, False))
    assert counters["stats"]["unique_graphs"] == 0


def test_products_precision_between_compiled_layers(compile_with):
    """With --autocast bf16; in float32 the layers return float32, as the tests above show."""
    compile_with("aot_eager")
    net, dtypes = build("mae_lm_roberta"), []
    tokens, targets = case(*FIRST)
    for compiles in (False, True):
        net.encoder.compiles_layers = compiles
        with torch.autocast("cpu", torch.bfloat16):
            dtypes.append([states.dtype for states in net.encode(tokens, layout_for(tokens, targets))])
    assert dtypes == [3 * [torch.float32], [torch.float32, torch.bfloat16, torch.bfloat16]]
    assert graphs() == 1


@SLOW
def test_fp16_optimizer(compile_with, data_bin, monkeypatch):
    """The loop of --fp16 on a CPU, which stands in for the device."""
    compile_with("aot_eager")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(Dropout, "forward", _as_compiled)  # also in eager layers
    losses = []
    for options in (["--attention-backend fused"], ["--compile"]):
        cfg, task, model, criterion = set_up(data_bin, "--fp16 --fp16-init-scale 4", *options)
        model.half().begin_training(torch.device("cpu"))
        optimizer = FP16Optimizer.build_optimizer(cfg, list(model.parameters()))
        losses.append([])
        torch.manual_seed(0)
        for sample in batches(task)[:4]:
            losses[-1].append(make_update(model, criterion, optimizer, sample))
    assert losses[0] == losses[1]
    assert graphs() == 3


def train_in_parallel(rank, file, results):
    """Append the gradients of one of two processes, and the mean of both by eager execution."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    net = build()
    sizes = ((3, 30, 60), (5, 30, 90))
    expected = [run(net, size, compiles=False) for size in sizes]
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    run(net, FIRST, compiles=True)
    parallel = DistributedDataParallel(Whole(net), bucket_cap_mb=0.01)
    gradients = run(net, sizes[rank], compiles=True, forward=parallel)
    means = {name: (expected[0][name] + expected[1][name]) / 2 for name in gradients}
    gradients["loss"], means["loss"] = torch.tensor(graphs()), torch.tensor(2)
    assert_close(gradients, means, 1e-6)
    results.put(rank)


class Whole(torch.nn.Module):
    """The predicted states as a forward pass, to which DistributedDataParallel attaches itself."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, *inputs):
        return self.net.predicted_states(*inputs)


@SLOW
def test_two_processes_with_ddp(tmp_path):
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(train_in_parallel, (str(tmp_path / "meeting"), results), nprocs=2)
    assert {results.get(), results.get()} == {0, 1}
